"""Resolution: uv chooses every version, and the choice is written down with its hashes."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from envspec import sdist, uvtool
from envspec.console import Console
from envspec.errors import LockError
from envspec.fetch import fetch
from envspec.lock import Artifact, Lock, inputs, read, write
from envspec.matrix import Component, GitSource, IndexSource, Override, Project, UrlSource
from envspec.paths import cache_dir

#: glibc of the oldest base (Ubuntu 24.04).
GLIBC = (2, 39)


def resolve(
    project: Project, row: str, target: str, console: Console, upgrade: Sequence[str] = ()
) -> Lock:
    """Lock a row × target; versions of the committed lock are kept where they still fit.

    Args:
        upgrade: packages that may change though their locked version fits.

    Raises:
        LockError: the requirements contradict each other, or a package has no wheel and no
            sdist for the row's Python.
    """
    path = project.lock_path(row, target)
    components = project.row_for(row, target).components_for(target)
    python = project.row(row).python
    pins = project.row(row).targets[target].overrides
    with tempfile.TemporaryDirectory(prefix="envspec-") as name:
        folder = Path(name)
        (folder / "requirements.in").write_text("\n".join(_requirements(components)))
        (folder / "overrides.txt").write_text("\n".join(o.requirement for o in pins))
        out = folder / "pylock.toml"
        if path.exists():  # uv keeps the versions that it finds in its output file
            out.write_bytes(path.read_bytes())
        argv = [
            uvtool.binary(), "pip", "compile", "--quiet", "--format", "pylock.toml",
            "--generate-hashes", "--python-version", python,
            "--python-platform", f"x86_64-manylinux_{GLIBC[0]}_{GLIBC[1]}",
            "--exclude-newer", project.cutoff.isoformat(),
            "--overrides", str(folder / "overrides.txt"), "--output-file", str(out),
            *(f"--upgrade-package={p}" for p in upgrade),
            str(folder / "requirements.in"),
        ]
        console.log("$ " + " ".join(argv))
        done = subprocess.run(
            argv, env=uvtool.environment(cache_dir()), capture_output=True, text=True, check=False
        )
        if done.returncode:
            console.log(done.stderr)
            raise explain(project, row, target, done.stderr)
        packages = tomllib.loads(out.read_text())["packages"]
    artifacts = [_artifact(p, python, f"{row} × {target}") for p in packages]
    artifacts += [
        Artifact(n, c.version, "git", "", f"{c.source.url}@{c.source.commit}", "", 0, "")
        for n, c in components.items()
        if isinstance(c.source, GitSource)
    ]
    artifacts = [_built(a, project, console) for a in artifacts]
    write(path, inputs(project, row, target), sorted(artifacts, key=lambda a: a.name))
    return read(project, row, target)


def difference(old: Lock | None, new: Lock) -> list[str]:
    """What changed, a line each: ``~ name 1.0 → 1.1``, ``+ name 1.0``, ``- name 1.0``."""
    before = {a.name: a for a in old.artifacts} if old else {}
    after = {a.name: a for a in new.artifacts}
    lines = []
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a and b and a.version != b.version:
            lines.append(f"~ {name} {a.version} → {b.version}")
        elif a and b and a.wheel_sha256 != b.wheel_sha256:
            lines.append(f"~ {name} {a.version}: another file ({b.filename})")
        elif a and not b:
            lines.append(f"- {name} {a.version}")
        elif b and not a:
            lines.append(f"+ {name} {b.version}")
    return lines


def _requirements(components: dict[str, Component]) -> list[str]:
    """What uv is asked for. A commit stands for the requirements that the matrix gives it."""
    lines: list[str] = []
    for name, component in components.items():
        match component.source:
            case IndexSource():
                lines.append(f"{name}=={component.version}")
            case UrlSource(url=url, sha256=sha256):
                lines.append(f"{name} @ {url}#sha256={sha256}")
            case GitSource(requires=requires):
                lines += requires
    return lines


def _artifact(package: dict[str, Any], python: str, where: str) -> Artifact:
    """The one file of a package that an image gets."""
    wheels = package.get("wheels", [])
    if archive := package.get("archive"):
        wheels = [archive]
    interpreter = python.replace("3.", "cp3")
    platforms = [
        *(f"manylinux_{GLIBC[0]}_{minor}_x86_64" for minor in range(GLIBC[1], 4, -1)),
        "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64",
    ]
    version = (3, int(python.removeprefix("3.")))
    order = [
        *cpython_tags(version, [interpreter], platforms),
        *compatible_tags(version, interpreter, platforms),
    ]
    rank = {str(tag): i for i, tag in enumerate(order)}
    best: tuple[int, dict[str, Any]] | None = None
    for wheel in wheels:
        tags = parse_wheel_filename(_filename(wheel))[3]
        ranks = [rank[str(t)] for t in tags if str(t) in rank]
        if ranks and (best is None or min(ranks) < best[0]):
            best = (min(ranks), wheel)
    kind: Any = "wheel"
    if best:
        file = best[1]
    elif "sdist" in package:
        kind, file = "sdist", package["sdist"]
    else:
        raise LockError(
            f"{package['name']} {package.get('version', '')} has no file for Python {python}",
            where=where,
            why="neither its wheels nor an sdist fit x86_64 Linux",
            remedy="pin another version, or give the row another Python",
        )
    sha256 = file["hashes"]["sha256"]
    version_text = package.get("version") or str(parse_wheel_filename(_filename(file))[1])
    return Artifact(
        name=canonicalize_name(package["name"]),
        version=version_text,
        kind=kind,
        filename=_filename(file),
        url=file["url"],
        sha256=sha256,
        size=file.get("size", 0),
        wheel_sha256=sha256 if kind == "wheel" else "",
    )


def _filename(file: dict[str, Any]) -> str:
    name: str = file.get("name") or file["url"].rsplit("/", 1)[-1]
    return name.split("#")[0].replace("%2B", "+")


def _built(artifact: Artifact, project: Project, console: Console) -> Artifact:
    if artifact.kind != "sdist":
        return artifact
    fetch([artifact], console)
    return sdist.build(replace(artifact, wheel_sha256=""), project.cutoff, console)


_CONFLICT = re.compile(
    r"(?P<wants>[\w.-]+(?:\[[^\]]*\])?(?:[=<>!~]=?[^\s,]+)?(?:,[=<>!~]=?[^\s,]+)*)"
    r" depends on (?P<need>[\w.-]+(?:\[[^\]]*\])?[^\s]*)"
)


def explain(project: Project, row: str, target: str, stderr: str) -> LockError:
    """uv's proof of a contradiction, in terms of the matrix.

    Names the two sides and the chain between them, the override that would allow it and the
    nearest row that has no such conflict.
    """
    proof = " ".join(stderr.split())
    proof = proof.split("cause: ")[-1].split("╰─▶ ")[-1]
    where = f"{project.matrix_path.name}: rows.{row} for target {target}"
    components = project.row(row).components_for(target)
    wanted: dict[str, str] = {
        canonicalize_name(n): f"{n}=={c.version}" for n, c in components.items()
    }
    if gone := re.search(r"there (?:is no version of|are no versions of) ([^\s,]+)", proof):
        name = canonicalize_name(Requirement(gone[1]).name)
        return LockError(
            f"no index has {gone[1]}",
            where=where,
            why=f"nothing of that version was uploaded before {project.cutoff:%Y-%m-%d}: {proof}",
            remedy=f"correct the pin of {name}, or move the cut-off of the matrix",
        )
    pins: dict[str, str] = {canonicalize_name(n): c.version for n, c in components.items()}
    edges = [(m["wants"].rstrip(",."), m["need"].rstrip(",.")) for m in _CONFLICT.finditer(proof)]
    edges = [edge for edge in edges if all(map(_is_requirement, edge))]
    clash = next(
        ((a, b) for a, b in edges if _name(b) in pins and not _meets(pins[_name(b)], b)),
        edges[-1] if edges else None,
    )
    if clash is None:
        return LockError(
            "the row's requirements contradict each other", where=where, why=proof,
            remedy=_nearest_row(project, row, target),
        )
    a, b = clash
    other = wanted.get(_name(b), "something else")
    chain = " → ".join(["row " + row, *_chain(edges, a, set(wanted)), a, b])
    if _name(b) in wanted:
        override = (
            f"an override of {_name(a)} with requirement = {other!r} would allow it, if a "
            "probe shows that it works"
        )
    else:
        override = f"an override that fixes {_name(b)} would allow it, if a probe shows it works"
    return LockError(
        f"{a} wants {b}, and the row wants {other}",
        where=where,
        why=f"chain: {chain}\n{proof}",
        remedy=f"{override}; {_nearest_row(project, row, target)}",
    )


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _meets(version: str, requirement: str) -> bool:
    return Requirement(requirement).specifier.contains(version, prereleases=True)


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _chain(edges: Sequence[tuple[str, str]], start: str, ends: set[str]) -> list[str]:
    """The way from a component of the row down to the package that conflicts."""
    above: list[str] = []
    name = _name(start)
    while name not in ends:
        parent = next((a for a, b in edges if _name(b) == name and a not in above), None)
        if parent is None:
            break
        above.insert(0, parent)
        name = _name(parent)
    return above


def _nearest_row(project: Project, row: str, target: str) -> str:
    """The other row of the target that shares most pins."""
    mine = {n: c.version for n, c in project.row(row).components_for(target).items()}
    best: tuple[int, str] | None = None
    for other in project.target(target).rows:
        theirs = {n: c.version for n, c in project.row(other).components_for(target).items()}
        same = len(mine.items() & theirs.items())
        if other != row and (best is None or same > best[0]):
            best = (same, other)
    if best is None:
        return f"target {target} has no other row"
    pins = project.row(best[1]).components_for(target)
    text = ", ".join(f"{n} {c.version}" for n, c in pins.items())
    return f"the nearest row is {best[1]} ({text})"


def override_text(override: Override) -> str:
    """One line on what an override breaks, why, and what proves it."""
    return (
        f"{override.requirement} against {override.breaks}'s own requirement: {override.reason} "
        f"(proved by {override.probe})"
    )

