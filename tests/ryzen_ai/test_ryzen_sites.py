"""What is read of Ryzen AI graphs, and what is refused by name. The graphs are `ryzen_packs`'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ryzen_packs import Pack, build
from ryzen_reports import edited, judged
from ryzen_tables import LLAMA3, Tables, plain_instead, tables

from packimport import check, patch
from packimport.audit.report import Report
from packimport.errors import PatchError
from packimport.graph.find import find_sites
from packimport.graph.site import GraphFacts, Hints, Site
from packimport.pack.container import open_container

ROWS = 256
HINTS = Hints(past_key_names="past_key_values.%d.key")


def made(family: str, folder: Path, **options: object) -> Pack:
    return build(family, folder / "p", LLAMA3, tables=LLAMA3.right(ROWS), **options)  # type: ignore[arg-type]


def facts(pack: Pack, hints: Hints = HINTS) -> GraphFacts:
    return find_sites(open_container(pack.path), pack.graph, hints)


def nodes(graph: onnx.GraphProto, op: str) -> list[onnx.NodeProto]:
    """The nodes of a type, in branches too."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    here = [node for node in graph.node if node.op_type == op]
    return [*here, *(node for body in inner for node in nodes(body, op))]


def by_encoding(found: GraphFacts) -> dict[str, Site]:
    return {site.encoding: site for site in found.sites}


def said(report: Report) -> str:
    return "\n".join(f"{f.code} {f.message}" for f in report.findings if f.severity == "error")


@pytest.mark.parametrize(
    ("family", "cos", "past"),
    [("hybrid 1.7", 7, 3), ("hybrid 1.4", 5, 1), ("hybrid 1.4, 11 inputs", 5, 1)],
)
def test_inputs_of_gqo(family: str, cos: int, past: int, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    (first, *_) = nodes(pack.model().graph, "GQO")
    (site,) = facts(pack).sites
    assert [span.name for span in site.tensors] == list(first.input[cos : cos + 2])
    assert first.input[past] == "past_key_values.0.key"
    assert (site.form, site.layers, site.sides) == ("GQO", (0, 1, 2), ("query", "key"))


@pytest.mark.parametrize("count", [9, 12, 16, 18])
def test_another_number_of_inputs(count: int, tmp_path: Path) -> None:
    def cut(model: onnx.ModelProto) -> None:
        for node in nodes(model.graph, "GQO"):
            given = [*node.input, ""]
            node.input[:] = given[:count]

    report = judged(edited(made("hybrid 1.7", tmp_path), cut))
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert f"RPE003 GQO: has {count} inputs; a form with 10, 11, 17 is read" in said(report)


@pytest.mark.parametrize("family", ["npu 1.6", "full fusion 1.8"])
def test_compiled_nodes_stand_for_all_layers(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    site = by_encoding(facts(pack, Hints(layers=28)))["cos-sin"]
    assert site.layers == tuple(range(28))
    assert (site.rows, site.pairs, site.rotary_dim) == (ROWS, 32, 64)
    # What is compiled does not say how it pairs entries.
    assert site.interleaved is None
    # The key caches that it takes tell, where their names are known.
    for hints in (HINTS, replace(HINTS, layers=28)):
        assert by_encoding(facts(pack, hints))["cos-sin"].layers == (0, 1, 2)


def test_a_branch_that_lacks_a_layer_of_the_compiled_one(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        *_, last = nodes(model.graph, "GQO")
        last.op_type, last.domain = "SSMLP", "com.ryzenai"

    found = facts(edited(made("npu 1.6", tmp_path), change))
    reasons = {item.reason for item in found.unread if item.op == "GQO"}
    assert "belongs to a branch that lacks the layers [2] of another branch" in reasons


def test_a_compiled_node_whose_layers_nothing_tells(tmp_path: Path) -> None:
    found = facts(made("full fusion 1.8", tmp_path), Hints())
    assert not found.sites
    assert {item.reason for item in found.unread} == {
        "is compiled, and no config says how many layers it stands for"
    }


def test_the_prefill_table_is_half_split(tmp_path: Path) -> None:
    site = by_encoding(facts(made("full fusion 1.8", tmp_path)))["hi-lo"]
    assert (site.rows, site.pairs, site.rotary_dim) == (ROWS, 32, 64)
    assert site.interleaved is False
    assert site.branch.startswith("else_branch")
    assert [span.shape for span in site.tensors] == [(2, ROWS, 128)]


def rename_table(model: onnx.ModelProto) -> None:
    for graph in (a.g for node in model.graph.node for a in node.attribute if a.HasField("g")):
        for node in graph.node:
            renamed = ["t" if n == "sin_cos_cache_token" else n for n in node.input]
            node.input[:] = renamed
            outputs = ["t" if n == "sin_cos_cache_token" else n for n in node.output]
            node.output[:] = outputs


def drop_table(model: onnx.ModelProto) -> None:
    for node in nodes(model.graph, "DynamicDispatch"):
        kept = [name for name in node.input if not name.startswith("sin_cos_cache")]
        node.input[:] = kept


@pytest.mark.parametrize("change", [rename_table, drop_table])
def test_a_compiled_node_without_a_known_table(
    change: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    """Then nothing of the pack is mended, the other branch neither."""
    pack = build("npu 1.6", tmp_path / "p", LLAMA3, tables=plain_instead(LLAMA3, ROWS))
    report = judged(edited(pack, change))
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert "RPE003 DynamicDispatch: is compiled and takes no table that is known" in said(report)
    with pytest.raises(PatchError, match="DynamicDispatch"):
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert not (tmp_path / "out").exists()


def constant(model: onnx.ModelProto, output: str) -> TensorProto:
    (found,) = (n for n in nodes(model.graph, "Constant") if n.output[0] == output)
    return found.attribute[0].t


@pytest.mark.parametrize(
    ("dims", "kind", "reason"),
    [
        ([ROWS * 64], TensorProto.BFLOAT16, "has shape [16384]"),
        ([ROWS * 2, 32], TensorProto.FLOAT16, "has dtype float16; it is bfloat16"),
        ([2, ROWS, 32], TensorProto.BFLOAT16, "has shape [2, 256, 32]"),
        ([64, ROWS - 1], TensorProto.BFLOAT16, "has shape [64, 255]; it is [rows, 2 * pairs]"),
    ],
)
def test_a_token_table_of_another_shape(
    dims: list[int], kind: int, reason: str, tmp_path: Path
) -> None:
    def change(model: onnx.ModelProto) -> None:
        tensor = constant(model, "sin_cos_cache_token")
        tensor.data_type = kind
        tensor.dims[:] = dims
        tensor.raw_data = bytes(2 * int(np.prod(dims)))

    found = facts(edited(made("npu 1.6", tmp_path), change))
    (unread,) = found.unread
    assert (unread.op, reason in unread.reason) == ("DynamicDispatch", True), unread.reason


def test_a_prefill_table_of_another_shape(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        constant(model, "sin_cos_cache_prefill").dims[:] = [1, 2 * ROWS, 128]

    (unread,) = facts(edited(made("full fusion 1.8", tmp_path), change)).unread
    assert "it is [2, rows, 4 * pairs]" in unread.reason


@pytest.mark.parametrize(
    ("at", "values", "reason"),
    [
        (1, [4], "cuts other than rows 0 .."),
        (3, [2], "cuts other than rows 0 .."),
        (4, [2], "leaves rows out"),
    ],
)
def test_a_slice_of_other_rows(at: int, values: list[int], reason: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        (graph,) = (a.g for n in model.graph.node for a in n.attribute if a.name == "else_branch")
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), "other"))
        (cut,) = (node for node in graph.node if node.op_type == "Slice")
        cut.input[at] = "other"

    (unread,) = facts(edited(made("full fusion 1.8", tmp_path), change)).unread
    assert reason in unread.reason


def test_another_use_of_a_token_table_is_seen(tmp_path: Path) -> None:
    """Rewriting it would change that use as well."""

    def change(model: onnx.ModelProto) -> None:
        (graph,) = (a.g for n in model.graph.node for a in n.attribute if a.name == "then_branch")
        to = TensorProto.FLOAT
        graph.node.append(helper.make_node("Cast", ["sin_cos_cache_token"], ["wide"], to=to))

    (unread,) = facts(edited(made("npu 1.6", tmp_path), change)).unread
    assert "is also used by the Cast node" in unread.reason


def test_ops_of_amd_that_may_rotate_are_refused(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for op in ("MLADFMHAROPE", "FLATMHA", "SomethingNew"):
            made = helper.make_node(op, ["logits"], [f"of {op}"], op, domain="com.ryzenai")
            model.graph.node.append(made)

    report = judged(edited(made("hybrid 1.7", tmp_path), change))
    assert report.exit_code == 3
    for op in ("MLADFMHAROPE", "FLATMHA", "SomethingNew"):
        assert f"RPE003 {op}: {op} is an op of the domain com.ryzenai" in said(report)


@pytest.mark.parametrize(("stated", "code"), [(32, "RPE018"), (64, None)])
def test_rotary_embedding_dim(stated: int, code: str | None, tmp_path: Path) -> None:
    """A table of 32 pairs, for a node that says how many of its 64 entries rotate."""
    report = judged(made("hybrid 1.7", tmp_path, rotary_dim=stated))
    assert [f.code for f in report.findings if f.severity == "error"] == ([code] if code else [])
    assert {site.site.rotary_dim for site in report.sites} == {stated}


@pytest.mark.parametrize("stated", [-2, 33])
def test_an_odd_rotary_embedding_dim(stated: int, tmp_path: Path) -> None:
    report = judged(made("hybrid 1.7", tmp_path, rotary_dim=stated))
    assert f"has rotary_embedding_dim = {stated}" in said(report)
    assert report.exit_code == 3


def test_nothing_rotates_without_do_rotary(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in nodes(model.graph, "GQO"):
            (flag,) = (a for a in node.attribute if a.name == "do_rotary")
            flag.i = 0

    pack = edited(made("hybrid 1.7", tmp_path), change)
    assert facts(pack).unrotated == (0, 1, 2)
    assert "RPE006" in said(judged(pack))


def nobodys(seed: int) -> Tables:
    """A rotation that no schedule makes."""
    inv_freq = np.random.default_rng(seed).uniform(0.01, 1, LLAMA3.pairs)
    return tables(inv_freq, ROWS)


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("family", ["npu 1.6", "full fusion 1.8"])
@pytest.mark.parametrize(("seed", "differ"), [(1, False), (2, True)])
def test_branches_whose_tables_have_no_name(
    seed: int, differ: bool, family: str, declares: bool, tmp_path: Path
) -> None:
    """Their values tell whether they differ, to what float16 and bfloat16 hold."""
    made = nobodys(1)
    pack = build(family, tmp_path / "p", LLAMA3, tables=made, token_tables=nobodys(seed))
    if not declares:
        (pack.path / "config.json").unlink(missing_ok=True)
    report = check(pack.path, pack.source if declares else None)
    assert all(site.measurement.baked_as.startswith("unknown") for site in report.sites)
    assert ("RPE020" in said(report)) == differ
    assert report.exit_code == 1


@pytest.mark.parametrize("name", ["sin_cos_cache_token", "sin_cos_cache_prefill"])
def test_a_table_of_a_compiled_node_that_was_moved_out(name: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        tensor = constant(model, name)
        tensor.dims[:] = [0]
        tensor.raw_data = b""

    pack = edited(made("full fusion 1.8", tmp_path), change)
    (unread,) = facts(pack).unread
    assert (unread.offloaded, name in unread.reason) == (True, True)
    report = judged(pack)
    assert (report.exit_code, "RPE030 DynamicDispatch" in said(report)) == (3, True)
