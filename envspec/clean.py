"""Give disk back: what no lock needs any more, or everything that was ever made."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import requests
from docker.errors import APIError, DockerException

from envspec import assemble, disk, engine, fetch, oci, plan, registry, sdist
from envspec.console import Console, human_bytes
from envspec.errors import EnvspecError
from envspec.exclusive import exclusive
from envspec.matrix import Project
from envspec.paths import cache_dir

#: Logs that are kept.
LOGS = 20


def clean(project: Project, console: Console) -> None:
    """Remove our images from the engine, and what no current lock needs from the cache.

    Downloads, layers and the image of every current row × target stay, as does what was
    published: the next build is quick, and loads its image anew.
    """
    with exclusive(console):
        before = disk.used(cache_dir())
        _engine_images()
        plans = [plan.make(project, row, target) for row, target in project.pairs()]
        assembled = [p for p in plans if assemble.can_assemble(p)]
        keys = {key for p in assembled for key in assemble.recipes(p).values()}
        _remove(p for p in (cache_dir() / "layers").glob("*.json") if p.stem not in keys)
        oci.prune({plan.ref_name(p) for p in plans}, [b for k in keys if (b := assemble.made(k))])
        needed = [a for p in plans for a in (*p.lock.artifacts, *(p.base_lock.debs
                                                                 if p.base_lock else ()))]
        wheels = [sdist.wheel_of(a) for a in needed if a.kind == "sdist"]
        kept = {fetch.path_of(a) for a in (*needed, *wheels) if a.kind != "git"}
        _remove(p for p in (cache_dir() / "downloads").glob("*/*/*") if p not in kept)
        logs = sorted((cache_dir() / "logs").glob("*.log"))
        _remove(logs[:-LOGS])
        freed = before - disk.used(cache_dir())
        console.say(f"{human_bytes(max(freed, 0))} freed")


def clean_all(console: Console) -> None:
    """Stop our engine and registry and remove the whole cache, published images included."""
    with exclusive(console):
        engine.stop(console)
        registry.stop(console)
        freed = disk.used(cache_dir())
        for path in cache_dir().iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "build.lock":
                path.unlink()
        console.say(f"{human_bytes(freed)} freed")


def _engine_images() -> None:
    """Images that this program loaded, wherever the engine is; of ours, its build cache too."""
    status = engine.status()
    if status.kind == "none":
        return
    with suppress(EnvspecError, DockerException, requests.RequestException):
        host = engine.running()
        with closing(host.client()) as client:
            for image in client.images.list(filters={"label": ["dev.envspec.target"]}):
                with suppress(APIError):
                    client.images.remove(str(image.id), force=True)
        if host.embedded:
            subprocess.run(
                host.cli("builder", "prune", "--all", "--force"), env=host.environ(),
                capture_output=True, check=False,
            )


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        path.unlink()
        with suppress(OSError):
            path.parent.rmdir()

