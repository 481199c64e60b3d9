"""A real vLLM engine on the CPU and transformers, on one tiny random model; prints one JSON line.

Run as a program by the ``engine`` fixture: an engine changes its whole process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PROMPT, NEW = [3, 17, 42, 5, 99, 23, 7], 8

os.environ.update(
    # In this process: no second start of Python, and nothing to reap.
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    # One host, and a container may have no network.
    VLLM_HOST_IP="127.0.0.1",
    GLOO_SOCKET_IFNAME="lo",
    HF_HUB_OFFLINE="1",
)


def main(folder: Path) -> None:
    """Print ``{"first", "second", "reference": token ids, "margin": smallest logit gap}``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=256,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        # Larger than usual, so that the best token wins by far more than fp32 can round.
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokens, margins = list(PROMPT), []
    with torch.no_grad():
        for _ in range(NEW):
            best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            margins.append((best.values[0] - best.values[1]).item())
            tokens.append(int(best.indices[0]))

    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder),
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=1,
        # The second run must compute, not look up, what the first one did.
        enable_prefix_caching=False,
    )
    greedy = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    runs = [
        list(engine.generate({"prompt_token_ids": PROMPT}, greedy, use_tqdm=False)[0].outputs[0]
             .token_ids)
        for _ in range(2)
    ]
    seen = {
        "first": runs[0],
        "second": runs[1],
        "reference": tokens[len(PROMPT):],
        "margin": min(margins),
    }
    # The engine logs to stdout too.
    print("ENGINE " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
