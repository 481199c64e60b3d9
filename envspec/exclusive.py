"""One build at a time in a cache, and what a killed one left is swept away."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from envspec.console import Console
from envspec.paths import cache_dir

#: Names of unfinished work, by folder below the cache: nobody else works while the lock is held.
LEFTOVERS = (
    "base-*", "sdist-*", "buildx-*", ".tools-*", "layout/.partial-*", "downloads/*/*/.partial-*",
    "layers/*.partial", "verdicts/*.partial",
)


@contextmanager
def exclusive(console: Console) -> Iterator[None]:
    """Hold the cache's lock. The kernel frees it with the process, however that ends."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "build.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            console.say(f"another build.py (process {file.read().strip()}) works in {folder}: "
                        "waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        sweep()
        yield


def sweep() -> None:
    """Remove what an interrupted build left unfinished. Only while the lock is held."""
    for pattern in LEFTOVERS:
        for path in cache_dir().glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
