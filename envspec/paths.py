"""Where this program keeps what it makes: one private cache directory, nothing elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

#: The checkout this package lies in.
CHECKOUT = Path(__file__).resolve().parent.parent


def cache_dir() -> Path:
    """``$ENVSPEC_CACHE``, else ``envspec`` under the XDG cache directory."""
    if explicit := os.environ.get("ENVSPEC_CACHE"):
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "envspec"
