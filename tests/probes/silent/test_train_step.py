from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.remedy("do not train on more than one rank with this image: its gradients are wrong")
def test_two_ranks_equal_one(step: dict[str, Any]) -> None:
    """A tensor-parallel step whose loss or gradients differ from the same step on one rank."""
    assert step["compared"] > 10
    # Not ">": a NaN must not pass.
    if not step["worst"] <= step["tolerance"]:
        pytest.fail(f"{step['worst_name']} differs by {step['worst']:.1e} relative, allowed is "
                    f"{step['tolerance']:.0e}", pytrace=False)
