"""Packs with a short and a long table, in each layout that exporters have for them.

Built on tests/builders.py; nothing here comes from packimport.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import Tables, plain, tiny_pack, write_json
from onnx import TensorProto, helper, numpy_helper

LIMIT, ROWS, PAIRS = 16, 64, 8
SHORT = [1.0 + i / 10 for i in range(PAIRS)]
LONG = [1.0 + 2 * i for i in range(PAIRS)]
CONFIG = {
    "model_type": "phi3",
    "max_position_embeddings": ROWS,
    "original_max_position_embeddings": LIMIT,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "attention_factor": 1.0,
    },
}


def table(divisors: list[float], rows: int) -> Tables:
    """LongRoPE's table (arXiv 2402.13753): plain angles over a list, attention factor 1."""
    inverse = 10000.0 ** -(np.arange(PAIRS) / PAIRS) / np.array(divisors)
    angles = np.outer(np.arange(rows), inverse)
    return np.cos(angles), np.sin(angles)


def concatenated() -> Tables:
    cos, sin = (
        np.vstack([short, long])
        for short, long in zip(table(SHORT, LIMIT), table(LONG, ROWS), strict=True)
    )
    return cos, sin


def pack_of(folder: Path, *, form: str, tables: Tables | None = None, **options: Any) -> Path:
    """A pack whose table `cos`, `sin` a change of the graph replaces or reads otherwise."""
    made = plain(ROWS, PAIRS) if tables is None else tables
    return tiny_pack(folder, rows=ROWS, form=form, tables=made, config=CONFIG, **options)


def tensor(name: str, values: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(values.astype(np.float32), name)


def branch(names: list[str], values: list[np.ndarray]) -> onnx.GraphProto:
    """A branch that hands out Constants."""
    nodes = [
        helper.make_node("Constant", [], [name], f"/{name}", value=tensor(name, value))
        for name, value in zip(names, values, strict=True)
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    return helper.make_graph(nodes, "branch", [], outputs)


def retable(model: onnx.ModelProto, *made: onnx.NodeProto) -> None:
    """Put nodes in front that make `cos` and `sin`, whose initializers go."""
    kept = [t for t in model.graph.initializer if t.name not in {"cos", "sin"}]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def length_nodes(limit: int = LIMIT, op: str = "Greater") -> list[onnx.NodeProto]:
    """`is_long`: the width of the attention mask compared with a number."""
    number = numpy_helper.from_array(np.array(limit), "limit")
    index = numpy_helper.from_array(np.array(1), "width")
    return [
        helper.make_node("Constant", [], ["limit"], value=number),
        helper.make_node("Constant", [], ["width_index"], value=index),
        helper.make_node("Shape", ["attention_mask"], ["mask_dims"]),
        helper.make_node("Gather", ["mask_dims", "width_index"], ["mask_width"], axis=0),
        helper.make_node(op, ["mask_width", "limit"], ["is_long"]),
    ]


def one_if(
    model: onnx.ModelProto, *, limit: int = LIMIT, op: str = "Greater", swapped: bool = False
) -> None:
    """Both tables as Constants in one If, as for CPU and CUDA."""
    long = branch(["cos_large", "sin_large"], list(table(LONG, ROWS)))
    short = branch(["cos_small", "sin_small"], list(table(SHORT, LIMIT)))
    then, other = (short, long) if swapped else (long, short)
    choice = helper.make_node(
        "If", ["is_long"], ["cos", "sin"], "/If", then_branch=then, else_branch=other
    )
    retable(model, *length_nodes(limit, op), choice)


def two_ifs(model: onnx.ModelProto) -> None:
    """One If per table, the short one padded with cos 1 and sin 0, as for TensorRT RTX."""
    made = []
    for name, short, long, padding in zip(
        ("cos", "sin"), table(SHORT, LIMIT), table(LONG, ROWS), (1.0, 0.0), strict=True
    ):
        padded = np.vstack([short, np.full((ROWS - LIMIT, PAIRS), padding)])
        made.append(
            helper.make_node(
                "If", ["is_long"], [name], f"/If_{name}",
                then_branch=branch([f"{name}_large"], [long]),
                else_branch=branch([f"{name}_small"], [padded]),
            )
        )  # fmt: skip
    retable(model, *length_nodes(), *made)


def sliced_if(model: onnx.ModelProto) -> None:
    """Branches that slice initializers of the main graph to the rows in use."""
    for name, values in zip(
        ("cos_long", "sin_long", "cos_short", "sin_short"),
        (*table(LONG, ROWS), *table(SHORT, LIMIT)),
        strict=True,
    ):
        model.graph.initializer.append(tensor(name, values))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero_row"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one_row"))
    row = helper.make_node("Reshape", ["mask_width", "one_row"], ["rows_in_use"])

    def cut(which: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node(
                "Slice", [f"{part}_{which}", "zero_row", "rows_in_use", "zero_row"],
                [f"{part}_{which}_used"],
            )
            for part in ("cos", "sin")
        ]  # fmt: skip
        outputs = [
            helper.make_tensor_value_info(f"{part}_{which}_used", TensorProto.FLOAT, None)
            for part in ("cos", "sin")
        ]
        return helper.make_graph(nodes, which, [], outputs)

    choice = helper.make_node(
        "If", ["is_long"], ["cos", "sin"], "/If", then_branch=cut("long"), else_branch=cut("short")
    )
    retable(model, *length_nodes(), row, choice)


def shift(
    model: onnx.ModelProto, *, rows: int = LIMIT, limit: int = LIMIT, where: bool = False
) -> None:
    """Position ids that jump over the short rows once the call is long, as for DirectML."""
    numbers = {"limit": limit, "rows": rows, "none": 0}
    made = [
        helper.make_node(
            "Constant", [], [f"{name}_number"], value=numpy_helper.from_array(np.array(value), name)
        )
        for name, value in numbers.items()
    ]
    made += [
        helper.make_node("ReduceMax", ["position_ids"], ["longest"], keepdims=0),
        helper.make_node("GreaterOrEqual", ["longest", "limit_number"], ["is_long"]),
    ]
    if where:
        made.append(helper.make_node("Where", ["is_long", "rows_number", "none_number"], ["jump"]))
    else:
        made += [
            helper.make_node("Cast", ["is_long"], ["is_long_number"], to=TensorProto.INT64),
            helper.make_node("Mul", ["is_long_number", "rows_number"], ["jump"]),
        ]
    made.append(helper.make_node("Add", ["jump", "position_ids"], ["jumped"]))
    for node in model.graph.node:
        if node.op_type == "RotaryEmbedding":
            node.input[1] = "jumped"
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def with_option(pack: Path, name: str, value: object) -> Path:
    """An option of an execution provider in genai_config.json."""
    path = pack / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"]["decoder"]["session_options"]["provider_options"] = [{"ep": {name: value}}]
    write_json(path, config)
    return pack


Change = Callable[[onnx.ModelProto], None]
