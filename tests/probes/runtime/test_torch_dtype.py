from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

BROKEN = "speculators or transformers changed: read what it does now, then correct this probe"


@pytest.mark.remedy(BROKEN)
def test_mlp_config_is_known_broken() -> None:
    """MLPSpeculatorConfig's pydantic field torch_dtype, over which transformers ≥ 4.56 lays a
    property: nothing here trains an MLP speculator, and this says so as long as it is broken."""
    from speculators.models.mlp import MLPSpeculatorConfig

    for arguments in ({}, {"torch_dtype": "float16"}):
        with pytest.raises(AttributeError, match="dtype"):
            MLPSpeculatorConfig(**arguments)
    config = MLPSpeculatorConfig(dtype="float16")
    assert str(config.dtype) != str(config.__dict__.get("torch_dtype"))


@pytest.mark.remedy("training would start in another precision than asked for: do not use this row")
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_eagle3_config_keeps_its_dtype(name: str, tmp_path: Path) -> None:
    """Eagle3's config loses or splits its dtype between construct, copy, save and load."""
    import torch
    from envtrain import model

    dtype = getattr(torch, name)
    made = model.config(tmp_path / "verifier", dtype)
    made.save_pretrained(tmp_path)
    loaded = type(made).from_pretrained(tmp_path)
    for config in (made, copy.deepcopy(made), loaded):
        assert config.dtype == dtype
        assert config.transformer_layer_config.dtype == dtype
    written = json.loads((tmp_path / "config.json").read_text())
    assert {written[k] for k in ("dtype", "torch_dtype") if k in written} == {name}
