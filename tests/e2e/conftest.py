"""End-to-end tests: a real engine in the cache of $ENVSPEC_CACHE, or in the default one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from envspec import debian, engine, registry  # noqa: E402
from envspec.console import Console  # noqa: E402
from envspec.paths import cache_dir  # noqa: E402


@pytest.fixture(scope="session")
def console() -> Console:
    return Console()


@pytest.fixture(scope="session")
def cache(console: Console) -> Iterator[Path]:
    """The cache with Debian's tools in it; what ran before runs afterwards, and nothing else."""
    if os.geteuid():
        pytest.skip("the embedded engine needs root")
    layout = engine._layout()
    ran = layout.daemon().pid() is not None, registry.status().running
    debian.tools(console)
    yield cache_dir()
    if ran[0]:
        engine.start(console)
    else:
        engine.stop(console)
    if not ran[1]:
        registry.stop(console)


@pytest.fixture
def running(cache: Path, console: Console) -> engine.Engine:
    """The embedded engine, started unless it runs."""
    return engine.start(console)
