"""Locks: what is written is read again, and stale or damaged ones are refused."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envspec import lock, resolve
from envspec.errors import LockError
from envspec.lock import Artifact, Lock
from envspec.matrix import Project

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., Artifact]


@pytest.fixture
def artifacts(artifact: Make) -> tuple[Artifact, ...]:
    wheel = artifact("torch", b"t", version="2.10.0")
    sdist = replace(
        artifact("deepspeed"), kind="sdist", filename="d-1.tar.gz", wheel_sha256="b" * 64
    )
    git = Artifact("vllm", "1", "git", "", "https://example.invalid/v.git@" + "c" * 40, "", 0, "")
    return sdist, wheel, git


def write(project: Project, artifacts: tuple[Artifact, ...]) -> Path:
    path = project.lock_path("new", "cpu")
    lock.write(path, lock.inputs(project, "new", "cpu"), artifacts)
    return path


def test_round_trip(project: Project, artifacts: tuple[Artifact, ...]) -> None:
    path = write(project, artifacts)
    first = path.read_bytes()
    found = lock.read(project, "new", "cpu")
    assert found.artifacts == artifacts
    assert found.sha256 == hashlib.sha256(first).hexdigest()
    write(project, artifacts)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["pylock.toml"]


def test_pep_751_shape(project: Project, artifacts: tuple[Artifact, ...]) -> None:
    document = tomllib.loads(write(project, artifacts).read_text())
    assert document["lock-version"] == "1.0"
    sdist, wheel, git = document["packages"]
    assert sdist["sdist"]["hashes"] == {"sha256": artifacts[0].sha256}
    assert wheel["wheels"][0]["url"] == artifacts[1].url
    assert git["vcs"]["commit-id"] == "c" * 40


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('version = "2.10.0"', 'version = "2.10.1"',
         "components.torch.version: the lock has 2.10.0, the matrix 2.10.1"),
        ('python = "3.13"', 'python = "3.11"', "python: the lock has 3.13, the matrix 3.11"),
        ("cutoff = 2026-04-13", "cutoff = 2026-05-01", "cutoff: the lock has 2026-04-13"),
        ('"numpy==2.0"', '"numpy==2.1"', "overrides: the lock has ['numpy==2.0']"),
        ("[rows.new.components.vllm]", "[rows.new.components.extra]",
         "components.extra: the lock has None"),
    ],
)
def test_stale_lock_says_which_key_changed(
    make_project, artifacts: tuple[Artifact, ...], old: str, new: str, line: str
) -> None:
    write(make_project(), artifacts)
    changes = [(old, new)]
    if "extra" in new:
        changes.append(('breaks = "vllm"', 'breaks = "torch"'))
    project = make_project(*changes)
    with pytest.raises(LockError) as caught:
        lock.read(project, "new", "cpu")
    assert caught.value.where == "locks/new/cpu/pylock.toml"
    assert line in (caught.value.why or "")
    assert "lock" in caught.value.remedy
    stale = lock.read_or_none(project, "new", "cpu")
    assert stale and stale.artifacts == artifacts


def test_titles_and_reasons_do_not_stale_a_lock(make_project, artifacts) -> None:
    write(make_project(), artifacts)
    project = make_project(("a reason that is long", "another reason that is long"))
    assert lock.read(project, "new", "cpu").artifacts == artifacts


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2] + b'x = "',
        lambda text: text.replace(b"[tool.envspec", b"[tool.other"),
        lambda text: text.replace(b"sha256 =", b"md5 ="),
        lambda text: text + b"\xff",
        lambda text: b"packages = 3\n[tool.envspec]\n",
        lambda text: b'packages = []\n[tool]\nenvspec = "x"\n',
        lambda text: b'lock-version = "1.0"\ntool = 1\npackages = []\n',
    ],
)
def test_damaged_lock(project: Project, artifacts: tuple[Artifact, ...], damage) -> None:
    path = write(project, artifacts)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(LockError) as caught:
        lock.read(project, "new", "cpu")
    assert "can't be read" in caught.value.what
    assert "git checkout locks/new/cpu/pylock.toml" in caught.value.remedy


def test_missing_lock(project: Project) -> None:
    with pytest.raises(LockError, match="has no lock"):
        lock.read(project, "new", "cpu")


def test_committed_locks_match_the_committed_matrix() -> None:
    project = Project(ROOT / "matrix.toml")
    for row, target in project.pairs():
        found = lock.read(project, row, target)
        names = [a.name for a in found.artifacts]
        assert names == sorted(set(names))
        assert set(project.row(row).components_for(target)) <= set(names)


# ── resolve.difference ────────────────────────────────────────────────────────────────────────────


def lock_of(*artifacts: Artifact) -> Lock:
    return Lock("new", "cpu", Path("pylock.toml"), artifacts, "")


def test_difference(artifact: Make) -> None:
    old = lock_of(artifact("gone"), artifact("same"), artifact("up"), artifact("file", b"1"))
    new = lock_of(
        artifact("come"), artifact("same"), artifact("up", version="1.1"), artifact("file", b"2")
    )
    assert resolve.difference(old, new) == [
        "+ come 1.0",
        "~ file 1.0: another file (file-1.0-py3-none-any.whl)",
        "- gone 1.0",
        "~ up 1.0 → 1.1",
    ]
    assert resolve.difference(new, new) == []
    assert resolve.difference(None, lock_of(artifact("a"))) == ["+ a 1.0"]
