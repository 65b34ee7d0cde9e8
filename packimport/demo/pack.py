"""The demo pack on disk: laid out as onnxruntime-genai's builder does, with a plain table.

`model.onnx` is package data and holds no values; it points into `model.onnx.data`,
where the tensors of `tensors()` follow each other without gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np

from packimport.demo import model, weights
from packimport.demo.weights import Array
from packimport.pack.documents import write_json

GRAPH = "model.onnx"
DATA = "model.onnx.data"


def write_pack(folder: Path) -> None:
    """Write the faulty pack into `folder`, which must not exist yet: four files, 2.3 MB."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", model.CONFIG)
    write_json(folder / "genai_config.json", model.GENAI_CONFIG)
    (folder / GRAPH).write_bytes(resources.files("packimport.demo").joinpath(GRAPH).read_bytes())
    with (folder / DATA).open("wb") as file:
        for value in tensors().values():
            file.write(value.astype("<f4").tobytes())


def tensors() -> Mapping[str, Array]:
    """Every constant of the graph, in the order of the data file: float32.

    The builder's names; its matrices are [in, out], the transpose of transformers'.
    """
    state = weights.state_dict()
    cos, sin = plain_table()
    laid = {"model.embed_tokens.weight": state["model.embed_tokens.weight"]}
    for layer in range(model.LAYERS):
        name = f"model.layers.{layer}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        query_key_value = [state[f"{attention}.{part}_proj.weight"] for part in "qkv"]
        laid[f"{name}.input_layernorm.weight"] = state[f"{name}.input_layernorm.weight"]
        laid[f"{name}.attn.qkv_proj.MatMul.weight"] = np.concatenate(query_key_value).T
        if layer == 0:
            laid |= {"cos_cache": cos, "sin_cache": sin}
        laid[f"{name}.attn.o_proj.MatMul.weight"] = state[f"{attention}.o_proj.weight"].T
        norm = f"{name}.post_attention_layernorm.weight"
        laid[norm] = state[norm]
        for part in ("gate", "up", "down"):
            laid[f"{mlp}.{part}_proj.MatMul.weight"] = state[f"{mlp}.{part}_proj.weight"].T
    laid[f"model.layers.{model.LAYERS}.final_norm_layernorm.weight"] = state["model.norm.weight"]
    laid["lm_head.MatMul.weight"] = state["lm_head.weight"].T
    return laid


def plain_table() -> tuple[Array, Array]:
    """The fault: cos and sin, float32 [8192, 16], of theta alone, the scaling left out.

    In plain numpy, as the exporter that is imitated here would do it.
    """
    exponents = np.arange(0, model.HEAD_DIM, 2, dtype=np.float32) / np.float32(model.HEAD_DIM)
    powers = model.THETA ** exponents.astype(np.float64)
    inv_freq = np.float32(1.0) / powers.astype(np.float32)
    positions = np.arange(model.MAX_POSITIONS, dtype=np.float32)
    angles = np.outer(positions, inv_freq).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
