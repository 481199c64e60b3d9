"""Locks: every artifact of a row × target, and of a bootstrap base, with its hash."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from envspec.errors import LockError
from envspec.matrix import Project

REMEDY = "run `python build.py lock` and commit what it writes"


@dataclass(frozen=True)
class Artifact:
    """One file (or commit) that a lock pins.

    ``sha256`` is hex without a prefix and empty for ``git``, where ``url`` ends in
    ``@<commit>``. ``size`` is in bytes, 0 when unknown. ``wheel_sha256`` is, for an sdist,
    the hash of the wheel that it builds to; otherwise it equals ``sha256``.
    """

    name: str
    version: str
    kind: Literal["wheel", "sdist", "git", "deb"]
    filename: str
    url: str
    sha256: str
    size: int
    wheel_sha256: str


@dataclass(frozen=True)
class Lock:
    """A committed lock, read and found to match the matrix."""

    row: str
    target: str
    path: Path
    artifacts: tuple[Artifact, ...]
    #: sha256 (hex) of the file's bytes: the identity of the environment.
    sha256: str


@dataclass(frozen=True)
class BaseLock:
    """The locked packages of a bootstrap base."""

    base: str
    path: Path
    debs: tuple[Artifact, ...]
    sha256: str


def inputs(project: Project, row: str, target: str) -> dict[str, Any]:
    """What a lock was resolved from; kept in it, so that a stale lock can say what changed."""
    components = project.row_for(row, target).components_for(target)
    return {
        "row": row,
        "target": target,
        "python": project.row(row).python,
        "cutoff": project.cutoff.isoformat(),
        "components": {
            name: {"version": c.version, **c.source.model_dump(mode="json")}
            for name, c in components.items()
        },
        "overrides": [o.requirement for o in project.row(row).targets[target].overrides],
    }


def write(path: Path, made_from: dict[str, Any], artifacts: Sequence[Artifact]) -> None:
    """Write a PEP 751 lock; what PEP 751 has no key for stands under ``tool.envspec``."""
    packages = []
    for a in artifacts:
        package: dict[str, Any] = {"name": a.name, "version": a.version}
        file = {"url": a.url, "size": a.size, "hashes": {"sha256": a.sha256}}
        if a.kind == "git":
            url, commit = a.url.rsplit("@", 1)
            package["vcs"] = {"type": "git", "url": url, "commit-id": commit}
        elif a.kind == "sdist":
            package["sdist"] = {"name": a.filename, **file}
            package["tool"] = {"envspec": {"wheel-sha256": a.wheel_sha256}}
        else:
            package["wheels"] = [{"name": a.filename, **file}]
        packages.append(package)
    document = {
        "lock-version": "1.0",
        "created-by": "envspec",
        "requires-python": f"=={made_from['python']}.*",
        "packages": packages,
        "tool": {"envspec": made_from},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(
        "# Written by `python build.py lock`; not to be edited.\n" + tomli_w.dumps(document),
        encoding="utf-8",
    )
    partial.replace(path)


def read(project: Project, row: str, target: str) -> Lock:
    """Read the committed lock of a row × target.

    Raises:
        LockError: there is none, it can't be read, or the matrix has changed since.
    """
    found, made_from = _load(project, row, target)
    if changes := _changes(made_from, inputs(project, row, target)):
        raise LockError(
            f"the lock of row {row} for target {target} does not match the matrix",
            where=found.path.relative_to(project.root).as_posix(), why="\n".join(changes),
            remedy=REMEDY,
        )
    return found


def read_or_none(project: Project, row: str, target: str) -> Lock | None:
    """A lock that is about to be replaced, stale or not; None when it can't be read."""
    try:
        return _load(project, row, target)[0]
    except LockError:
        return None


def check_unused(project: Project) -> None:
    """Compare the locks that are there with those that the matrix uses.

    Raises:
        LockError: names those of no row × target and of no base.
    """
    folder = project.root / "locks"
    used = {project.lock_path(row, target) for row, target in project.pairs()}
    used |= {project.base_lock_path(base) for base in project.matrix.bases}
    there = {*folder.glob("*/*/pylock.toml"), *folder.glob("bases/*.txt")}
    if unused := sorted(p.relative_to(project.root).as_posix() for p in there - used):
        raise LockError(
            f"{len(unused)} locks are not used", where="\n".join(unused),
            why="no row × target or base of the matrix has them",
            remedy="remove them: git rm -r " + " ".join(
                path.removesuffix("/pylock.toml") for path in unused
            ),
        )


def _load(project: Project, row: str, target: str) -> tuple[Lock, dict[str, Any]]:
    """A lock as it lies there, and what it says it was made from."""
    path = project.lock_path(row, target)
    where = path.relative_to(project.root).as_posix()
    try:
        raw = path.read_bytes()
        document = tomllib.loads(raw.decode())
        made_from = dict(document["tool"]["envspec"])
        artifacts = tuple(_artifact(p) for p in document["packages"])
    except FileNotFoundError:
        raise LockError(
            f"row {row} has no lock for target {target}", where=where, remedy=REMEDY
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise LockError(
            "a lock can't be read", where=where, why=f"{type(error).__name__}: {error}",
            remedy=f"`git checkout {where}`, or {REMEDY}",
        ) from None
    return Lock(row, target, path, artifacts, hashlib.sha256(raw).hexdigest()), made_from


def _artifact(package: dict[str, Any]) -> Artifact:
    name, version = package["name"], package["version"]
    if vcs := package.get("vcs"):
        return Artifact(name, version, "git", "", f"{vcs['url']}@{vcs['commit-id']}", "", 0, "")
    kind: Literal["wheel", "sdist"] = "sdist" if "sdist" in package else "wheel"
    file = package["sdist"] if kind == "sdist" else package["wheels"][0]
    sha256 = file["hashes"]["sha256"]
    built = package["tool"]["envspec"]["wheel-sha256"] if kind == "sdist" else sha256
    return Artifact(name, version, kind, file["name"], file["url"], sha256, file["size"], built)


def _changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Keys that differ, a line each, in the matrix's words."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += _changes(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: the lock has {a}, the matrix {b}")
    return lines
