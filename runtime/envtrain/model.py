"""A tiny Llama verifier, an EAGLE-3 draft of it, and a batch: all made here, from seeds.

Sizes are the smallest that keep grouped-query attention (8 query heads, 4 key/value heads) and a
draft vocabulary smaller than the verifier's. Weights and batch are made on the CPU, so that every
rank and every device starts from the same numbers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 8, 4, 8, 128
VERIFIER_VOCAB, DRAFT_VOCAB = 128, 64
SEQUENCE, TTT_STEPS = 128, 3


def llama(vocab: int = VERIFIER_VOCAB) -> LlamaConfig:
    """The layer sizes that verifier and draft share."""
    return LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=vocab,
        tie_word_embeddings=False,
    )


def write_verifier(folder: Path) -> None:
    """Write a random verifier to ``folder``, as speculators reads one: config and safetensors."""
    torch.manual_seed(0)
    LlamaForCausalLM(llama()).save_pretrained(folder)


def config(verifier: Path, dtype: torch.dtype = torch.float32) -> Eagle3SpeculatorConfig:
    """The configuration of a draft for a verifier."""
    layer = llama()
    layer.dtype = dtype
    # Without a name the attention look-up ends in KeyError: None.
    layer._attn_implementation = "simple_flex_attention"
    return Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT_VOCAB,
        dtype=dtype,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=TTT_STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(
                name_or_path=str(verifier), architectures=["LlamaForCausalLM"]
            ),
        ),
    )


def draft(verifier: Path) -> Eagle3DraftModel:
    """The whole EAGLE-3 draft model in fp32; embedding and both heads come from the verifier."""
    kept = torch.zeros(VERIFIER_VOCAB, dtype=torch.bool)
    kept[::2] = True
    # d2t holds offsets: draft token i stands for verifier token i + d2t[i].
    offsets = kept.nonzero().squeeze(1) - torch.arange(DRAFT_VOCAB)
    torch.manual_seed(1)
    return Eagle3DraftModel(config(verifier), t2d=kept, d2t=offsets)


def batch(device: str) -> dict[str, torch.Tensor]:
    """Arguments of one forward: two packed documents of a [1, SEQUENCE] row, padding included."""
    torch.manual_seed(2)
    lengths = torch.tensor([70, 50])
    loss_mask = (torch.arange(SEQUENCE) < lengths.sum()).float()[None]
    made = {
        "hidden_states": torch.randn(1, SEQUENCE, 3 * HIDDEN),
        "input_ids": torch.randint(0, VERIFIER_VOCAB, (1, SEQUENCE)),
        "lengths": lengths,
        "loss_mask": loss_mask,
        "verifier_last_hidden_states": torch.randn(1, SEQUENCE, HIDDEN),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}
