#!/usr/bin/env python3
"""Thin entry point: prepares its own environment (`.venv`) on a bare Python 3.11 or newer."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PYTHON = ROOT / ".venv" / "bin" / "python"
#: The same uv as in the Dockerfiles (envspec/render.py).
UV_VERSION = "0.13.9"
UV_URL = (
    "https://files.pythonhosted.org/packages/3d/aa/"
    "26d64642d808de4a652579ef950d7cd2d37f080a8babf9c67c6b75fc4c3f/"
    "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
)
UV_SHA256 = "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19"
STAMP = ROOT / ".venv" / "ready"


def prepare() -> None:
    """Make the environment of pyproject.toml when it is missing or older than that file."""
    wanted = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    print("preparing .venv (once)", file=sys.stderr, flush=True)
    try:
        uv = install_uv()
        subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable,
                        ROOT / ".venv"], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", PYTHON, "-r", ROOT / "pyproject.toml",
             "--group", f"{ROOT / 'pyproject.toml'}:dev"],
            check=True,
        )
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"the environment can't be prepared: {error}\n"
                 "next: read the lines above; PyPI must be reachable (proxies and SSL_CERT_FILE "
                 "are honoured), then run this again")
    STAMP.write_text(wanted, encoding="utf-8")


def install_uv() -> Path:
    """uv in a folder of its own, by its locked hash: a bare Debian has neither pip nor venv."""
    folder = ROOT / ".venv" / "uv"
    program = folder / f"uv-{UV_VERSION}.data" / "scripts" / "uv"
    if not program.exists():
        with urllib.request.urlopen(UV_URL, timeout=60) as answer:
            data = answer.read()
        if hashlib.sha256(data).hexdigest() != UV_SHA256:
            sys.exit(f"{UV_URL} is not the file that this checkout pins")
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            wheel.extractall(folder)
        program.chmod(0o755)
    return program


if __name__ == "__main__":
    prepare()
    os.environ["PYTHONPATH"] = str(ROOT)
    os.execv(PYTHON, [str(PYTHON), "-m", "envspec", *sys.argv[1:]])
