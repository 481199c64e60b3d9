from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.needs("gpu")
@pytest.mark.remedy("take an image of the target that this GPU belongs to")
@pytest.mark.report("https://github.com/vllm-project/vllm/issues/20193")
def test_kernels_run_on_the_target(plan: dict[str, Any]) -> None:
    """"No kernel image is available": code for another GPU than the target's."""
    import torch

    found = ".".join(map(str, torch.cuda.get_device_capability()))
    assert found in plan["capabilities"], f"this GPU is {found}, not {plan['capabilities']}"
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(256, 256, device="cuda", dtype=dtype)
        expected = a.double() @ a.double()
        difference = ((a @ a).double() - expected).abs().max() / expected.abs().max()
        assert difference < 2e-2, f"a {dtype} product differs by {difference:.1e}"
