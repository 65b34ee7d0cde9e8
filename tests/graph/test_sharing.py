"""Tables whose bytes something else uses as well: rewriting them would change that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import plain, tiny_pack
from graphs import edit, facts, node, the_reason
from onnx import helper, numpy_helper

Change = Callable[[onnx.ModelProto], None]


def another_taker(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["cos"], ["used"], "user"))


def an_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("cos", 1, [64, 8]))


def a_nested_taker(model: onnx.ModelProto) -> None:
    inner = helper.make_node("Neg", ["cos"], ["inner"])
    body = helper.make_graph([inner], "b", [], [helper.make_empty_tensor_value_info("inner")])
    made = helper.make_node("If", ["p"], ["used"], "user", then_branch=body, else_branch=body)
    model.graph.node.append(made)


def after_an_identity(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Identity", ["cos"], ["same"]))
    model.graph.node.append(helper.make_node("Neg", ["same"], ["used"], "user"))
    for made in model.graph.node:
        if made.op_type == "GroupQueryAttention":
            made.input[7] = "same"


@pytest.mark.parametrize(
    ("change", "user"),
    [
        (another_taker, "the Neg node user"),
        (an_output, "an output of the graph"),
        (a_nested_taker, "else_branch of user"),
        (after_an_identity, "the Neg node user"),
    ],
)
def test_another_use_of_a_table(change: Change, user: str, tmp_path: Path) -> None:
    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert any(f"is also used by {user}" in unread.reason for unread in found.unread)
    assert found.sites[0].layers == (0, 1)


def overlap(name: str, offset: int) -> Change:
    """Moves a weight of the data file over the tables: cos at 0, sin at 2048."""

    def change(model: onnx.ModelProto) -> None:
        (tensor,) = [t for t in model.graph.initializer if t.name == name]
        (entry,) = [e for e in tensor.external_data if e.key == "offset"]
        entry.value = str(offset)

    return change


@pytest.mark.parametrize(
    ("name", "offset", "table"),
    [("norm.weight", 0, "cos"), ("norm.weight", 1920, "cos"), ("embedding", 4095, "sin")],
)
def test_a_weight_over_a_table(name: str, offset: int, table: str, tmp_path: Path) -> None:
    unread = the_reason(facts(edit(tiny_pack(tmp_path / "p"), overlap(name, offset))))
    assert f"its table {table} is also used by the tensor {name}" in unread.reason


def test_a_weight_beside_a_table(tmp_path: Path) -> None:
    assert facts(edit(tiny_pack(tmp_path / "p"), overlap("embedding", 4096))).unread == ()


def test_a_table_over_another(tmp_path: Path) -> None:
    unread = the_reason(facts(edit(tiny_pack(tmp_path / "p"), overlap("sin", 1024))))
    assert "its table sin is also used by the tensor cos" in unread.reason


def test_one_table_under_two_names_is_one_site(tmp_path: Path) -> None:
    """Writers of external data store equal tensors once."""

    def change(model: onnx.ModelProto) -> None:
        places = {
            t.name: t.external_data for t in model.graph.initializer if t.name in {"cos_0", "sin_0"}
        }
        for tensor in model.graph.initializer:
            if tensor.name in {"cos_1", "sin_1"}:
                del tensor.external_data[:]
                tensor.external_data.extend(places[tensor.name.replace("_1", "_0")])

    pack = tiny_pack(tmp_path / "p", shared=False, tables=lambda layer: plain(64, 8))
    found = facts(edit(pack, change))
    assert (found.unread, [s.layers for s in found.sites]) == ((), [(0, 1)])


def test_a_table_in_two_roles(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        attention = node(model, "GroupQueryAttention", 1)
        attention.input[7], attention.input[8] = attention.input[8], attention.input[7]

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert "its sin table sin is a cos table as well" in found.unread[0].reason


def test_a_table_that_is_cos_and_sin(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        node(model, "GroupQueryAttention").input[8] = "cos"

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert "its sin table cos is a cos table as well" in found.unread[0].reason


def test_tensors_that_nothing_rotates_with_may_overlap(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        overlap("norm.weight", 8192)(model)
        values = np.zeros(4, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, "unused"))

    assert facts(edit(tiny_pack(tmp_path / "p"), change)).unread == ()
