"""Nothing that may rotate is passed over: every op, body and layer has a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
from builders import tiny_pack
from graphs import edit, facts, insert_before, node, the_reason
from onnx import TensorProto, helper

from packimport.graph import ops
from packimport.graph.site import Hints

MICROSOFT = "com.microsoft"
Change = Callable[[onnx.ModelProto], None]


def become(op: str, domain: str = MICROSOFT) -> Change:
    """The attention of layer 1 becomes a node of another op."""

    def change(model: onnx.ModelProto) -> None:
        target = node(model, "GroupQueryAttention", 1)
        target.op_type, target.domain = op, domain

    return change


@pytest.mark.parametrize(
    ("domain", "op", "reason"),
    [
        (MICROSOFT, "PagedAttention", "its sin table is left out"),
        (MICROSOFT, "SparseAttention", "its cos table is left out"),
        (MICROSOFT, "MultiHeadAttention", "is no input of the graph"),
        (MICROSOFT, "Attention", "nothing can mend"),
        (MICROSOFT, "QAttention", "nothing can mend"),
        (MICROSOFT, "DecoderMaskedSelfAttention", "nothing can mend"),
        (MICROSOFT, "LatentAttention", "not read yet"),
        ("com.ryzenai", "LinearAttention", "domain com.ryzenai"),
        ("com.amd", "FlatAttention", "domain com.amd"),
    ],
)
@pytest.mark.parametrize("hints", [Hints(), Hints(past_key_names="past_key_values.%d.key")])
def test_other_attention_ops(
    domain: str, op: str, reason: str, hints: Hints, tmp_path: Path
) -> None:
    found = facts(edit(tiny_pack(tmp_path / "p"), become(op, domain)), hints)
    assert any(u.op == op and reason in u.reason for u in found.unread), found.unread
    assert [site.layers for site in found.sites] == [(0,)]
    # An attention op is a layer by its name; one that is not is found by its key cache.
    if hints.past_key_names or "Attention" in op:
        assert {u.layer for u in found.unread} >= {1}
    assert found.unrotated == ()


@pytest.mark.parametrize(
    ("domain", "op", "reason"),
    [
        (MICROSOFT, "GemmaRotaryEmbedding", "not read yet"),
        (MICROSOFT, "SparseAttentionIndexer", "not read yet"),
        (MICROSOFT, "EPContext", "compiled graph"),
        ("", "Cos", "computes a table"),
        ("", "Sin", "computes a table"),
        ("com.ryzenai", "MLADFMHAROPE", "domain com.ryzenai"),
        ("vendor.example", "Anything", "domain vendor.example"),
    ],
)
def test_ops_that_may_rotate(domain: str, op: str, reason: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for index in range(3):
            made = helper.make_node(op, ["logits"], [f"x{index}"], f"n{index}", domain=domain)
            model.graph.node.append(made)

    unread = the_reason(facts(edit(tiny_pack(tmp_path / "p"), change)))
    assert (unread.node, unread.op, unread.layer) == ("n0", op, None)
    assert reason in unread.reason
    assert "(2 more such nodes)" in unread.reason


@pytest.mark.parametrize(
    ("domain", "op"),
    [
        ("", "RotaryEmbedding"),
        ("ai.onnx", "RotaryEmbedding"),
        (MICROSOFT, "RotaryEmbedding"),
        (MICROSOFT, "MRotaryEmbedding"),
        (MICROSOFT, "RMSNormRotary"),
    ],
)
def test_ops_that_rotate_what_no_attention_takes(domain: str, op: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for index in range(3):
            made = helper.make_node(op, ["logits"], [f"x{index}"], f"n{index}", domain=domain)
            model.graph.node.append(made)

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert [(u.node, u.op, u.layer) for u in found.unread] == [
        (f"n{i}", op, None) for i in range(3)
    ]
    assert all("no attention node is known to take" in u.reason for u in found.unread)


def test_every_op_of_the_runtime_that_is_named_for_rotation_or_attention_is_caught() -> None:
    """The op types that onnxruntime has, by its own list."""
    for schema in ort_state.get_all_operator_schema():
        kind = (schema.domain, schema.name)
        named = any(word in schema.name for word in ("Attention", "Attn", "Rotary"))
        if named and kind not in ops.READ | ops.STILL:
            assert ops.refusal(kind), kind
        takes_tables = {"cos_cache", "sin_cache"} & {value.name for value in schema.inputs}
        rotates = takes_tables or "do_rotary" in schema.attributes
        assert named or not rotates, kind


# --- bodies --------------------------------------------------------------------------------


def nested(depth: int, *made: onnx.NodeProto) -> onnx.NodeProto:
    """An If around nodes, `depth` deep."""
    outputs = [helper.make_empty_tensor_value_info(made[-1].output[0])]
    body = helper.make_graph(list(made), "body", [], outputs)
    for level in range(depth):
        output = f"if{level}"
        around = helper.make_node(
            "If", ["mask_sum"], [output], output, then_branch=body, else_branch=body
        )
        outputs = [helper.make_empty_tensor_value_info(output)]
        body = helper.make_graph([around], "body", [], outputs)
    return body.node[0]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize(
    ("op", "domain"),
    [
        ("GroupQueryAttention", MICROSOFT),
        ("RotaryEmbedding", MICROSOFT),
        ("PagedAttention", MICROSOFT),
        ("Cos", ""),
        ("Op", "com.ryzenai"),
    ],
)
def test_nested_bodies(op: str, domain: str, depth: int, tmp_path: Path) -> None:
    made = helper.make_node(op, ["logits"], ["inner"], "inside", domain=domain)
    pack = edit(
        tiny_pack(tmp_path / "p"), lambda model: model.graph.node.append(nested(depth, made))
    )
    found = facts(pack)
    assert len(found.unread) == 2**depth  # both branches of each If
    assert found.unread[0].node.startswith("inside in else_branch of if0")
    assert {u.op for u in found.unread} == {op}
    assert [site.layers for site in found.sites] == [(0, 1)]


def test_attention_in_plain_ops_in_a_nested_body(tmp_path: Path) -> None:
    plain = [
        helper.make_node("Softmax", ["logits"], ["s"]),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "logits"], ["inner"]),
    ]
    pack = edit(tiny_pack(tmp_path / "p"), lambda model: model.graph.node.append(nested(1, *plain)))
    assert {u.op for u in facts(pack).unread} == {"Softmax"}


def test_a_softmax_that_leads_to_no_product_is_no_attention(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("Softmax", ["logits"], ["probabilities"]))
        model.graph.node.append(helper.make_node("TopK", ["probabilities", "one"], ["v", "i"]))

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert (found.unread, found.layers) == ((), 2)


def test_functions(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        made = helper.make_node("RotaryEmbedding", ["x"], ["y"], "r", domain=MICROSOFT)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        model.functions.append(helper.make_function("own", "Turn", ["x"], ["y"], [made], opsets))
        harmless = helper.make_node("Add", ["x", "x"], ["y"])
        model.functions.append(
            helper.make_function("own", "Twice", ["x"], ["y"], [harmless], opsets)
        )
        for op in ("Turn", "Twice"):
            model.graph.node.append(helper.make_node(op, ["logits"], [op], domain="own"))

    unread = the_reason(facts(edit(tiny_pack(tmp_path / "p"), change)))
    assert (unread.node, unread.op) == ("r in function Turn", "RotaryEmbedding")


def test_a_function_that_takes_the_place_of_an_op(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        harmless = helper.make_node("Identity", ["x"], ["y"])
        function = helper.make_function(
            MICROSOFT,
            "GroupQueryAttention",
            ["x"],
            ["y"],
            [harmless],
            [helper.make_opsetid("", 21)],
        )
        model.functions.append(function)

    unread = the_reason(facts(edit(tiny_pack(tmp_path / "p"), change)))
    assert "takes an op's place" in unread.reason


# --- layers --------------------------------------------------------------------------------


def test_a_key_cache_that_no_attention_takes(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        attention = node(model, "GroupQueryAttention", 1)
        plain = helper.make_node(
            "Concat", [attention.input[3], attention.input[1]], ["keys"], axis=2
        )
        insert_before(model, attention, plain)
        attention.op_type, attention.domain = "Add", ""
        attention.input[:] = attention.input[:2]

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    unread = the_reason(found)
    assert (unread.op, unread.layer) == ("Concat", 1)
    assert "takes the key cache past_key_values.1.key" in unread.reason


def test_a_graph_without_attention(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        del model.graph.node[:]

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert (found.layers, found.sites, found.unread, found.unrotated) == (0, (), (), ())


def test_names_of_strangers_are_printable_and_short(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        made = helper.make_node("Cos", ["logits"], ["x"], "\x1b[2J" + "n" * 5000)
        model.graph.node.append(made)

    unread = the_reason(facts(edit(tiny_pack(tmp_path / "p"), change)))
    assert unread.node.isprintable()
    assert len(unread.node) < 500
