"""Every branch of an `If` must have every layer; one without any attention is not passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import pytest
from builders import tiny_pack
from onnx import TensorProto, helper

from packimport import check, patch
from packimport.errors import PatchError

Change = Callable[[onnx.GraphProto], None]


def still(node: onnx.NodeProto) -> None:
    """A node that takes query and caches as the attention does, and attends to nothing."""
    node.op_type = "SkipSimplifiedLayerNormalization"
    node.input[:] = [node.input[0], node.input[3], node.input[4]]
    del node.attribute[:]


def attentions(body: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in body.node if node.op_type == "GroupQueryAttention"]


def none_left(body: onnx.GraphProto) -> None:
    for node in attentions(body):
        still(node)


def one_lost(body: onnx.GraphProto) -> None:
    still(attentions(body)[1])


def nothing(body: onnx.GraphProto) -> None:
    outputs = [value.name for value in body.output]
    del body.node[:]
    body.node.extend(helper.make_node("Identity", ["input_ids"], [name]) for name in outputs)


def by_length(change: Change | None, branch: str) -> Callable[[onnx.ModelProto], None]:
    """The whole decoder in both branches of an If for one token; one of them changed."""

    def wrap(model: onnx.ModelProto) -> None:
        graph = model.graph
        names = ("then_branch", "else_branch")
        branches = {
            name: helper.make_graph(list(graph.node), name, [], list(graph.output))
            for name in names
        }
        if change is not None:
            change(branches[branch])
        graph.initializer.append(helper.make_tensor("first", TensorProto.INT64, [], [1]))
        del graph.node[:]
        graph.node.extend(
            [
                helper.make_node("Shape", ["input_ids"], ["ids_shape"]),
                helper.make_node("Gather", ["ids_shape", "first"], ["tokens"]),
                helper.make_node("Equal", ["tokens", "first"], ["is_single"]),
                helper.make_node(
                    "If", ["is_single"], [v.name for v in graph.output], name="/If", **branches
                ),
            ]
        )

    return wrap


def test_the_same_layers_in_both_branches(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=64, config={}, change=by_length(None, ""))
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("ok", 0), report.text()
    onnxruntime.InferenceSession(str(pack / "model.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
@pytest.mark.parametrize(
    ("change", "lost"), [(none_left, "[0, 1]"), (one_lost, "[1]"), (nothing, "[0, 1]")]
)
def test_a_branch_that_lacks_layers(change: Change, lost: str, branch: str, tmp_path: Path) -> None:
    made = by_length(change, branch)
    pack = tiny_pack(tmp_path / "p", rows=64, config={}, change=made)
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    said = [f.message for f in report.findings if f.code == "RPE003"]
    assert any(f"the layers {lost}" in message for message in said), said
    with pytest.raises(PatchError, match="RPE003"):
        patch(pack, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_if_beside_the_layers_is_nobodys_layer(tmp_path: Path) -> None:
    """One that hands out a number has no attention in either branch."""

    def change(model: onnx.ModelProto) -> None:
        scalar = helper.make_tensor_value_info("x", TensorProto.BOOL, [])
        body = helper.make_graph(
            [helper.make_node("Constant", [], ["x"], value=helper.make_tensor("", 9, [], [True]))],
            "body", [], [scalar],
        )  # fmt: skip
        model.graph.initializer.append(helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
        made = helper.make_node("If", ["yes"], ["said"], then_branch=body, else_branch=body)
        model.graph.node.insert(0, made)

    report = check(tiny_pack(tmp_path / "p", rows=64, config={}, change=change))
    assert report.verdict == "ok", report.text()
