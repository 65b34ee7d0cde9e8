"""The weights of a pack's graph in transformers' model of its config.json, and right packs.

Nothing here comes from packimport: graphs are read and written with onnx, tables are
those of transformers' own rotary embedding.
"""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Array = NDArray[Any]


def model_of(pack: Path, config: Path) -> Any:
    """transformers' model of a config.json, with the weights of a pack's graph."""
    import torch
    import transformers

    settings = transformers.AutoConfig.from_pretrained(config, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_config(settings).float().eval()
    loaded = onnx.load(pack / "model.onnx")
    state = _state(loaded, settings)
    tied = {"lm_head.weight"} if settings.tie_word_embeddings else set()
    missing, unexpected = model.load_state_dict(
        {name: torch.tensor(np.array(value)) for name, value in state.items()}, strict=False
    )
    assert set(missing) <= tied
    assert not unexpected
    return model


def logits_of(model: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of one forward call."""
    import torch

    with torch.no_grad():
        return np.asarray(model(torch.tensor(tokens[None])).logits[0].numpy())


def logits_with_cache(model: Any, tokens: NDArray[np.int64], decode: int) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of forward calls with a cache: a prefill, then one by one.

    Not of `generate`, which drops Phi-3's cache where the call gets longer than the original
    length.
    """
    import torch
    import transformers

    past = transformers.DynamicCache(config=model.config)
    edges = [0, *range(len(tokens) - decode, len(tokens) + 1)]
    logits = []
    with torch.no_grad():
        for start, stop in pairwise(edges):
            out = model(
                torch.tensor(tokens[None, start:stop]),
                cache=past,
                position_ids=torch.arange(start, stop)[None],
                use_cache=True,
            )
            logits.append(out.logits[0].numpy())
    return np.concatenate(logits)


def _state(loaded: onnx.ModelProto, settings: Any) -> dict[str, Array]:
    """The weights by transformers' names: those of the builder, or of optimum."""
    weights = {t.name: numpy_helper.to_array(t) for t in loaded.graph.initializer}
    # optimum stores equal weights once, and hands them on.
    for node in loaded.graph.node:
        if node.op_type == "Identity" and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    # Its weights of products have names of numbers, and nodes the names of modules.
    for node in loaded.graph.node:
        if node.op_type == "MatMul" and node.input[1].startswith("onnx::"):
            name = node.name.strip("/").replace("/", ".")
            weights[f"{name}.weight"] = weights.pop(node.input[1])
    for name in [name for name in weights if name.endswith(".weight_Q4")]:
        scales = weights.pop(name.replace("_Q4", "_scales"))
        weights[name.removesuffix("_Q4")] = _four_bits(weights.pop(name), scales).T
    heads, groups = settings.num_attention_heads, settings.num_key_value_heads
    width = getattr(settings, "head_dim", None) or settings.hidden_size // heads
    state: dict[str, Array] = {}
    for name, value in weights.items():
        if not name.endswith(".weight"):
            continue
        key = name.replace(".attn.", ".self_attn.").replace("_norm.layernorm.", "_norm.")
        key = re.sub(r"layers\.\d+\.final_norm_layernorm", "norm", key)
        matrix = value.T if ".MatMul." in key else value
        key = key.replace(".MatMul.", ".")
        if ".qkv_proj." in key and settings.model_type != "phi3":
            sizes = np.cumsum([heads * width, groups * width])
            for side, part in zip("qkv", np.split(matrix, sizes), strict=True):
                state[key.replace("qkv", side)] = part
        else:
            state[key] = matrix
    if settings.model_type == "phi3":
        for layer in range(settings.num_hidden_layers):
            at = f"model.layers.{layer}.mlp"
            halves = [state.pop(f"{at}.{part}_proj.weight") for part in ("gate", "up")]
            state[f"{at}.gate_up_proj.weight"] = np.concatenate(halves)
            at = f"model.layers.{layer}.self_attn"
            if f"{at}.q_proj.weight" in state:
                sides = [state.pop(f"{at}.{side}_proj.weight") for side in "qkv"]
                state[f"{at}.qkv_proj.weight"] = np.concatenate(sides)
    if settings.model_type == "gemma3_text":
        # The builder bakes Gemma's 1 + w, and the scale of the embedding where it is no node.
        for key in [key for key in state if "norm" in key]:
            state[key] = state[key] - 1
    return state


def _four_bits(packed: Array, scales: Array) -> Array:
    """Weights [outputs, inputs] of a MatMulNBits: two to a byte, low one first, zero is 8."""
    values = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    blocks = values.reshape(*packed.shape[:2], -1) * scales.reshape(*packed.shape[:2], 1)
    return np.asarray(blocks.reshape(len(packed), -1), np.float32)


def right_pack(pack: Path, model: Any, out: Path) -> Path:
    """A copy of a pack whose constants are those of the model's own rotary embedding."""
    shutil.copytree(pack, out)
    loaded = onnx.load(out / "model.onnx")
    rotary = model.model.rotary_emb
    for tensor in _constants(loaded.graph):
        made = _right(tensor, rotary, model.config)
        if made is not None:
            tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))
    if model.config.model_type == "smollm3":
        _without_rope(loaded.graph)
    (out / "model.onnx.data").unlink(missing_ok=True)
    onnx.save(loaded, out / "model.onnx")
    return out


def _right(tensor: onnx.TensorProto, rotary: Any, config: Any) -> Array | None:
    """What a constant should hold; None for one that is no table."""
    name, shape = tensor.name, list(tensor.dims)
    if name in {"onnx::Expand_119", ""} and len(shape) == 3 and tensor.data_type == 1:
        return np.asarray(rotary.inv_freq.numpy(), np.float32).reshape(shape)
    if not name.startswith(("cos_cache", "sin_cache")):
        return None
    kind = {"global": "full_attention", "local": "sliding_attention"}.get(name.split("_")[-1])
    calls = [shape[0]]
    if config.rope_parameters.get("rope_type") == "longrope":
        short = config.rope_parameters["original_max_position_embeddings"]
        if shape[0] > config.max_position_embeddings:  # both, short rows first
            calls = [short, shape[0] - short]
    made = [tables(rotary, rows, kind)[name.startswith("sin")] for rows in calls]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.concatenate(made)[:, : shape[1]].astype(dtype)


def tables(rotary: Any, rows: int, kind: str | None) -> tuple[Array, Array]:
    """cos and sin [rows, head] of transformers' module, for a call of so many positions."""
    import torch

    more = () if kind is None else (kind,)
    with torch.no_grad():
        cos, sin = rotary(torch.zeros(1, 1, 1), torch.arange(rows)[None], *more)
    return cos[0].numpy(), sin[0].numpy()


def _constants(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _constants(attribute.g)
            elif node.op_type == "Constant" and attribute.HasField("t"):
                attribute.t.name = node.output[0]
                found.append(attribute.t)
    return found


def _without_rope(graph: onnx.GraphProto) -> None:
    """Layer 3 of the SmolLM3 pack without the rotation that it must not have."""
    for node in list(graph.node):
        if node.op_type == "RotaryEmbedding":
            for taker in graph.node:
                for at, name in enumerate(taker.input):
                    if name == node.output[0]:
                        taker.input[at] = node.input[0]
            graph.node.remove(node)
