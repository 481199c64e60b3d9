"""Sdists: built once, to the same bytes everywhere, and locked by the hash of the wheel."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from envspec import uvtool
from envspec.console import Console
from envspec.errors import BuildError, IntegrityError
from envspec.fetch import path_of
from envspec.lock import Artifact
from envspec.paths import cache_dir
from envspec.plan import SOURCE_DATE_EPOCH

#: What makes a build repeatable: setuptools writes sets of extras in hash order, and deepspeed
#: writes the day into its version unless DS_BUILD_STRING is set. DS_BUILD_OPS=0: operators are
#: compiled at first use, on the machine that has the GPU.
_ENV = {
    "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH),
    "PYTHONHASHSEED": "0",
    "DS_BUILD_OPS": "0",
    "DS_BUILD_STRING": "",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}


def wheel_of(artifact: Artifact) -> Artifact:
    """The wheel that an sdist builds to, as an artifact of its own (file name as built)."""
    return replace(
        artifact,
        kind="wheel",
        filename=f"{artifact.name.replace('-', '_')}-{artifact.version}-py3-none-any.whl",
        sha256=artifact.wheel_sha256,
    )


def build(artifact: Artifact, cutoff: datetime, console: Console) -> Artifact:
    """Build a fetched sdist; the wheel is kept among the downloads.

    Build requirements are resolved as of the cut-off. Only pure wheels: anything compiled
    belongs into a source component of the matrix.

    Returns:
        The artifact with ``wheel_sha256`` as built.

    Raises:
        BuildError: the build fails or makes no pure wheel.
        IntegrityError: the lock names the wheel's hash and the build gave another.
    """
    if artifact.wheel_sha256 and path_of(wheel_of(artifact)).exists():
        return artifact
    remedy = "pin a release that has a wheel, or make it a source component of the matrix"
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sdist-", dir=cache_dir()) as folder:
        console.run(
            [
                uvtool.binary(), "build", "--wheel", "--out-dir", folder,
                "--exclude-newer", cutoff.isoformat(), path_of(artifact),
            ],
            error=BuildError,
            what=f"the sdist {artifact.filename} does not build",
            remedy=remedy,
            env=uvtool.environment(cache_dir(), **_ENV),
        )
        built = list(Path(folder).glob("*.whl"))
        expected = wheel_of(artifact).filename
        if [w.name for w in built] != [expected]:
            raise BuildError(
                f"the sdist {artifact.filename} builds to no pure wheel",
                where=artifact.name,
                why=f"{', '.join(w.name for w in built)} was built, not {expected}",
                remedy=remedy,
            )
        sha256 = hashlib.sha256(built[0].read_bytes()).hexdigest()
        if artifact.wheel_sha256 not in ("", sha256):
            raise IntegrityError(
                f"{artifact.filename} built to another wheel than the locked one",
                where=artifact.name,
                why=f"its sha256 is {sha256}, the lock says {artifact.wheel_sha256}",
                remedy="a build requirement changed: `python build.py lock --upgrade "
                f"{artifact.name}` and read the difference",
            )
        done = replace(artifact, wheel_sha256=sha256)
        path = path_of(wheel_of(done))
        path.parent.mkdir(parents=True, exist_ok=True)
        built[0].replace(path)
    return done
