"""Ops beside GroupQueryAttention and contrib RotaryEmbedding, nested bodies, functions, pipelines.

Inputs of the ops are as the schemas of onnx 1.23 and onnxruntime 1.32 name them; a test
looks them up there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
from builders import INPUTS, Tables, plain, rename_everything, tiny_pack, write_json
from graphs import edit, facts, node, set_attribute
from mending.mended import run
from onnx import TensorProto, helper, numpy_helper
from ort_version import ORT

from packimport import check, patch
from packimport.audit.report import Report
from packimport.errors import GraphError, PatchError
from packimport.graph import ops
from packimport.graph.site import Hints

MICROSOFT = "com.microsoft"
ROWS, PAIRS = 64, 8


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def schema_inputs(domain: str, op: str) -> list[str]:
    found = [s for s in ort_state.get_all_operator_schema() if (s.domain, s.name) == (domain, op)]
    if not found and ORT < (1, 32):
        pytest.skip(f"this onnxruntime has no {op}")
    newest = max(found, key=lambda schema: schema.since_version)
    return [value.name for value in newest.inputs]


@pytest.mark.parametrize("kind", sorted(ops.ATTENTIONS))
def test_inputs_of_attentions_are_those_of_the_schemas(kind: tuple[str, str]) -> None:
    names, inputs = schema_inputs(*kind), ops.ATTENTIONS[kind]
    assert names[inputs.query] in {"query", "Q"}
    assert names[inputs.key] in {"key", "K"}
    assert names[inputs.past_key] in {"past_key", "key_cache"}
    for what, index in (("cos_cache", inputs.cos), ("sin_cache", inputs.sin)):
        assert (what in names) == (index is not None)
        assert index is None or names[index] == what
    assert inputs.positions is None or names[inputs.positions] == "position_ids"


@pytest.mark.parametrize(
    ("kind", "positions", "cos", "sin"),
    [
        (ops.ROTARY_EMBEDDING, 1, 2, 3),
        (ops.MROTARY_EMBEDDING, 1, 2, 3),
        (ops.NORM_ROTARY, 2, 3, 4),
        (ops.ONNX_ROTARY_EMBEDDING, 3, 1, 2),
    ],
)
def test_inputs_of_rotations_are_those_of_the_schemas(
    kind: tuple[str, str], positions: int, cos: int, sin: int
) -> None:
    names = schema_inputs(*kind)
    assert names[positions] == "position_ids"
    assert names[cos].startswith("cos")
    assert names[sin].startswith("sin")


def as_attention(op: str) -> Any:
    """Every attention becomes another op that rotates by itself, its inputs where it has them."""
    inputs = ops.ATTENTIONS[MICROSOFT, op]

    def change(model: onnx.ModelProto) -> None:
        for target in model.graph.node:
            if target.op_type != "GroupQueryAttention":
                continue
            given = list(target.input)
            assert inputs.cos is not None
            assert inputs.sin is not None
            moved = [""] * (inputs.sin + 1)
            moved[:3], moved[inputs.past_key] = given[:3], given[3]
            moved[inputs.cos], moved[inputs.sin] = given[7], given[8]
            target.input[:] = moved
            target.op_type = op

    return change


@pytest.mark.parametrize(
    "op", ["PagedAttention", "SparseAttention", "DynamicSparseAttention", "SparsePagedAttention"]
)
def test_other_attentions_that_rotate(op: str, tmp_path: Path) -> None:
    tables = plain(ROWS, PAIRS, 500.0)
    pack = tiny_pack(tmp_path / "p", tables=tables, config={}, change=as_attention(op))
    report = check(pack)
    assert codes(report) == ["RPE001"], report.text()
    assert report.sites[0].site.form == op
    assert report.sites[0].site.layers == (0, 1)
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"

    def offset(model: onnx.ModelProto) -> None:
        set_attribute(node(model, op), "rotary_offset", 4)

    report = check(edit(pack, offset))
    assert report.verdict == "unsupported"
    assert "rotary_offset = 4" in report.text()


def multi_head(model: onnx.ModelProto) -> None:
    """MultiHeadAttention behind RotaryEmbedding nodes, as for CPU packs of models with biases."""
    for target in model.graph.node:
        if target.op_type == "GroupQueryAttention":
            given = list(target.input)
            target.input[:] = [*given[:3], "", "", "", given[3], given[4]]
            target.op_type = "MultiHeadAttention"
            del target.attribute[:]


def test_multi_head_attention_takes_rotated_values(tmp_path: Path) -> None:
    tables = plain(ROWS, PAIRS, 500.0)
    pack = tiny_pack(
        tmp_path / "p", form="rotary_embedding", tables=tables, config={}, change=multi_head
    )
    report = check(pack)
    assert codes(report) == ["RPE001"]
    assert report.sites[0].site.layers == (0, 1)
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"
    bare = tiny_pack(
        tmp_path / "q", form="rotary_embedding", tables=lambda _: None, config={}, change=multi_head
    )
    assert codes(check(bare)) == ["RPE006"]


@pytest.mark.parametrize("op", ["Attention", "QAttention", "DecoderMaskedSelfAttention"])
@pytest.mark.parametrize("rotary", [0, 1])
def test_ops_with_a_table_of_their_own(op: str, rotary: int, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for target in model.graph.node:
            if target.op_type == "GroupQueryAttention":
                target.op_type = op
                set_attribute(target, "do_rotary", rotary)

    report = check(tiny_pack(tmp_path / "p", config={}, change=change))
    assert report.exit_code == 1
    assert codes(report)[0] == ("RPE023" if rotary else "RPE006")
    assert report.sites == ()


def as_onnx(model: onnx.ModelProto) -> None:
    """Every contrib RotaryEmbedding becomes that of ONNX."""
    for target in model.graph.node:
        if target.op_type == "RotaryEmbedding":
            value, positions, cos, sin = target.input
            target.input[:] = [value, cos, sin, positions]
            target.domain = ""
            set_attribute(target, "num_heads", 4 if ".q_" in target.name else 2)


def test_rotary_embedding_of_onnx(tmp_path: Path) -> None:
    tables = plain(ROWS, PAIRS, 500.0)
    pack = tiny_pack(
        tmp_path / "p", form="rotary_embedding", tables=tables, config={}, change=as_onnx
    )
    report = check(pack)
    assert codes(report) == ["RPE001"], report.text()
    assert {j.site.form for j in report.sites} == {"RotaryEmbedding of ONNX"}
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"


def without_positions(model: onnx.ModelProto) -> None:
    """cos and sin [batch, tokens, pairs], gathered from the tables in front of each node."""
    as_onnx(model)
    made = [
        helper.make_node("Gather", [name, "position_ids"], [f"{name}_rows"], f"/{name}_rows")
        for name in ("cos", "sin")
    ]
    for target in model.graph.node:
        if target.op_type == "RotaryEmbedding":
            target.input[:] = [target.input[0], "cos_rows", "sin_rows"]
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def test_rotary_embedding_of_onnx_with_three_dims(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", form="rotary_embedding", config={}, change=without_positions)
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", []), report.text()

    def whole(model: onnx.ModelProto) -> None:
        node(model, "RotaryEmbedding").input[1:] = ["cos", "sin"]

    report = check(edit(pack, whole))
    assert report.verdict == "unsupported"
    assert "not picked by position" in report.text()


def as_mrope(sections: list[int], layout: int) -> Any:
    def change(model: onnx.ModelProto) -> None:
        for target in model.graph.node:
            if target.op_type == "RotaryEmbedding":
                target.op_type = "MRotaryEmbedding"
                set_attribute(target, "mrope_section", sections)
                set_attribute(target, "mrope_layout", layout)

    return change


@pytest.mark.parametrize(
    ("sections", "layout", "expected"),
    [([2, 3, 3], 0, []), ([3, 2, 3], 0, ["RPE026"]), ([2, 3, 3], 1, ["RPE026"])],
)
def test_positions_in_three_axes(
    sections: list[int], layout: int, expected: list[str], tmp_path: Path
) -> None:
    config = {
        "model_type": "qwen2_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }
    pack = tiny_pack(
        tmp_path / "p", form="rotary_embedding", config=config,
        change=as_mrope(sections, layout),
    )  # fmt: skip
    report = check(pack)
    assert sorted(set(codes(report))) == expected, report.text()


# --- traps ---------------------------------------------------------------------------------


def test_a_table_as_wide_as_its_rotary_dim_is_read_with_the_wrong_stride(tmp_path: Path) -> None:
    """rotary_embedding_dim 8 of 16 entries, and a table of 8 columns: 4 are declared."""
    pack = tiny_pack(
        tmp_path / "p", form="rotary_embedding", tables=plain(ROWS, 8),
        config={"model_type": "phi", "partial_rotary_factor": 0.5, "rope_scaling": None},
        rotary_dim=8,
    )  # fmt: skip
    assert set(codes(check(pack))) == {"RPE008"}


def test_another_rotary_dim_than_the_table_has(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for target in model.graph.node:
            if target.op_type == "RotaryEmbedding":
                set_attribute(target, "rotary_embedding_dim", 8)
                set_attribute(target, "num_heads", 4 if ".q" in target.output[0] else 2)

    pack = tiny_pack(tmp_path / "p", form="rotary_embedding", config={}, change=change)
    assert set(codes(check(pack))) == {"RPE018"}


@pytest.mark.parametrize("pairs", [4, 6, 8])
def test_a_width_that_no_kernel_takes(tmp_path: Path, pairs: int) -> None:
    """The declared one all the same: a multiple of 8 pairs, says onnxruntime."""
    share = pairs / 8
    pack = tiny_pack(
        tmp_path / "p", hidden=64, tables=plain(ROWS, pairs),
        config={"model_type": "phi", "partial_rotary_factor": share, "rope_scaling": None},
    )  # fmt: skip
    report = check(pack)
    if pairs == 8:
        assert (report.verdict, codes(report)) == ("ok", [])
        run(pack, np.arange(9))
        return
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE040"])
    with pytest.raises(ort_state.InvalidArgument, match="a multiple of 8"):
        run(pack, np.arange(9))
    with pytest.raises(PatchError, match="RPE040"):
        patch(pack, tmp_path / "out")


def test_query_and_key_with_different_tables(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for name, values in zip(("cos_k", "sin_k"), plain(ROWS, 8, 500.0), strict=True):
            tensor = numpy_helper.from_array(values.astype(np.float32), name)
            model.graph.initializer.append(tensor)
        node(model, "RotaryEmbedding", 1).input[2:] = ["cos_k", "sin_k"]

    pack = edit(tiny_pack(tmp_path / "p", form="rotary_embedding", config={}), change)
    assert sorted(codes(check(pack))) == ["RPE001", "RPE019"]
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"


def test_one_table_of_a_fusion_for_two_schedules(tmp_path: Path) -> None:
    """onnxruntime's fusion reuses one table for every module, as of Gemma 3."""
    config = {
        "model_type": "gemma3_text",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
    }
    report = check(tiny_pack(tmp_path / "p", form="rotary_embedding", config=config))
    assert "RPE011" in codes(report)


# --- several bodies ------------------------------------------------------------------------


def in_branches(prefill: Tables, decode: Tables) -> Any:
    """The whole decoder twice, in the branches of an If, as a combined pack has it."""

    def change(model: onnx.ModelProto) -> None:
        branches = {}
        for name, tables in (("else_branch", prefill), ("then_branch", decode)):
            body = onnx.GraphProto()
            body.CopyFrom(model.graph)
            body.name = name
            del body.input[:]
            for made in body.node:
                made.name = f"{name}{made.name}"
                made.output[:] = [o and f"{name}/{o}" for o in made.output]
            renamed = {t.name for t in body.initializer}
            outputs = {o for made in model.graph.node for o in made.output}
            for made in body.node:
                made.input[:] = [
                    f"{name}/{i}" if i in outputs or i in renamed else i for i in made.input
                ]
            for tensor in body.initializer:
                if tensor.name in {"cos", "sin"}:
                    values = tables[("cos", "sin").index(tensor.name)].astype(np.float32)
                    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
                tensor.name = f"{name}/{tensor.name}"
            for value in body.output:
                value.name = f"{name}/{value.name}"
            branches[name] = body
        outputs = [value.name for value in model.graph.output]
        del model.graph.node[:]
        del model.graph.initializer[:]
        one = numpy_helper.from_array(np.array(1), "one")
        model.graph.node.extend(
            [
                helper.make_node("Constant", [], ["one"], value=one),
                helper.make_node("Shape", ["input_ids"], ["dims"]),
                helper.make_node("Gather", ["dims", "one"], ["tokens"]),
                helper.make_node("Equal", ["tokens", "one"], ["is_decode"]),
                helper.make_node("If", ["is_decode"], outputs, "/If", **branches),
            ]
        )

    return change


RIGHT, OTHER = plain(ROWS, PAIRS), plain(ROWS, PAIRS, 500.0)


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (RIGHT, RIGHT, []),
        (RIGHT, OTHER, ["RPE001", "RPE020"]),
        (OTHER, OTHER, ["RPE001", "RPE001"]),
    ],
    ids=["right", "one", "both"],
)
def test_prefill_and_decode_in_branches(
    form: str, prefill: Tables, decode: Tables, expected: list[str], tmp_path: Path
) -> None:
    change = in_branches(prefill, decode)
    pack = tiny_pack(tmp_path / "p", form=form, config={}, inline=True, change=change)
    report = check(pack)
    assert sorted(codes(report)) == expected, report.text()
    assert {j.site.branch for j in report.sites} == {"then_branch of /If", "else_branch of /If"}
    assert all(j.site.layers == (0, 1) for j in report.sites)
    rename_everything(pack)
    assert sorted(codes(check(pack))) == expected
    if expected:
        patch(pack, tmp_path / "out")
        assert check(tmp_path / "out").verdict == "ok"


def test_a_branch_that_lacks_a_layer(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        in_branches(RIGHT, RIGHT)(model)
        (choice,) = [n for n in model.graph.node if n.op_type == "If"]
        body = choice.attribute[0].g
        for at, made in enumerate(body.node):
            if made.op_type == "GroupQueryAttention" and "layer1" in made.name:
                made.op_type, made.domain = "Add", ""
                made.input[:] = made.input[:2]
                assert at

    report = check(tiny_pack(tmp_path / "p", config={}, inline=True, change=change))
    assert report.verdict == "unsupported"
    assert "lacks the layers [1]" in report.text()


def as_functions(model: onnx.ModelProto) -> None:
    """Every attention with its rotation inside a local function, called once per layer."""
    targets = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"]
    body = onnx.NodeProto()
    body.CopyFrom(targets[0])
    formal = [f"in{i}" for i in range(len(targets[0].input))]
    body.input[:], body.output[:] = formal, ["out", "key", "value"]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    inner = helper.make_function("own", "Attend", formal, list(body.output), [body], opsets)
    call = helper.make_node("Attend", formal, list(body.output), "/inner", domain="own")
    opsets = [*opsets, helper.make_opsetid("own", 1)]
    outer = helper.make_function("own", "Layer", formal, list(body.output), [call], opsets)
    model.functions.extend([inner, outer])
    model.opset_import.append(helper.make_opsetid("own", 1))
    for target in targets:
        target.op_type, target.domain = "Layer", "own"
        del target.attribute[:]


def per_layer(layer: int) -> Tables:
    return OTHER if layer == 1 else RIGHT


def test_functions_at_any_depth(tmp_path: Path) -> None:
    pack = tiny_pack(
        tmp_path / "p", layers=3, config={}, tables=per_layer, shared=False, change=as_functions
    )
    report = check(pack)
    assert codes(report) == ["RPE001"], report.text()
    assert [j.site.layers for j in report.sites] == [(0,), (1,), (2,)]
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"


def test_layers_of_functions_without_hints_are_in_the_order_of_the_calls(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", layers=3, tables=per_layer, shared=False, change=as_functions)
    assert [site.layers for site in facts(pack, Hints()).sites] == [(0,), (1,), (2,)]


def test_a_function_that_uses_a_table_otherwise_as_well(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        as_functions(model)
        inner, outer = model.functions
        inner.input.append("more")
        inner.node.append(helper.make_node("Neg", ["more"], ["negative"]))
        outer.node[0].input.append("in7")

    found = facts(tiny_pack(tmp_path / "p", change=change))
    assert any("an input of the call" in unread.reason for unread in found.unread)


@pytest.mark.parametrize("declared", [True, False])
def test_a_function_with_attributes_is_refused_by_name(declared: bool, tmp_path: Path) -> None:
    """Each call may set do_rotary otherwise: `ref_attr_name` in the body."""

    def change(model: onnx.ModelProto) -> None:
        as_functions(model)
        inner, outer = model.functions
        for attribute in inner.node[0].attribute:
            if attribute.name == "do_rotary":
                attribute.ref_attr_name = "turns"
                attribute.ClearField("i")
        if declared:
            inner.attribute.append("turns")
            outer.node[0].attribute.append(helper.make_attribute("turns", 1))

    pack = tiny_pack(tmp_path / "p", config={}, change=change)
    if not declared:
        with pytest.raises(GraphError, match="do_rotary is that of a function's call"):
            check(pack)
        return
    report = check(pack)
    assert (report.verdict, report.sites) == ("unsupported", ())
    assert any("is in a function that is not followed" in f.message for f in report.findings)


def two_graphs(folder: Path, *, second: Tables, split: bool) -> Path:
    """A pipeline: an embedding, and two decoders with all layers or half of them each."""
    pack = tiny_pack(folder, layers=2, config={}, inline=True)
    other = tiny_pack(folder.parent / "other", layers=2, tables=second, inline=True)
    shutil.copy(other / "model.onnx", pack / "second.onnx")
    if split:
        for name, gone in (("model.onnx", 1), ("second.onnx", 0)):
            edit(pack, lambda model, gone=gone: drop_layer(model, gone), name)
    embedding = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["input_ids"], ["embedded"])], "e",
            [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
            [helper.make_tensor_value_info("embedded", TensorProto.INT64, ["b", "s"])],
        )
    )  # fmt: skip
    (pack / "embedding.onnx").write_bytes(embedding.SerializeToString())
    path = pack / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    stages = {"embedding": "embedding.onnx", "first": "model.onnx", "second": "second.onnx"}
    config["model"]["decoder"].pop("filename")
    config["model"]["decoder"]["pipeline"] = [
        {name: {"filename": file, "inputs": [], "outputs": []}} for name, file in stages.items()
    ]
    write_json(path, config)
    return pack


def drop_layer(model: onnx.ModelProto, layer: int) -> None:
    for made in list(model.graph.node):
        if made.op_type == "GroupQueryAttention" and f"layer{layer}" in made.name:
            attended = made.output[0]
            value = made.input[0]
            model.graph.node.remove(made)
            model.graph.node.append(helper.make_node("Identity", [value], [attended]))
    for value in list(model.graph.input):
        if value.name in {INPUTS[key] % layer for key in ("past_key_names", "past_value_names")}:
            model.graph.input.remove(value)


def test_a_pipeline_of_prefill_and_decode(tmp_path: Path) -> None:
    report = check(two_graphs(tmp_path / "a" / "p", second=RIGHT, split=False))
    assert (report.verdict, codes(report)) == ("ok", []), report.text()
    pack = two_graphs(tmp_path / "b" / "p", second=OTHER, split=False)
    report = check(pack)
    assert sorted(codes(report)) == ["RPE001", "RPE020"], report.text()
    assert all(finding.graph == "second.onnx" for finding in report.findings)
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"


def test_a_pipeline_with_some_layers_in_each_graph(tmp_path: Path) -> None:
    pack = two_graphs(tmp_path / "a" / "p", second=RIGHT, split=True)
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", []), report.text()
    # Without the second graph its layer is found missing.
    path = pack / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["model"]["decoder"]["pipeline"][2]
    write_json(path, config)
    assert codes(check(pack))[0] == "RPE013"
