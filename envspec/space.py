"""Is there enough disk? Asked before anything is made, not at 90 % of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envspec import assemble
from envspec.console import human_bytes
from envspec.errors import SpaceError
from envspec.fetch import missing
from envspec.paths import cache_dir
from envspec.plan import Plan

#: Bytes per byte of wheels. Measured on cpu and sm120 of row vllm-0.17 (4.5 and 4.9 GB of
#: wheels): layers took 0.87 and 0.90, an image unpacked in the engine 2.1 more than its layers.
LAYERS, LOADED = 0.95, 3.2
#: A root of the base, and its layer.
BASE = 700_000_000
#: What a machine needs to stay usable.
RESERVE = 1_000_000_000


@dataclass(frozen=True)
class Needs:
    """Bytes that a build will add to the disk, by what adds them."""

    downloads: int
    layers: int
    engine: int
    registry: int

    @property
    def total(self) -> int:
        return self.downloads + self.layers + self.engine + self.registry

    def __str__(self) -> str:
        return ", ".join(f"{human_bytes(n)} {name}" for name, n in vars(self).items() if n)


def needs(plan: Plan, *, probed: bool, local_engine: bool, local_registry: bool) -> Needs:
    """What is still to be written.

    Args:
        probed: there is a verdict, so the engine need not have the image.
        local_engine: the engine keeps its images on this machine.
        local_registry: the embedded registry is published to, and lacks the image.
    """
    debs = plan.base_lock.debs if plan.base_lock else ()
    wheels = sum(a.size for a in plan.lock.artifacts)
    todo: Mapping[str, str] = {}
    if assemble.can_assemble(plan):
        todo = {n: key for n, key in assemble.recipes(plan).items() if not assemble.made(key)}
    new = sum(a.size for layer in plan.layers if layer.name in todo for a in layer.artifacts)
    wanted = [a for layer in plan.layers if layer.name in todo for a in layer.artifacts]
    wanted += debs if "base" in todo else ()
    return Needs(
        downloads=sum(a.size for a in missing([a for a in wanted if a.kind != "git"])),
        layers=int(LAYERS * new) + BASE * ("base" in todo),
        engine=int(LOADED * wheels) if local_engine and not probed else 0,
        registry=int(LAYERS * wheels) if local_registry else 0,
    )


def check(wanted: Needs) -> None:
    """Compare with the free space of the cache's disk.

    Raises:
        SpaceError: it is not enough; nothing was written.
    """
    folder = _existing(cache_dir())
    free = shutil.disk_usage(folder).free
    if wanted.total and wanted.total + RESERVE > free:
        raise SpaceError(
            f"the disk has {human_bytes(free)} free and {human_bytes(wanted.total + RESERVE)} "
            "are needed", where=str(cache_dir()), why=f"this build adds {wanted}",
            remedy="free some space (`python build.py clean`), or set ENVSPEC_CACHE to a folder "
            "on a larger disk",
        )


def _existing(path: Path) -> Path:
    while not os.path.lexists(path):
        path = path.parent
    return path
