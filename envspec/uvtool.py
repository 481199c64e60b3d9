"""uv, from this program's own environment."""

from __future__ import annotations

import os
from pathlib import Path

import uv

#: Settings of the caller's uv that would change what a lock holds; where packages come from
#: (UV_DEFAULT_INDEX, UV_INDEX_URL…) stays the caller's, for hashes decide.
_IGNORED = ("UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION", "UV_CONSTRAINT", "UV_OVERRIDE")


def binary() -> str:
    """Path of the uv executable."""
    return uv.find_uv_bin()


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Environment in which uv reads no user settings and keeps its cache below ours."""
    env = {k: v for k, v in os.environ.items() if k not in _IGNORED}
    env |= {"UV_NO_CONFIG": "1", "UV_CACHE_DIR": str(cache / "uv"), "UV_NO_PROGRESS": "1"}
    return env | more
