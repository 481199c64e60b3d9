"""The lock of a bootstrap base."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envspec import oslock
from envspec.apt import Deb, Suite
from envspec.console import Console
from envspec.errors import LockError, MatrixError
from envspec.matrix import Project

ROOT = Path(__file__).resolve().parents[2]


def deb(name: str, *, essential: bool = False, depends: str = "") -> Deb:
    filename = f"{name}_1-1_amd64.deb"
    return Deb(
        name, "1-1", f"http://mirror.invalid/debian/pool/main/{filename}", filename,
        hashlib.sha256(name.encode()).hexdigest(), 7, essential, depends, "", "",
    )


@pytest.fixture
def locked(project: Project, console: Console, monkeypatch: pytest.MonkeyPatch) -> Path:
    suite = Suite("trixie", [
        deb("bash"), deb("gcc", depends="libc6"), deb("libc6"), deb("dpkg", essential=True),
        deb("unused"),
    ])
    monkeypatch.setattr(Suite, "read", lambda name, console: suite)
    oslock.lock_base(project, "debian", console)
    return project.base_lock_path("debian")


def test_round_trip(project: Project, locked: Path) -> None:
    found = oslock.read_base(project, "debian")
    assert [d.name for d in found.debs] == ["bash", "dpkg", "gcc", "libc6"]
    gcc = found.debs[2]
    # Whatever mirror it was made with, it names Debian's own.
    assert gcc.url == "http://deb.debian.org/debian/pool/main/gcc_1-1_amd64.deb"
    assert (gcc.version, gcc.size, gcc.kind, gcc.filename) == (
        "1-1", 7, "deb", "gcc_1-1_amd64.deb"
    )
    assert gcc.sha256 == hashlib.sha256(b"gcc").hexdigest()
    assert found.sha256 == hashlib.sha256(locked.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"gcc", "bash"', '"gcc", "bash", "zsh"', "packages only in the matrix: zsh"),
        ('"gcc", "bash"', '"gcc"', "packages only in the lock: bash"),
        ('suite = "trixie"', 'suite = "forky"', "suite: the matrix says forky, the lock trixie"),
    ],
)
def test_stale(make_project, locked: Path, old: str, new: str, why: str) -> None:
    with pytest.raises(LockError, match="does not match") as caught:
        oslock.read_base(make_project((old, new)), "debian")
    assert caught.value.why == why


def test_order_of_packages_in_the_matrix_does_not_matter(make_project, locked: Path) -> None:
    assert oslock.read_base(make_project(('"gcc", "bash"', '"bash", "gcc"')), "debian").debs


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines, "what is this"],
        lambda lines: [*lines[:-1], lines[-1][1:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:4], *reversed(lines[4:])],
        lambda lines: lines[:4],
        lambda lines: [*lines[:-1], lines[-1].replace("http://", "file://")],
    ],
)
def test_damaged(project: Project, locked: Path, damage) -> None:
    locked.write_text("\n".join(damage(locked.read_text().splitlines())) + "\n")
    with pytest.raises(LockError, match="damaged") as caught:
        oslock.read_base(project, "debian")
    assert (caught.value.where or "").startswith("locks/bases/debian.txt")


def test_not_text_and_not_there(project: Project, locked: Path) -> None:
    locked.write_bytes(b"\xff\xfe")
    with pytest.raises(LockError, match="damaged"):
        oslock.read_base(project, "debian")
    locked.unlink()
    with pytest.raises(LockError, match="not locked"):
        oslock.read_base(project, "debian")


def test_only_bootstrap_bases(project: Project) -> None:
    with pytest.raises(MatrixError) as caught:
        oslock.read_base(project, "cuda")
    assert caught.value.why == "its kind is 'registry'"
    assert caught.value.remedy == "name one of debian"
    with pytest.raises(MatrixError, match="zzz"):
        oslock.read_base(project, "zzz")


def test_committed_base_lock() -> None:
    found = oslock.read_base(Project(ROOT / "matrix.toml"), "debian-trixie")
    assert {"libc6", "dpkg", "python3", "g++"} <= {d.name for d in found.debs}
