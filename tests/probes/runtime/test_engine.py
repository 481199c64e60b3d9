from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.targets("cpu")
@pytest.mark.remedy("run tests/probes/engine_run.py in the image and read vLLM's last lines")
def test_engine_generates(engine: dict[str, Any]) -> None:
    """A vLLM engine that imports and can't start, generate and stop."""
    assert len(engine["first"]) == len(engine["reference"])
