"""Makes reference.npz: what transformers computes for the demo model and its tokens.

    python -m packimport.demo.make_reference OUT.npz

Needs torch and transformers (`pip install ".[oracle]"`). The stored file
was made by transformers 5.24.0 and torch 2.13.0; CI makes it again and compares.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from packimport.demo import model, weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the reference to the path given; 0, or 2 on wrong usage."""
    paths = sys.argv[1:] if arguments is None else list(arguments)
    if len(paths) != 1:
        print("usage: python -m packimport.demo.make_reference OUT.npz", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    llama = demo_llama()
    tokens = model.tokens()
    with torch.inference_mode():
        logits = llama(torch.from_numpy(tokens)[None]).logits[0].numpy()
    with Path(paths[0]).open("wb") as file:
        np.savez_compressed(
            file,
            tokens=tokens,
            logits=logits.astype(np.float32),
            inv_freq=llama.model.rotary_emb.inv_freq.numpy().astype(np.float32),
            made_by=np.array(f"transformers {transformers.__version__}, torch {torch.__version__}"),
        )
    return 0


def demo_llama() -> LlamaForCausalLM:
    """transformers' own Llama with the demo's config and weights, float32 on the CPU."""
    config = LlamaConfig.from_dict(dict(model.CONFIG), attn_implementation="sdpa")
    llama = LlamaForCausalLM(config).eval().float()
    state = {name: torch.from_numpy(value) for name, value in weights.state_dict().items()}
    llama.load_state_dict(state, strict=True)
    return llama


if __name__ == "__main__":
    sys.exit(main())
