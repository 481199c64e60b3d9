"""Docker and its companions from Debian's packages, in a private prefix, without installing."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envspec import apt, fetch
from envspec.console import Console
from envspec.errors import EngineError
from envspec.paths import cache_dir

#: Package → suite. Debian 13's programs run from glibc 2.34 on, but for runc, which wants 2.38.
PACKAGES = {
    "containerd": "trixie",
    "cosign": "trixie",
    "docker-buildx": "trixie",
    "docker-cli": "trixie",
    "docker-compose": "trixie",
    "docker-registry": "trixie",
    "docker.io": "trixie",
    "oras": "trixie",
    "runc": "bookworm",
}
#: The programs whose libraries the host must have.
PROGRAMS = (
    "usr/bin/containerd", "usr/bin/cosign", "usr/bin/docker", "usr/bin/docker-registry",
    "usr/bin/oras", "usr/sbin/dockerd", "usr/sbin/runc",
)
#: In the prefix: what was unpacked, one ``name version`` a line.
MANIFEST = "packages.txt"


def prefix() -> Path:
    """Where the tools lie once ``tools`` made them."""
    return cache_dir() / "tools"


def tools(console: Console) -> Path:
    """The prefix (it holds ``usr/bin`` and so on), made when it is not there yet.

    A prefix that is there is kept, whatever newer versions Debian has.

    Raises:
        UnavailableError: the mirror does not serve a package.
        IntegrityError: a signature or hash is wrong.
        EngineError: this machine can't unpack or run Debian's programs.
    """
    folder = prefix()
    if _complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "tools.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _complete(folder):
            with console.stage("Debian's container tools"):
                _make(folder, console)
    return folder


def _complete(prefix: Path) -> bool:
    manifest = prefix / MANIFEST
    if not manifest.exists():
        return False
    return {line.split()[0] for line in manifest.read_text().splitlines()} == set(PACKAGES)


def _make(prefix: Path, console: Console) -> None:
    suites = {name: apt.Suite.read(name, console) for name in sorted(set(PACKAGES.values()))}
    debs = [suites[suite][name] for name, suite in PACKAGES.items()]
    files = fetch.fetch([deb.artifact() for deb in debs], console)
    folder = Path(tempfile.mkdtemp(prefix=".tools-", dir=prefix.parent))
    try:
        new, old = folder / "new", folder / "old"
        new.mkdir()

        def unpack(deb: apt.Deb) -> None:
            console.run(
                ["dpkg-deb", "--extract", files[deb.sha256], new], error=EngineError,
                what=f"{deb.filename} can't be unpacked",
                remedy="on a system without dpkg, install Docker and name it by DOCKER_HOST",
            )

        with ThreadPoolExecutor() as pool:
            list(pool.map(unpack, debs))
        if unmet := [line for name in PROGRAMS for line in unmet_libraries(new / name)]:
            raise EngineError(
                "Debian's programs do not run on this system", why="\n".join(sorted(set(unmet))),
                remedy="apt-get install libseccomp2 libsystemd0; glibc must be 2.34 or newer; "
                "or install Docker and name it by DOCKER_HOST",
            )
        (new / MANIFEST).write_text("".join(f"{d.name} {d.version}\n" for d in debs))
        if prefix.exists():
            prefix.replace(old)
        new.replace(prefix)
    finally:
        shutil.rmtree(folder)


def unmet_libraries(program: Path) -> list[str]:
    """What the loader of this system misses for a program: libraries, or versions of them."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return [f"{program.name}: {re.sub(r'^.*: ', '', line.strip())}"
            for line in lines if "not found" in line]
