"""Tiny packs, built in code: onnxruntime runs them, and their tables are what a test says.

    pack = tiny_pack(tmp_path / "pack", layers=3, tables=plain(64, 8))

Weights are seeded. Nothing here comes from packimport.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

Tables = tuple[NDArray[Any], NDArray[Any]]
DTYPES = {
    "float32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}


def plain(rows: int, pairs: int, theta: float = 10000.0) -> Tables:
    """cos and sin, float64 [rows, pairs], of RoPE as RoFormer defines it (arXiv:2104.09864)."""
    angles = np.outer(np.arange(rows), theta ** -(np.arange(pairs) / pairs))
    return np.cos(angles), np.sin(angles)


@dataclass
class Tiny:
    """What `tiny_pack` makes; see there. Tests change its graph before it is saved."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    dtype: str
    form: str
    interleaved: bool
    rotary_dim: int | None
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    @property
    def onnx_type(self) -> int:
        return DTYPES[self.dtype][0]

    def node(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        """Append a node; its first output."""
        self.nodes.append(
            helper.make_node(op, inputs, outputs, f"/{outputs[0]}/{op}", **attributes)
        )
        return outputs[0]

    def constant(self, name: str, values: NDArray[Any], dtype: str | None = None) -> str:
        kind, numpy_type = DTYPES[dtype or self.dtype]
        raw = values.astype(numpy_type).tobytes()
        self.initializers.append(helper.make_tensor(name, kind, values.shape, raw, raw=True))
        return name

    def integers(self, name: str, values: list[int]) -> str:
        raw = np.asarray(values, np.int64)
        self.initializers.append(helper.make_tensor(name, TensorProto.INT64, raw.shape, raw))
        return name

    def weight(self, name: str, *shape: int) -> str:
        scale = 1.0 if len(shape) == 1 else shape[0] ** -0.5
        return self.constant(name, scale * self.rng.standard_normal(shape))

    def project(self, value: str, name: str, columns: int, rows: int = 0) -> str:
        weight = self.weight(f"{name}.weight", rows or self.hidden, columns)
        return self.node("MatMul", [value, weight], [name])

    def norm(self, value: str, name: str) -> str:
        inputs = [value, self.weight(f"{name}.weight", self.hidden)]
        return self.node("SimplifiedLayerNormalization", inputs, [name], epsilon=1e-6, axis=-1)

    def lengths(self) -> None:
        """seqlens_k and total_sequence_length, from the attention mask, as the op asks for them."""
        self.integers("one", [1])
        self.integers("index", [1])
        self.node("ReduceSum", ["attention_mask", "one"], ["mask_sum"], keepdims=0)
        self.node("Sub", ["mask_sum", "one"], ["last"])
        self.node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], ["mask_shape"])
        self.node("Gather", ["mask_shape", "index"], ["length"], axis=0)
        self.node("Cast", ["length"], ["total_length"], to=TensorProto.INT32)

    def attention(self, layer: int, value: str, tables: tuple[str, str] | None) -> str:
        at = f"layer{layer}"
        q = self.project(value, f"{at}.q", self.heads * self.head_dim)
        k = self.project(value, f"{at}.k", self.kv_heads * self.head_dim)
        v = self.project(value, f"{at}.v", self.kv_heads * self.head_dim)
        by_itself = tables is not None and self.form == "gqa"
        if tables is not None and not by_itself:
            q = self.rotary(q, f"{at}.q_rotary", tables, self.heads)
            k = self.rotary(k, f"{at}.k_rotary", tables, self.kv_heads)
        past = [INPUTS["past_key_names"] % layer, INPUTS["past_value_names"] % layer]
        present = [OUTPUTS["present_key_names"] % layer, OUTPUTS["present_value_names"] % layer]
        inputs = [q, k, v, *past, "seqlens_k", "total_length"]
        return self.node(
            "GroupQueryAttention",
            inputs + list(tables or ()) if by_itself else inputs,
            [f"{at}.attention", *present],
            domain="com.microsoft",
            num_heads=self.heads,
            kv_num_heads=self.kv_heads,
            do_rotary=int(by_itself),
            rotary_interleaved=int(self.interleaved and by_itself),
        )

    def rotary(self, value: str, name: str, tables: tuple[str, str], heads: int) -> str:
        partial = {} if self.rotary_dim is None else {"num_heads": heads}
        return self.node(
            "RotaryEmbedding",
            [value, "position_ids", *tables],
            [name],
            domain="com.microsoft",
            interleaved=int(self.interleaved),
            rotary_embedding_dim=self.rotary_dim or 0,
            **partial,
        )

    def block(self, layer: int, value: str, tables: tuple[str, str] | None) -> str:
        at = f"layer{layer}"
        attended = self.attention(layer, self.norm(value, f"{at}.norm"), tables)
        out = self.project(attended, f"{at}.o", self.hidden, self.heads * self.head_dim)
        value = self.node("Add", [value, out], [f"{at}.residual"])
        normed = self.norm(value, f"{at}.mlp_norm")
        gate = self.project(normed, f"{at}.gate", 2 * self.hidden)
        up = self.project(normed, f"{at}.up", 2 * self.hidden)
        active = self.node("Mul", [gate, self.node("Sigmoid", [gate], [f"{at}.s"])], [f"{at}.a"])
        product = self.node("Mul", [active, up], [f"{at}.product"])
        down = self.project(product, f"{at}.down", self.hidden, 2 * self.hidden)
        return self.node("Add", [value, down], [f"{at}.out"])

    def model(self, tables: list[tuple[str, str] | None]) -> onnx.ModelProto:
        self.lengths()
        inputs = [self.weight("embedding", self.vocab, self.hidden), "input_ids"]
        value = self.node("Gather", inputs, ["embedded"])
        for layer in range(self.layers):
            value = self.block(layer, value, tables[layer])
        value = self.norm(value, "norm")
        self.node("MatMul", [value, self.weight("head", self.hidden, self.vocab)], ["logits"])
        graph = helper.make_graph(
            self.nodes, "tiny", self.inputs(), self.outputs(), self.initializers
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=10, producer_name="tests/builders.py"
        )

    def inputs(self) -> list[onnx.ValueInfoProto]:
        names = ["input_ids", "attention_mask"]
        names += ["position_ids"] if self.form == "rotary_embedding" else []
        fed = [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", f"{n}_s"]) for n in names]
        return fed + self._cache(INPUTS["past_key_names"], INPUTS["past_value_names"], "past")

    def outputs(self) -> list[onnx.ValueInfoProto]:
        logits = helper.make_tensor_value_info("logits", self.onnx_type, ["b", "s", self.vocab])
        names = OUTPUTS["present_key_names"], OUTPUTS["present_value_names"]
        return [logits, *self._cache(*names, "total")]

    def _cache(self, key: str, value: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = ["b", self.kv_heads, length, self.head_dim]
        return [
            helper.make_tensor_value_info(name % layer, self.onnx_type, shape)
            for layer in range(self.layers)
            for name in (key, value)
        ]


def tiny_pack(
    folder: Path,
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    hidden: int = 32,
    vocab: int = 64,
    rows: int = 64,
    tables: Tables | Callable[[int], Tables | None] | None = None,
    form: str = "gqa",
    inline: bool = False,
    constants: bool = False,
    shared: bool = True,
    dtype: str = "float32",
    rotary_dim: int | None = None,
    interleaved: bool = False,
    config: Mapping[str, Any] | None = None,
    genai_config: Mapping[str, Any] | None = None,
    change: Callable[[onnx.ModelProto], None] | None = None,
    seed: int = 0,
) -> Path:
    """Write a small decoder to `folder`, in the layout of onnxruntime-genai; `folder`.

    tables:      (cos, sin) for all layers, or layer ─▶ those, None for a layer without
                 rotation; plain with theta 10000 where not given.
    form:        "gqa" rotates in GroupQueryAttention, "rotary_embedding" in nodes of its own.
    inline:      every tensor inside model.onnx, else all in model.onnx.data.
    constants:   tables as Constant nodes, not initializers; those stay inline.
    shared:      one pair of tensors for all layers; needs one pair of tables.
    rotary_dim:  attribute of RotaryEmbedding, and twice the width of the default table.
    config:      added to config.json; without it there is no config.json.
    genai_config: in place of the default one.
    change:      edits the model before it is saved.

    bfloat16 has no CPU kernel: such a pack is for reading only.
    """
    tiny = Tiny(layers, heads, kv_heads, head_dim, hidden, vocab, dtype, form, interleaved,
                rotary_dim, np.random.default_rng(seed))  # fmt: skip
    width = (rotary_dim or head_dim) // 2
    given = tables if tables is not None else plain(rows, width)
    per_layer = given if callable(given) else lambda _: given
    names: list[tuple[str, str] | None] = []
    for layer in range(layers):
        table = per_layer(layer)
        if table is None or (shared and names):
            names.append(names[0] if table is not None else None)
            continue
        tag = "" if shared else f"_{layer}"
        for name, values in zip((f"cos{tag}", f"sin{tag}"), table, strict=True):
            tiny.constant(name, np.asarray(values))
            if constants:
                value = tiny.initializers.pop()
                tiny.node("Constant", [], [name], value=value)
        names.append((f"cos{tag}", f"sin{tag}"))
    model = tiny.model(names)
    if change is not None:
        change(model)
    folder.mkdir(parents=True)
    save(model, folder / "model.onnx", inline=inline)
    write_json(folder / "genai_config.json", genai_config or genai(tiny, rows))
    if config is not None:
        write_json(folder / "config.json", {**llama_config(tiny, rows), **config})
    return folder


def save(model: onnx.ModelProto, path: Path, *, inline: bool) -> None:
    """Write a model, all initializers inside it or all in `<name>.data` beside it."""
    if inline:
        path.write_bytes(model.SerializeToString())
    else:
        onnx.save_model(
            model, path, save_as_external_data=True, location=f"{path.name}.data",
            size_threshold=0, convert_attribute=False,
        )  # fmt: skip


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")


def llama_config(tiny: Tiny, positions: int) -> dict[str, Any]:
    """The config.json that transformers writes for a Llama of these dimensions."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": tiny.hidden,
        "intermediate_size": 2 * tiny.hidden,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "vocab_size": tiny.vocab,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    }


def genai(tiny: Tiny, positions: int) -> dict[str, Any]:
    """The genai_config.json that onnxruntime-genai 0.18.0 writes, as far as it bears on shapes."""
    inputs = {k: v for k, v in INPUTS.items() if k != "position_ids" or tiny.form != "gqa"}
    return {
        "model": {
            "type": "llama",
            "context_length": positions,
            "vocab_size": tiny.vocab,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": "model.onnx",
                "head_size": tiny.head_dim,
                "hidden_size": tiny.hidden,
                "num_attention_heads": tiny.heads,
                "num_hidden_layers": tiny.layers,
                "num_key_value_heads": tiny.kv_heads,
                "inputs": inputs,
                "outputs": OUTPUTS,
            },
        },
        "search": {"max_length": positions, "past_present_share_buffer": True},
    }


def rename_everything(pack: Path, graph: str = "model.onnx") -> None:
    """Rename every tensor and node of a graph, at any depth, but its inputs and outputs."""
    model = onnx.load(pack / graph, load_external_data=False)
    fixed = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {}

    def new(name: str) -> str:
        if not name or name in fixed:
            return name
        # A hash, so that no order of the old names is left in the new ones.
        return names.setdefault(name, hashlib.sha256(name.encode()).hexdigest()[:16])

    def rename(body: onnx.GraphProto) -> None:
        for tensor in body.initializer:
            tensor.name = new(tensor.name)
        for value in (*body.value_info, *body.input, *body.output):
            value.name = new(value.name)
        for index, node in enumerate(body.node):
            node.name = hashlib.sha256(f"{index} {node.name}".encode()).hexdigest()[:16]
            node.input[:] = [new(name) for name in node.input]
            node.output[:] = [new(name) for name in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename(attribute.g)

    rename(model.graph)
    (pack / graph).write_bytes(model.SerializeToString())
