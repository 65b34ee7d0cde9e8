"""transformers' models with the weights of a pack of tests/builders.py, run with a cache."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper


def logits_of(
    kind: str, pack: Path, tokens: NDArray[np.int64], decode: int, **settings: Any
) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of a Llama or Phi3: a prefill, then `decode` tokens one by one.

    The model's forward with its cache, never `generate`, which drops Phi-3's cache where
    the call gets longer than the original length.
    """
    import torch
    import transformers

    loaded = onnx.load(pack / "model.onnx")
    weights = {t.name: numpy_helper.to_array(t) for t in loaded.graph.initializer}
    vocab, hidden = weights["embedding"].shape
    layers = sum(name.endswith(".o.weight") for name in weights)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab,
        rms_norm_eps=1e-6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        **settings,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    state = _state(weights, layers, is_packed=kind == "Phi3")
    model.load_state_dict({k: torch.tensor(v.copy()) for k, v in state.items()}, strict=True)
    past = transformers.DynamicCache(config=config)
    logits: list[NDArray[np.float32]] = []
    edges = [0, *range(len(tokens) - decode, len(tokens) + 1)]
    with torch.no_grad():
        for start, stop in pairwise(edges):
            positions = torch.arange(start, stop)[None]
            out = model(
                torch.tensor(tokens[None, start:stop]), cache=past,
                position_ids=positions, use_cache=True,
            )  # fmt: skip
            logits.append(out.logits[0].numpy())
    return np.concatenate(logits)


def _state(
    weights: dict[str, NDArray[Any]], layers: int, *, is_packed: bool
) -> dict[str, NDArray[Any]]:
    state = {
        "model.embed_tokens.weight": weights["embedding"],
        "model.norm.weight": weights["norm.weight"],
        "lm_head.weight": weights["head"].T,
    }
    for layer in range(layers):
        at, name = f"model.layers.{layer}", f"layer{layer}"
        part = {key: weights[f"{name}.{key}.weight"].T for key in "qkvo"}
        mlp = {key: weights[f"{name}.{key}.weight"].T for key in ("gate", "up", "down")}
        state[f"{at}.input_layernorm.weight"] = weights[f"{name}.norm.weight"]
        state[f"{at}.post_attention_layernorm.weight"] = weights[f"{name}.mlp_norm.weight"]
        state[f"{at}.self_attn.o_proj.weight"] = part["o"]
        state[f"{at}.mlp.down_proj.weight"] = mlp["down"]
        if is_packed:
            state[f"{at}.self_attn.qkv_proj.weight"] = np.concatenate([part[k] for k in "qkv"])
            state[f"{at}.mlp.gate_up_proj.weight"] = np.concatenate([mlp["gate"], mlp["up"]])
        else:
            for key in "qkv":
                state[f"{at}.self_attn.{key}_proj.weight"] = part[key]
            for key in ("gate", "up"):
                state[f"{at}.mlp.{key}_proj.weight"] = mlp[key]
    return state
