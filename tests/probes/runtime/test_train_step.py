from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.remedy("run `python -m envtrain step` in the image and read the rank's last lines")
def test_two_ranks_take_a_step(step: dict[str, Any]) -> None:
    """Eagle3DraftModel that constructs and can't train: forward, backward, clipping, AdamW."""
    first, second = step["losses"]
    assert step["ranks"] == 2
    assert second < first, f"the loss does not fall: {first}, then {second}"
