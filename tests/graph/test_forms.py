"""The two forms that are read: what a node says of itself, its positions, its tables, its layer.

What the kernels do with an attribute is as onnxruntime 1.32 documents its ops.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Tables, plain, tiny_pack
from graphs import HINTS, edit, facts, insert_before, node, set_attribute, the_reason
from onnx import TensorProto, helper, numpy_helper

from packimport.errors import GraphError
from packimport.graph.site import Hints

FORMS = ("gqa", "rotary_embedding")
Change = Callable[[onnx.ModelProto], None]


def per_layer(layer: int) -> Tables:
    return plain(64, 8, 10000.0 * (1 + layer))


# --- grouping and layers -------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_nodes_of_one_table_are_one_site(form: str, tmp_path: Path) -> None:
    found = facts(tiny_pack(tmp_path / "p", layers=12, form=form))
    (site,) = found.sites
    assert (found.layers, site.layers, found.unread) == (12, tuple(range(12)), ())
    assert len(site.nodes) == (12 if form == "gqa" else 24)


@pytest.mark.parametrize("form", FORMS)
def test_tables_per_layer_are_sites_per_layer(form: str, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", layers=12, form=form, shared=False, tables=per_layer)
    sites = facts(pack).sites
    assert [site.layers for site in sites] == [(layer,) for layer in range(12)]
    assert [site.cos.name for site in sites] == [f"cos_{layer}" for layer in range(12)]


@pytest.mark.parametrize("form", FORMS)
def test_layers_without_rotation_are_a_fact(form: str, tmp_path: Path) -> None:
    tables = plain(64, 8)
    pack = tiny_pack(
        tmp_path / "p", layers=8, form=form, tables=lambda n: None if n % 4 == 3 else tables
    )
    found = facts(pack)
    assert (found.layers, found.unrotated, found.unread) == (8, (3, 7), ())
    assert [site.layers for site in found.sites] == [(0, 1, 2, 4, 5, 6)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("interleaved", [True, False])
def test_how_a_node_pairs_entries(form: str, interleaved: bool, tmp_path: Path) -> None:
    (site,) = facts(tiny_pack(tmp_path / "p", form=form, interleaved=interleaved)).sites
    assert site.interleaved is interleaved


def test_two_ways_to_pair_are_two_sites(tmp_path: Path) -> None:
    pack = edit(
        tiny_pack(tmp_path / "p"),
        lambda model: set_attribute(node(model, "GroupQueryAttention", 1), "rotary_interleaved", 1),
    )
    sites = facts(pack).sites
    assert [(s.layers, s.interleaved, s.cos.name) for s in sites] == [
        ((0,), False, "cos"),
        ((1,), True, "cos"),
    ]


@pytest.mark.parametrize(
    ("form", "rotary_dim", "width", "expected"),
    [
        ("gqa", None, 8, (16, None)),
        ("gqa", None, 4, (8, None)),
        ("rotary_embedding", None, 8, (16, 16)),
        ("rotary_embedding", None, 4, (8, 8)),
        ("rotary_embedding", 8, 4, (8, None)),
        ("rotary_embedding", 8, 8, (8, None)),
        ("rotary_embedding", 16, 4, (16, None)),
    ],
)
def test_how_much_rotates(
    form: str, rotary_dim: int | None, width: int, expected: tuple[int, int | None], tmp_path: Path
) -> None:
    pack = tiny_pack(tmp_path / "p", form=form, rotary_dim=rotary_dim, tables=plain(64, width))
    (site,) = facts(pack).sites
    assert (site.rotary_dim, site.head_dim) == expected
    assert (site.rows, site.pairs) == (64, width)


def test_a_cache_that_names_its_layer_gives_the_number(tmp_path: Path) -> None:
    """As in models whose other layers have no cache of keys."""

    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *(x for x in model.graph.output)):
            value.name = value.name.replace(".1.", ".7.")
        for made in model.graph.node:
            made.input[:] = [
                x.replace("past_key_values.1.", "past_key_values.7.") for x in made.input
            ]
            made.output[:] = [x.replace("present.1.", "present.7.") for x in made.output]

    pack = edit(tiny_pack(tmp_path / "p"), change)
    assert facts(pack).sites[0].layers == (0, 7)
    assert facts(pack, Hints()).sites[0].layers == (0, 1)
    assert facts(pack, Hints(past_key_names="no place for a number")).sites[0].layers == (0, 1)


def swap_caches(model: onnx.ModelProto) -> None:
    first, second = (node(model, "GroupQueryAttention", n) for n in (0, 1))
    first.input[3], second.input[3] = second.input[3], first.input[3]


def test_caches_that_contradict_the_order_of_the_layers(tmp_path: Path) -> None:
    found = facts(edit(tiny_pack(tmp_path / "p"), swap_caches))
    assert [u.layer for u in found.unread] == [None, None]
    assert "otherwise than the graph runs them" in found.unread[0].reason


def test_nodes_out_of_order_need_caches_that_name_the_layers(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        first = node(model, "GroupQueryAttention")
        moved = onnx.NodeProto()
        moved.CopyFrom(first)
        model.graph.node.remove(first)
        model.graph.node.append(moved)

    pack = edit(tiny_pack(tmp_path / "p", layers=3), change)
    for hints, reason in ((HINTS, "otherwise than"), (Hints(), "not in the order they run in")):
        found = facts(pack, hints)
        assert len(found.unread) == 3
        assert reason in found.unread[0].reason


def test_a_cache_that_is_no_input(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        target = node(model, "GroupQueryAttention", 1)
        insert_before(model, target, helper.make_node("Neg", [target.input[3]], ["negative"]))
        target.input[3] = "negative"

    found = facts(edit(tiny_pack(tmp_path / "p"), change))
    assert "its key cache negative is no input of the graph" in found.unread[0].reason


# --- attributes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "op", "name", "value"),
    [
        ("gqa", "GroupQueryAttention", "do_rotary", 2),
        ("gqa", "GroupQueryAttention", "rotary_interleaved", 2),
        ("rotary_embedding", "RotaryEmbedding", "interleaved", -1),
        ("rotary_embedding", "RotaryEmbedding", "rotary_embedding_dim", 7),
        ("rotary_embedding", "RotaryEmbedding", "rotary_embedding_dim", -8),
    ],
)
def test_attributes_that_kernels_read_otherwise(
    form: str, op: str, name: str, value: int, tmp_path: Path
) -> None:
    pack = edit(
        tiny_pack(tmp_path / "p", form=form),
        lambda model: set_attribute(node(model, op), name, value),
    )
    unread = the_reason(facts(pack))
    assert f"has {name} = {value}" in unread.reason
    assert unread.layer == 0
    assert facts(pack).unrotated == ()


@pytest.mark.parametrize("value", [1.0, "1", [1]])
def test_attributes_of_another_type(value: object, tmp_path: Path) -> None:
    pack = edit(
        tiny_pack(tmp_path / "p"),
        lambda model: set_attribute(node(model, "GroupQueryAttention"), "do_rotary", value),
    )
    with pytest.raises(GraphError, match="attribute do_rotary is no integer"):
        facts(pack)


# --- position ids --------------------------------------------------------------------------


def route(*ops: tuple[str, dict[str, object]], source: str = "position_ids") -> Change:
    """Puts ops between the position ids and every node that takes them."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "shape"))
        value = source
        takers = [n for n in model.graph.node if "position_ids" in n.input]
        made = []
        for index, (op, attributes) in enumerate(ops):
            second = ["shape"] if op in {"Reshape", "Add", "Expand", "Squeeze"} else []
            made.append(helper.make_node(op, [value, *second], [f"routed{index}"], **attributes))
            value = f"routed{index}"
        for taker in takers:
            taker.input[:] = [value if x == "position_ids" else x for x in taker.input]
        insert_before(model, model.graph.node[0], *made)

    return change


def gqa_with_positions(folder: Path) -> Path:
    def change(model: onnx.ModelProto) -> None:
        ids = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["b", "s"])
        model.graph.input.append(ids)
        for made in model.graph.node:
            if made.op_type == "GroupQueryAttention":
                made.input.append("position_ids")

    return edit(tiny_pack(folder), change)


def with_positions(form: str, folder: Path) -> Path:
    return gqa_with_positions(folder) if form == "gqa" else tiny_pack(folder, form=form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "ops",
    [
        [],
        [("Identity", {})],
        [("Reshape", {}), ("Cast", {"to": TensorProto.INT32}), ("Cast", {"to": TensorProto.INT64})],
        [("Unsqueeze", {}), ("Squeeze", {}), ("Flatten", {}), ("Expand", {})],
    ],
)
def test_positions_may_be_reshaped(
    form: str, ops: list[tuple[str, dict[str, object]]], tmp_path: Path
) -> None:
    found = facts(edit(with_positions(form, tmp_path / "p"), route(*ops)))
    assert (found.unread, found.sites[0].layers) == ((), (0, 1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([("Add", {})], "come from the Add node"),
        ([("Reshape", {}), ("Add", {}), ("Identity", {})], "come from the Add node"),
        ([("Cast", {"to": TensorProto.FLOAT16})], "a Cast to float16"),
        ([("Cast", {"to": TensorProto.INT8}), ("Cast", {"to": TensorProto.INT64})], "Cast to int8"),
        ([("Transpose", {})], "come from the Transpose node"),
    ],
)
def test_positions_may_not_be_changed(
    form: str, ops: list[tuple[str, dict[str, object]]], reason: str, tmp_path: Path
) -> None:
    found = facts(edit(with_positions(form, tmp_path / "p"), route(*ops)))
    assert found.sites == ()
    assert all("its position ids" in u.reason and reason in u.reason for u in found.unread)
    assert {u.layer for u in found.unread} == {0, 1}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("input_ids", "are the graph input input_ids, not position_ids"),
        ("shape", "are the constant shape"),
        ("nowhere", "by the positions nowhere, which nothing in the graph makes"),
        ("", "is left out"),
    ],
)
def test_positions_from_elsewhere(source: str, reason: str, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", form="rotary_embedding")
    found = facts(edit(pack, route(source=source)))
    assert reason in (*found.unread, *found.dangling)[0].reason


def test_genai_config_names_the_input_of_positions(tmp_path: Path) -> None:
    pack = edit(tiny_pack(tmp_path / "p", form="rotary_embedding"), route(source="input_ids"))
    assert facts(pack, Hints(position_ids="input_ids")).unread == ()


# --- tables --------------------------------------------------------------------------------


def reroute_table(*ops: tuple[str, dict[str, object]]) -> Change:
    """Puts ops between the cos table and the first node that takes it."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 0]), "indices"))
        taker = next(n for n in model.graph.node if "cos" in n.input)
        value, made = "cos", []
        for index, (op, attributes) in enumerate(ops):
            second = ["indices"] if op in {"Gather", "Mul"} else []
            made.append(helper.make_node(op, [value, *second], [f"table{index}"], **attributes))
            value = f"table{index}"
        taker.input[:] = [value if x == "cos" else x for x in taker.input]
        insert_before(model, taker, *made)

    return change


@pytest.mark.parametrize("form", FORMS)
def test_a_table_may_come_through_ops_that_change_nothing(form: str, tmp_path: Path) -> None:
    ops = [("Identity", {}), ("Cast", {"to": TensorProto.FLOAT}), ("Identity", {})]
    found = facts(edit(tiny_pack(tmp_path / "p", form=form), reroute_table(*ops)))
    assert (found.unread, [s.layers for s in found.sites]) == ((), [(0, 1)])
    assert found.sites[0].cos.name == "cos"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("op", "attributes", "reason"),
    [
        ("Cast", {"to": TensorProto.FLOAT16}, "a Cast from float32 to float16"),
        ("Gather", {}, "is picked by position ids that are the constant indices"),
        ("Mul", {}, "comes from the Mul node"),
        ("Transpose", {}, "comes from the Transpose node"),
    ],
)
def test_a_table_that_is_computed_is_not_read(
    form: str, op: str, attributes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    pack = edit(tiny_pack(tmp_path / "p", form=form), reroute_table((op, attributes)))
    first = facts(pack).unread[0]
    assert "its cos table" in first.reason
    assert reason in first.reason
    assert first.layer == 0


def drop_tables(model: onnx.ModelProto) -> None:
    for made in model.graph.node:
        made.input[:] = ["" if x in {"cos", "sin"} else x for x in made.input]


def feed_tables(model: onnx.ModelProto) -> None:
    for tensor in [t for t in model.graph.initializer if t.name in {"cos", "sin"}]:
        model.graph.initializer.remove(tensor)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, 1, [64, 8]))


def sparse_tables(model: onnx.ModelProto) -> None:
    for tensor in [t for t in model.graph.initializer if t.name in {"cos", "sin"}]:
        model.graph.initializer.remove(tensor)
        values = helper.make_tensor(tensor.name, TensorProto.FLOAT, [1], [1.0])
        indices = helper.make_tensor("", TensorProto.INT64, [1], [0])
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [64, 8]))


def lists_as_tables(model: onnx.ModelProto) -> None:
    for tensor in [t for t in model.graph.initializer if t.name in {"cos", "sin"}]:
        model.graph.initializer.remove(tensor)
        made = helper.make_node("Constant", [], [tensor.name], value_floats=[1.0, 2.0])
        insert_before(model, model.graph.node[0], made)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (drop_tables, "its cos table is left out"),
        (feed_tables, "comes from outside, as the graph input cos"),
        (sparse_tables, "comes from the sparse initializer cos"),
        (lists_as_tables, "comes from the Constant node"),
    ],
)
def test_tables_of_other_kinds(change: Change, reason: str, tmp_path: Path) -> None:
    pack = edit(tiny_pack(tmp_path / "p", layers=1), change)
    assert reason in the_reason(facts(pack)).reason


def test_a_table_that_a_feed_may_replace_is_still_the_table(tmp_path: Path) -> None:
    """Files of IR version 3 list every initializer among the inputs."""

    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(value)

    before = facts(tiny_pack(tmp_path / "p"))
    assert facts(edit(tmp_path / "p", change)) == before


# --- q and k -------------------------------------------------------------------------------


def one_less(model: onnx.ModelProto) -> None:
    """The key of layer 0 is no longer rotated."""
    rotary = node(model, "RotaryEmbedding", 1)
    node(model, "GroupQueryAttention").input[1] = rotary.input[0]


def twice(model: onnx.ModelProto) -> None:
    """GroupQueryAttention rotates what a RotaryEmbedding rotated."""
    attention = node(model, "GroupQueryAttention")
    set_attribute(attention, "do_rotary", 1)
    attention.input.extend(["cos", "sin"])


def in_a_row(model: onnx.ModelProto) -> None:
    """The query of layer 0 passes two RotaryEmbeddings."""
    first = node(model, "RotaryEmbedding", 0)
    again = onnx.NodeProto()
    again.CopyFrom(first)
    again.input[0], again.output[0] = first.output[0], "again"
    attention = node(model, "GroupQueryAttention")
    attention.input[0] = "again"
    insert_before(model, attention, again)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (one_less, "a query that is rotated 1 times and a key that is rotated 0 times"),
        (twice, "rotates what a RotaryEmbedding has rotated before"),
        (in_a_row, "a query that is rotated 2 times and a key that is rotated 1 times"),
    ],
)
def test_q_and_k_that_are_not_rotated_alike(change: Change, reason: str, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", form="rotary_embedding")
    found = facts(edit(pack, change))
    assert any(reason in u.reason and u.layer == 0 for u in found.unread)


def test_q_and_k_with_different_tables_are_two_sites_of_a_layer(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for name, values in zip(("cos_k", "sin_k"), plain(64, 8, 500.0), strict=True):
            tensor = numpy_helper.from_array(values.astype(np.float32), name)
            model.graph.initializer.append(tensor)
        node(model, "RotaryEmbedding", 1).input[2:] = ["cos_k", "sin_k"]

    pack = edit(tiny_pack(tmp_path / "p", form="rotary_embedding"), change)
    found = facts(pack)
    assert found.unread == ()
    assert [(s.cos.name, s.layers) for s in found.sites] == [("cos", (0, 1)), ("cos_k", (0,))]


def test_a_rotation_whose_result_goes_elsewhere(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        attention = node(model, "GroupQueryAttention")
        joined = helper.make_node("Concat", [attention.input[0]] * 2, ["joined"], axis=-1)
        insert_before(model, attention, joined)
        attention.input[0] = "joined"

    found = facts(edit(tiny_pack(tmp_path / "p", form="rotary_embedding"), change))
    reasons = {(u.op, u.layer): u.reason for u in found.unread}
    assert "no attention node is known to take" in reasons["RotaryEmbedding", None]
    assert "its query comes through the Concat node" in reasons["GroupQueryAttention", 0]
    assert 0 not in found.unrotated


def through(*made: onnx.NodeProto) -> Change:
    """Puts nodes from "in" to "out" between the projection of q and the attention of layer 0."""

    def change(model: onnx.ModelProto) -> None:
        constants = {"vector": [1.0] * 64, "folded": [[1.0] * 64] * 2, "number": 2.0}
        for name, values in constants.items():
            tensor = numpy_helper.from_array(np.array(values, np.float32), name)
            model.graph.initializer.append(tensor)
        attention = node(model, "GroupQueryAttention")
        for step in made:
            step.input[:] = [attention.input[0] if x == "in" else x for x in step.input]
        insert_before(model, attention, *made)
        attention.input[0] = "out"

    return change


def step(op: str, *inputs: str, output: str = "out", domain: str = "") -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], domain=domain)


@pytest.mark.parametrize(
    "made",
    [
        [step("Add", "in", "vector")],
        [step("Mul", "number", "in")],
        [step("Div", "in", "vector")],
        [step("Reshape", "in", "one", output="a"),
         step("SimplifiedLayerNormalization", "a", "vector", output="b"), step("Cast", "b")],
        [step("MatMul", "in", "folded", output="a"), step("Add", "a", "in")],
        [step("QuantizeLinear", "in", "number", output="a"),
         step("DequantizeLinear", "a", "number")],
    ],
)  # fmt: skip
def test_ops_that_cannot_rotate(made: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert facts(edit(tiny_pack(tmp_path / "p"), through(*made))).unread == ()


@pytest.mark.parametrize(
    ("made", "culprit"),
    [
        ([step("Mul", "in", "folded")], "Mul"),
        ([step("Mul", "in", "in")], "Mul"),
        ([step("Neg", "in")], "Neg"),
        ([step("Mul", "in", "folded", output="a"), step("Add", "in", "a")], "Mul"),
        ([step("MatMul", "in", "mask_sum")], "MatMul"),
        ([step("BiasGelu", "in", "vector", domain="com.microsoft")], "BiasGelu"),
    ],
)
def test_ops_that_might_rotate(made: list[onnx.NodeProto], culprit: str, tmp_path: Path) -> None:
    for rotated in (True, False):
        tables = None if rotated else (lambda layer: None)
        pack = tiny_pack(tmp_path / f"p{rotated}", tables=tables)
        found = facts(edit(pack, through(*made)))
        unread = the_reason(found)
        assert f"its query comes through the {culprit} node" in unread.reason
        assert (unread.layer, found.unrotated) == (0, () if rotated else (1,))
