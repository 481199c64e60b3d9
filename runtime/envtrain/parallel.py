"""How the draft model is cut over tensor-parallel ranks.

Query, key, value, gate and up projections are cut column-wise, output and down projections
row-wise, so a layer needs two all-reduces. ``lm_head`` is cut column-wise and its logits are
gathered: speculators' own loss and argmax want the whole draft vocabulary.

Not cut: ``fc`` and the norms are replicated, as DTensors like the rest, because foreach AdamW and
``clip_grad_norm_`` refuse a mix of DTensor and Tensor. The frozen ``embed_tokens`` and
``verifier_lm_head`` stay plain tensors: no gradient flows through them, and sharding them needs a
vocabulary-parallel loss that speculators 0.3.0 does not have.
"""

from __future__ import annotations

from typing import Any

from speculators.models.eagle3.core import Eagle3DraftModel
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)


class Replicated(ParallelStyle):
    """The module's parameters become replicated DTensors; its callers see plain tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def wrap(_module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(x, mesh, (Replicate(),)) for x in inputs)

        def unwrap(_module: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Tensor:
            return output.to_local()

        return distribute_module(module, device_mesh, None, wrap, unwrap)


def plan() -> dict[str, ParallelStyle]:
    """Module names of ``Eagle3DraftModel``, with wildcards, and how each is cut."""
    return {
        "fc": Replicated(),
        "layers.*.input_layernorm": Replicated(),
        "layers.*.hidden_norm": Replicated(),
        "layers.*.post_attention_layernorm": Replicated(),
        "layers.*.self_attn.q_proj": ColwiseParallel(),
        "layers.*.self_attn.k_proj": ColwiseParallel(),
        "layers.*.self_attn.v_proj": ColwiseParallel(),
        "layers.*.self_attn.o_proj": RowwiseParallel(),
        "layers.*.mlp.gate_proj": ColwiseParallel(),
        "layers.*.mlp.up_proj": ColwiseParallel(),
        "layers.*.mlp.down_proj": RowwiseParallel(),
        "norm": Replicated(),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }


def shard(model: Eagle3DraftModel, mesh: DeviceMesh) -> None:
    """Cut ``model`` in place. The mesh's size must divide key/value heads and draft vocabulary.

    Raises:
        RuntimeError: a parameter that is trained was left out of the plan.
    """
    parallelize_module(model, mesh, plan())
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    left_out = [name for name, p in trained if not isinstance(p, DTensor)]
    if left_out:
        raise RuntimeError(f"parallel.plan() does not name {', '.join(left_out)}")
