from __future__ import annotations

import base64
import hashlib
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, PackagePath, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITE = Path(sysconfig.get_path("purelib"))
REBUILD = "`python build.py clean --all`, then build again"
SHOWN = 10


@pytest.fixture(scope="module")
def installed() -> list[Distribution]:
    return list(distributions(path=[str(SITE)]))


def some(lines: list[str]) -> str:
    more = f"\nand {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "\n".join(lines[:SHOWN]) + more


@pytest.mark.remedy(REBUILD)
@pytest.mark.report("https://github.com/aws/deep-learning-containers/issues/900")
def test_exactly_the_lock(plan: dict[str, Any], installed: list[Distribution]) -> None:
    """A package that is missing, extra, twice, or of another version than the locked one."""
    count = Counter(canonicalize_name(d.name) for d in installed)
    versions = {canonicalize_name(d.name): d.version for d in installed}
    wrong = [f"{name} is there {n} times" for name, n in sorted(count.items()) if n > 1]
    for name in sorted(plan["lock"].keys() | versions.keys()):
        locked, found = plan["lock"].get(name), versions.get(name)
        if locked is None:
            wrong.append(f"{name} {found} is not in the lock")
        elif found is None:
            wrong.append(f"{name} {locked} is locked and not installed")
        elif found.partition("+")[0] != locked.partition("+")[0]:
            wrong.append(f"{name} is {found}, locked is {locked}")
    if wrong:
        pytest.fail(some(wrong), pytrace=False)


@pytest.mark.remedy(REBUILD)
def test_every_file_as_its_wheel_has_it(installed: list[Distribution]) -> None:
    """A file that was changed, emptied or lost after its wheel was made.

    Files that two wheels both bring differ from the RECORD of one of them: one match is enough.
    """
    wanted: dict[Path, list[PackagePath]] = {}
    for distribution in installed:
        for file in distribution.files or ():
            if file.hash and file.hash.mode == "sha256":
                wanted.setdefault(Path(os.path.normpath(SITE / file)), []).append(file)

    def fault(item: tuple[Path, list[PackagePath]]) -> str | None:
        path, records = item
        try:
            with path.open("rb") as data:
                digest = hashlib.file_digest(data, "sha256").digest()
        except OSError as error:
            return f"{path}: {error.strerror}"
        found = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if found in (r.hash.value for r in records if r.hash):
            return None
        return f"{path} is not the file that {records[0].dist.name} came with"

    with ThreadPoolExecutor() as pool:
        wrong = sorted(line for line in pool.map(fault, wanted.items()) if line)
    assert len(wanted) > 1000
    if wrong:
        pytest.fail(some(wrong), pytrace=False)


@pytest.mark.remedy("pin versions that agree, or write an override with its probe into the matrix")
@pytest.mark.report("https://github.com/vllm-project/vllm/issues/35462")
def test_requirements_are_met(plan: dict[str, Any], installed: list[Distribution]) -> None:
    """A requirement of an installed package that no override of the matrix breaks on purpose."""
    versions = {canonicalize_name(d.name): d.version for d in installed}
    excused = {(o["breaks"], canonicalize_name(Requirement(o["requirement"]).name))
               for o in plan["overrides"]}
    wrong = []
    for distribution in installed:
        name = canonicalize_name(distribution.name)
        for text in distribution.requires or ():
            need = Requirement(text)
            wanted = canonicalize_name(need.name)
            applies = need.marker is None or need.marker.evaluate({"extra": ""})
            if not applies or (name, wanted) in excused:
                continue
            found = versions.get(wanted)
            if found is None:
                wrong.append(f"{name} needs {text}, which is not installed")
            elif not need.specifier.contains(found, prereleases=True):
                wrong.append(f"{name} needs {text}, and {found} is installed")
    if wrong:
        pytest.fail(some(sorted(wrong)), pytrace=False)


def tree(*roots: str) -> Iterator[os.DirEntry[str]]:
    """Every entry below the roots that this user may see."""
    stack = list(roots)
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except PermissionError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            yield entry


@pytest.mark.remedy("remove it in the template or the base that brings it")
def test_nobody_else_can_write() -> None:
    """A file or folder of the image that every user may change, or a setuid program in /opt."""
    wrong = []
    for entry in tree("/opt", "/usr", "/etc"):
        if entry.is_symlink():
            continue
        mode = entry.stat(follow_symlinks=False).st_mode
        if mode & stat.S_IWOTH:
            wrong.append(f"{entry.path} is writable by everyone")
        if mode & (stat.S_ISUID | stat.S_ISGID) and entry.is_file() and entry.path[:5] == "/opt/":
            wrong.append(f"{entry.path} is setuid")
    if wrong:
        pytest.fail(some(sorted(wrong)), pytrace=False)
