"""How much disk a folder takes."""

from __future__ import annotations

import subprocess
from pathlib import Path


def used(folder: Path) -> int:
    """Bytes that a folder takes on its own filesystem; 0 when it is not there.

    ``du`` because it counts hard links once and leaves out what is mounted inside.
    """
    if not folder.exists():
        return 0
    # It exits non-zero when a file vanishes meanwhile, and still prints the sum.
    argv = ["du", "-sxB1", str(folder)]
    out = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return int(out.split()[0]) if out else 0
