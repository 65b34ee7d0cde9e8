"""Small decoders whose attention and rotation are written in plain ops, as torch exports them.

onnxruntime runs them: `scores` gives q, k and the scores of a layer. Nothing here comes
from packimport.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import write_json
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HEADS, HEAD, HIDDEN, VOCAB = 2, 16, 32, 64
PAIRS = HEAD // 2
PLAIN = 10000.0 ** -(np.arange(PAIRS) / PAIRS)


@dataclass
class Graph:
    """Nodes and constants of a graph that grows."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def node(
        self, op: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any
    ) -> str:
        output = name or f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [output], f"/{output}", domain=domain, **attributes)
        )
        return output

    def constant(self, values: Any, dtype: Any = np.float32, name: str = "") -> str:
        if not name or any(tensor.name == name for tensor in self.constants):
            name = f"{name or 'c'}{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def scalar(self, value: int) -> str:
        return self.constant(value, np.int64)

    def weight(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape) / 4)


Trig = Callable[[Graph], tuple[str, str]]


def angles_by_matmul(
    frequencies: NDArray[Any] = PLAIN, *, dtype: Any = np.float32
) -> Callable[[Graph], str]:
    """As torch's older exporter and optimum: Expand, MatMul, Transpose, Concat."""

    def make(g: Graph) -> str:
        inverse = g.constant(frequencies[None, :, None], dtype, name="inv_freq")
        batch = g.node("Slice", g.node("Shape", "position_ids"), g.integers(0), g.integers(1))
        shape = g.node("Concat", batch, g.integers(PAIRS, 1), axis=0)
        wide = g.node("Expand", inverse, shape)
        if dtype != np.float32:
            wide = g.node("Cast", wide, to=TensorProto.FLOAT)
        row = g.node("Unsqueeze", "position_ids", g.integers(1))
        floats = g.node("Cast", row, to=TensorProto.FLOAT)
        by_row = g.node("Transpose", g.node("MatMul", wide, floats), perm=[0, 2, 1])
        return g.node("Concat", by_row, by_row, axis=-1)

    return make


def angles_by_mul(
    frequencies: NDArray[Any] = PLAIN, *, repeated: bool = False
) -> Callable[[Graph], str]:
    """As torch's newer exporter: Mul, and Concat or a stack of twice the same."""

    def make(g: Graph) -> str:
        inverse = g.constant(frequencies, name="inv_freq")
        return doubled(g, g.node("Mul", floats(g), inverse), repeated)

    return make


def floats(g: Graph, to: int = TensorProto.FLOAT) -> str:
    return g.node("Cast", g.node("Unsqueeze", "position_ids", g.integers(2)), to=to)


def doubled(g: Graph, angles: str, repeated: bool) -> str:
    if not repeated:
        return g.node("Concat", angles, angles, axis=-1)
    one = g.node("Unsqueeze", angles, g.integers(-1))
    other = g.node("Unsqueeze", angles, g.integers(-1))
    stack = g.node("Concat", one, other, axis=-1)
    return g.node("Reshape", stack, g.integers(0, 0, HEAD))


def waves(angles: Callable[[Graph], str], factor: float | None = None) -> Trig:
    """cos and sin of angles, and what multiplies them."""

    def make(g: Graph) -> tuple[str, str]:
        value = angles(g)
        made = [g.node("Cos", value), g.node("Sin", value)]
        if factor is not None:
            made = [g.node("Mul", one, g.constant(factor)) for one in made]
        return made[0], made[1]

    return make


def gathered(cos: NDArray[Any], sin: NDArray[Any], *, sliced: bool = False) -> Trig:
    """Rows of stored tables, picked by position."""

    def make(g: Graph) -> tuple[str, str]:
        names = g.constant(cos, name="cos_table"), g.constant(sin, name="sin_table")
        made = []
        for name in names:
            table = name
            if sliced:
                ends = g.integers(len(cos))
                table = g.node("Slice", name, g.integers(0), ends, g.integers(0))
            made.append(g.node("Gather", table, "position_ids", axis=0))
        return made[0], made[1]

    return make


def folded(cos: NDArray[Any], sin: NDArray[Any]) -> Trig:
    """Tables of static shapes, one row per token."""

    def make(g: Graph) -> tuple[str, str]:
        return g.constant(cos[None], name="cos_rows"), g.constant(sin[None], name="sin_rows")

    return make


def by_where(short: NDArray[Any], long: NDArray[Any], limit: int) -> Callable[[Graph], str]:
    """As torch's newer exporter writes longrope."""

    def make(g: Graph) -> str:
        longest = g.node("ReduceMax", "position_ids", keepdims=0)
        length = g.node("Add", longest, g.scalar(1))
        is_long = g.node("Greater", length, g.scalar(limit))
        chosen = g.node(
            "Where", is_long, g.constant(long, name="long"), g.constant(short, name="short")
        )
        return doubled(g, g.node("Mul", floats(g), chosen), False)

    return make


def from_theta(theta: float, *, divided: bool = False) -> Callable[[Graph], str]:
    """Frequencies by arithmetic: 1 / theta ** (arange(0, d, 2) / d)."""

    def make(g: Graph) -> str:
        steps = g.node("Range", g.scalar(0), g.scalar(HEAD), g.scalar(2))
        exponents = g.node(
            "Div", g.node("Cast", steps, to=TensorProto.FLOAT), g.constant(float(HEAD))
        )
        powers = g.node("Pow", g.constant(theta), exponents)
        if divided:
            return doubled(g, g.node("Div", floats(g), powers), False)
        return doubled(g, g.node("Mul", floats(g), g.node("Reciprocal", powers)), False)

    return make


def turned(g: Graph, x: str, repeated: bool) -> str:
    """[-x2, x1] of halves or of neighbours."""
    axis = g.integers(3)
    if not repeated:
        one = g.node("Slice", x, g.integers(0), g.integers(PAIRS), axis)
        other = g.node("Slice", x, g.integers(PAIRS), g.integers(2**62), axis)
        return g.node("Concat", g.node("Neg", other), one, axis=-1)
    even = g.node("Slice", x, g.integers(0), g.integers(2**62), axis, g.integers(2))
    odd = g.node("Slice", x, g.integers(1), g.integers(2**62), axis, g.integers(2))
    parts = [g.node("Unsqueeze", part, g.integers(-1)) for part in (g.node("Neg", odd), even)]
    return g.node("Reshape", g.node("Concat", *parts, axis=-1), g.integers(0, 0, 0, HEAD))


def rotated(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
    cos, sin = trig
    straight = g.node("Mul", x, cos)
    return g.node("Add", straight, g.node("Mul", turned(g, x, repeated), sin), name=name)


def decoder(
    trig: Trig | list[Trig],
    *,
    layers: int = 2,
    repeated: bool = False,
    rotate: Callable[..., str] = rotated,
    cache: bool = False,
) -> onnx.ModelProto:
    """A decoder of some layers; trig: of all layers, or of the query and of the key."""
    g = Graph()
    sides = []
    for make in trig if isinstance(trig, list) else [trig]:
        cos, sin = make(g)
        sides.append([g.node("Unsqueeze", part, g.integers(1)) for part in (cos, sin)])
    value = g.node("Gather", g.weight(VOCAB, HIDDEN), "input_ids")
    presents = []
    for layer in range(layers):
        heads = []
        for _ in "qkv":
            flat = g.node("MatMul", value, g.weight(HIDDEN, HEADS * HEAD))
            split = g.node("Reshape", flat, g.integers(0, 0, HEADS, HEAD))
            heads.append(g.node("Transpose", split, perm=[0, 2, 1, 3]))
        q = rotate(g, heads[0], sides[0], repeated, f"q{layer}")
        k = rotate(g, heads[1], sides[-1], repeated, f"k{layer}")
        v = heads[2]
        if cache:
            k = g.node(
                "Concat", f"past_key_values.{layer}.key", k, axis=2, name=f"present.{layer}.key"
            )
            v = g.node(
                "Concat", f"past_key_values.{layer}.value", v, axis=2, name=f"present.{layer}.value"
            )
            presents += [k, v]
        scaled = g.node("Mul", q, g.constant(HEAD**-0.5))
        scores = g.node(
            "MatMul", scaled, g.node("Transpose", k, perm=[0, 1, 3, 2]), name=f"scores{layer}"
        )
        attended = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
        back = g.node("Transpose", attended, perm=[0, 2, 1, 3])
        joined = g.node("Reshape", back, g.integers(0, 0, HEADS * HEAD))
        value = g.node("Add", value, g.node("MatMul", joined, g.weight(HEADS * HEAD, HIDDEN)))
    g.node("MatMul", value, g.weight(HIDDEN, VOCAB), name="logits")
    fed = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"])
        for name in ("input_ids", "position_ids")
    ]
    if cache:
        fed += [
            helper.make_tensor_value_info(
                f"past_key_values.{layer}.{what}", TensorProto.FLOAT, ["b", HEADS, "p", HEAD]
            )
            for layer in range(layers)
            for what in ("key", "value")
        ]
    outputs = ["logits", *presents]
    graph = helper.make_graph(
        g.nodes, "plain", fed,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        g.constants,
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10, producer_name="tests"
    )


def write_pack(folder: Path, model: onnx.ModelProto, **config: Any) -> Path:
    """The model and a Llama's config.json, as transformers writes it."""
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    layers = sum(node.op_type == "Softmax" for node in model.graph.node)
    write_json(
        folder / "config.json",
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": HIDDEN,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "head_dim": HEAD,
            "vocab_size": VOCAB,
            "max_position_embeddings": 64,
            "rope_theta": 10000.0,
            **config,
        },
    )
    return folder


def twice(table: NDArray[Any], repeated: bool = False) -> NDArray[Any]:
    """A table [rows, pairs] with each value twice."""
    return np.repeat(table, 2, axis=1) if repeated else np.tile(table, 2)


def change_config(pack: Path, **changes: Any) -> None:
    path = pack / "config.json"
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **changes})
