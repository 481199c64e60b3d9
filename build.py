#!/usr/bin/env python3
"""Thin entry point: prepares its own environment (`.venv`) on a bare Python 3.11 or newer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PYTHON = ROOT / ".venv" / "bin" / "python"
STAMP = ROOT / ".venv" / "ready"


def prepare() -> None:
    """Make the environment of pyproject.toml when it is missing or older than that file."""
    wanted = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", ROOT / ".venv"], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "uv"], check=True)
    uv = ROOT / ".venv" / "bin" / "uv"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", PYTHON, "-r", ROOT / "pyproject.toml",
         "--group", f"{ROOT / 'pyproject.toml'}:dev"],
        check=True,
    )
    STAMP.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    prepare()
    if sys.argv[1:] != ["test"]:
        sys.exit("usage: python build.py test (the other commands are not there yet)")
    os.chdir(ROOT)
    for check in (["ruff", "check", "."], ["mypy"], ["pytest", "tests/unit"]):
        if code := subprocess.run([PYTHON, "-m", *check], check=False).returncode:
            sys.exit(code)
