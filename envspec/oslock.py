"""Locks of bootstrap bases: every Debian package of a root, as committed text."""

from __future__ import annotations

import hashlib
import re

from envspec.apt import Suite
from envspec.console import Console
from envspec.errors import LockError, MatrixError
from envspec.lock import Artifact, BaseLock
from envspec.matrix import BootstrapBase, Project

REMEDY = "`python build.py lock`, then commit the file"

_LINE = re.compile(r"([0-9a-f]{64})  ([0-9]+)  ([a-z0-9][a-z0-9+.-]+)  (\S+)  (https?://\S+\.deb)")


def lock_base(project: Project, base: str, console: Console) -> BaseLock:
    """Resolve a base's packages, with all Essential ones, and write ``locks/bases/BASE.txt``.

    Raises:
        MatrixError: there is no such bootstrap base.
        UnavailableError, IntegrityError: as ``Suite.read`` and ``Suite.closure``.
    """
    spec = _spec(project, base)
    suite = Suite.read(spec.suite, console)
    debs = suite.closure([*suite.essential(), *spec.packages])
    lines = [f"# {line}".rstrip() for line in _header(base, spec)]
    lines += [f"{d.sha256}  {d.size}  {d.name}  {d.version}  {d.official_url}" for d in debs]
    path = project.base_lock_path(base)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_base(project, base)


def read_base(project: Project, base: str) -> BaseLock:
    """The committed lock of a bootstrap base.

    Raises:
        MatrixError: there is no such bootstrap base.
        LockError: the file is missing, damaged, or made for another suite or other packages.
    """
    spec = _spec(project, base)
    path = project.base_lock_path(base)
    where = str(path.relative_to(project.root))
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8").splitlines()
    except FileNotFoundError:
        raise LockError(f"base {base} is not locked", where=where, remedy=REMEDY) from None
    except UnicodeDecodeError as error:
        raise LockError(
            f"the lock of base {base} is damaged", where=where, why=str(error), remedy=REMEDY
        ) from None
    if changes := _changes(lines, spec):
        raise LockError(
            f"the lock of base {base} does not match the matrix",
            where=where,
            why="\n".join(changes),
            remedy=REMEDY,
        )
    debs = tuple(
        _artifact(line, f"{where}:{number}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    )
    names = [deb.name for deb in debs]
    if not names or names != sorted(set(names)):
        raise LockError(
            f"the lock of base {base} is damaged", where=where,
            why="its packages are not each there once, in order", remedy=REMEDY,
        )
    return BaseLock(base, path, debs, hashlib.sha256(data).hexdigest())


def _spec(project: Project, base: str) -> BootstrapBase:
    spec = project.matrix.bases.get(base)
    if isinstance(spec, BootstrapBase):
        return spec
    kinds = {name: b.kind for name, b in project.matrix.bases.items()}
    bootstraps = [name for name, kind in kinds.items() if kind == "bootstrap"]
    raise MatrixError(
        f"{base!r} is not a base that is made of Debian packages",
        where=f"{project.matrix_path.name}: bases",
        why=f"its kind is {kinds[base]!r}" if base in kinds else "there is no such base",
        remedy=f"name one of {', '.join(bootstraps)}" if bootstraps
        else 'add a base of kind = "bootstrap"',
    )


def _header(base: str, spec: BootstrapBase) -> list[str]:
    return [
        f"Every Debian package of the base {base}. Made by `python build.py lock`; do not edit.",
        "sha256  bytes  name  version  url",
        f"suite: {spec.suite}",
        f"packages: {' '.join(sorted(spec.packages))}",
    ]


def _changes(lines: list[str], spec: BootstrapBase) -> list[str]:
    """What the matrix asks for that the lock was not made for, one line each."""
    found = dict(line[2:].split(": ", 1) for line in lines if re.match(r"# \w+: ", line))
    suite, packages = found.get("suite"), set(found.get("packages", "").split())
    changes = []
    if suite != spec.suite:
        changes.append(f"suite: the matrix says {spec.suite}, the lock {suite}")
    if added := sorted(set(spec.packages) - packages):
        changes.append(f"packages only in the matrix: {', '.join(added)}")
    if removed := sorted(packages - set(spec.packages)):
        changes.append(f"packages only in the lock: {', '.join(removed)}")
    return changes


def _artifact(line: str, where: str) -> Artifact:
    found = _LINE.fullmatch(line)
    if not found:
        raise LockError(
            "a line of the lock is damaged", where=where,
            why="it is not: sha256  bytes  name  version  url", remedy=REMEDY,
        )
    sha256, size, name, version, url = found.groups()
    return Artifact(
        name=name, version=version, kind="deb", filename=url.rsplit("/", 1)[-1], url=url,
        sha256=sha256, size=int(size), wheel_sha256=sha256,
    )
