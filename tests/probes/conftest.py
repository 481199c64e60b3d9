"""What probes share: the plan of the image, and results that are expensive to get."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
#: Last lines of a failed program that a message shows.
TAIL = 15


@pytest.fixture(scope="session")
def plan() -> dict[str, Any]:
    """What the builder knows of this image: row, target, python, capabilities, components with
    their versions and imports, overrides, and every locked package with its version."""
    return json.loads((FOLDER / "plan.json").read_text())


def run(*argv: str, mark: str = "", time_limit: float = 300) -> dict[str, Any]:
    """Run a Python program of the image; the JSON of its last line that starts with ``mark``."""
    done = subprocess.run(
        [sys.executable, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=time_limit, check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(mark or "{")]
    if not lines:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-TAIL:])
        pytest.fail(f"{' '.join(argv)} ended with {done.returncode}:\n{tail}", pytrace=False)
    return json.loads(lines[-1].removeprefix(mark))


@pytest.fixture(scope="session")
def step() -> dict[str, Any]:
    """The EAGLE-3 train step on two gloo ranks, as ``python -m envtrain step --json`` tells."""
    return run("-m", "envtrain", "step", "--ranks", "2", "--json")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a vLLM CPU engine and transformers generate; see engine_run.py."""
    folder = tmp_path_factory.mktemp("model")
    return run(str(FOLDER / "engine_run.py"), str(folder), mark="ENGINE ")
