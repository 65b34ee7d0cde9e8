"""Which test holds each trap of these graphs, and each code; and traps without a home elsewhere.

A trap is something that runs, or loads, and is wrong all the same.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
from builders import tiny_pack, write_json
from mending.mended import run, set_lengths
from onnx import TensorProto, helper
from ort_version import ORT

from packimport import check, patch
from packimport.audit.checks import CHECKS
from packimport.errors import PackimportError
from packimport.graph.changes import draft

TESTS = Path(__file__).parent.parent

# Trap ─▶ its code, "" where it is refused or kept from happening, and its test.
TRAPS: dict[str, tuple[str, str]] = {
    "rotary_embedding_dim of 8 and a table of 8 columns: the wrong stride": (
        "RPE008",
        "graph/test_other_ops::test_a_table_as_wide_as_its_rotary_dim_is_read_with_the_wrong_stride",
    ),
    "a table of the declared width and another rotary_embedding_dim": (
        "RPE018", "graph/test_other_ops::test_another_rotary_dim_than_the_table_has",
    ),
    "a table narrower or wider than declared": (
        "RPE008", "audit/test_audit::test_a_table_of_another_width",
    ),
    "fewer rows than tokens: generation fails in the middle": (
        "RPE009", "audit/test_traps::test_too_few_rows_fail_in_the_middle",
    ),
    "a width that is no multiple of 8": (
        "RPE040", "graph/test_other_ops::test_a_width_that_no_kernel_takes",
    ),
    "num_heads of a RotaryEmbedding that are not those of the attention": (
        "RPE003", "graph/test_moves::test_heads_that_the_attention_does_not_take",
    ),
    "other heads than declared, with a table that fits them": (
        "RPE041", "graph/test_heads::test_fewer_and_wider_heads",
    ),
    "a branch without the layers of the other one": (
        "RPE003", "graph/test_branches::test_a_branch_that_lacks_layers",
    ),
    "a table that is cut behind its tensor": (
        "RPE009", "graph/test_cut_tables::test_the_rows_of_a_cut_table_are_those_that_are_left",
    ),
    "one table that a fusion wrote for all modules": (
        "RPE011", "graph/test_other_ops::test_one_table_of_a_fusion_for_two_schedules",
    ),
    "frequencies, or positions, in half precision": (
        "RPE021", "graph/test_plain_ops::test_half_precision",
    ),
    "a switch to the long table at another length": (
        "RPE022", "graph/test_longrope::test_a_switch_at_another_length",
    ),
    "an If that hands out a whole table": (
        "", "mending/test_by_length::test_no_branch_hands_out_more_rows_than_are_in_use",
    ),
    "a compiled graph": ("RPE003", "graph/test_completeness::test_ops_that_may_rotate"),
    "a graph of a pack that is not the decoder": (
        "", "audit/test_traps::test_graphs_beside_the_decoder_are_listed_and_not_judged",
    ),
    "a graph that would be larger than one file of protobuf may be": (
        "", "audit/test_traps::test_a_graph_that_would_be_too_large_is_refused",
    ),
    "onnx's checker has something against most packs": (
        "", "mending/test_smollm3::test_the_nodes_are_taken_out",
    ),
    "q and k rotated by tables that differ": (
        "RPE019", "graph/test_other_ops::test_query_and_key_with_different_tables",
    ),
    "prefill and decode with tables that differ": (
        "RPE020", "graph/test_other_ops::test_prefill_and_decode_in_branches",
    ),
    "pairs that lie otherwise": ("RPE007", "audit/test_audit::test_pairs_that_lie_otherwise"),
    "entries that change places behind the rotation": (
        "RPE003", "graph/test_moves::test_moved_behind_the_rotation",
    ),
    "one table where two are declared": (
        "RPE012", "graph/test_plain_ops::test_one_list_where_two_are_declared",
    ),
    "positions by another axis than declared": (
        "RPE026", "graph/test_other_ops::test_positions_in_three_axes",
    ),
    "a table that the kernel makes itself": (
        "RPE023", "graph/test_other_ops::test_ops_with_a_table_of_their_own",
    ),
    "an attention factor that was lost": ("RPE024", "mending/test_factor::test_a_missing_factor"),
    "frequencies that the graph computes": ("RPE025", "graph/test_plain_ops::test_wrong"),
    "a layer without RoPE that is rotated": (
        "RPE005", "audit/test_audit::test_a_layer_that_should_not_rotate",
    ),
    "such a layer, by nodes that can't run": (
        "RPE016", "mending/test_smollm3::test_what_is_found",
    ),
    "a layer that is not rotated": (
        "RPE006", "graph/test_plain_ops::test_a_layer_without_rotation",
    ),
    "a layer that is not there": ("RPE004", "audit/test_audit::test_a_graph_without_attention"),
    "another number of layers": (
        "RPE013", "audit/test_audit::test_a_graph_with_another_number_of_layers",
    ),
    "no graph at all": ("RPE015", "audit/test_traps::test_a_pack_without_a_graph"),
    "values that are wrong": ("RPE001", "audit/test_audit::test_a_plain_table_is_a_mismatch"),
    "nothing declared": ("RPE002", "audit/test_audit::test_nothing_declared"),
    "a context_length beyond the rows, out of use": (
        "RPE010", "audit/test_audit::test_too_few_rows",
    ),
    "two configs that contradict each other": (
        "RPE014",
        "audit/test_audit::test_another_config_than_the_packs_own_wins_and_the_report_says_so",
    ),
    "native code that a pack asks for": (
        "RPE017",
        "hostile/test_hostile_files::test_options_that_name_code_or_files_are_not_followed",
    ),
    "a family that nobody knows": (
        "RPE027", "audit/test_audit::test_an_unknown_family_is_never_ok",
    ),
}  # fmt: skip
# Those of Ryzen AI packs are held by tests/ryzen_ai.
ELSEWHERE = {"RPE028", "RPE029", "RPE030", "RPE031"}


def defined(place: str) -> bool:
    file, name = place.split("::")
    tree = ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


@pytest.mark.parametrize("trap", sorted(TRAPS))
def test_each_trap_has_its_test(trap: str) -> None:
    code, place = TRAPS[trap]
    assert defined(place), place
    assert not code or code in CHECKS


def test_each_code_has_a_trap() -> None:
    told = {code for code, _ in TRAPS.values()} - {""}
    assert told | ELSEWHERE == CHECKS.keys()
    for code in ELSEWHERE:
        files = (TESTS / "ryzen_ai").glob("test_*.py")
        assert any(code in path.read_text(encoding="utf-8") for path in files), code


@pytest.mark.parametrize(
    "form",
    [
        "gqa",
        pytest.param(
            "rotary_embedding",
            marks=pytest.mark.skipif(
                ORT < (1, 25), reason="onnxruntime before 1.25 reads beyond the table"
            ),
        ),
    ],
)
def test_too_few_rows_fail_in_the_middle(form: str, tmp_path: Path) -> None:
    pack = set_lengths(tiny_pack(tmp_path / "p", rows=32, hidden=64, form=form, config={}), 64)
    tokens = np.arange(40) % 64
    assert [f.code for f in check(pack).findings] == ["RPE009"]
    run(pack, tokens[:32], 8)
    with pytest.raises((ort_state.InvalidArgument, ort_state.Fail)):
        run(pack, tokens, 20)
    patch(pack, tmp_path / "out")
    assert run(tmp_path / "out", tokens, 20).shape[0] == 40


def test_a_pack_without_a_graph(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={})
    (pack / "model.onnx").unlink()
    path = pack / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["model"]["decoder"]["filename"]
    write_json(path, config)
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert "RPE015" in [f.code for f in report.findings]


def test_graphs_beside_the_decoder_are_listed_and_not_judged(tmp_path: Path) -> None:
    """A vision tower rotates by rules of its own, as this one's Cos and Sin would."""
    pack = tiny_pack(tmp_path / "p", config={})
    nodes = [helper.make_node(op, ["pixels"], [op], op) for op in ("Cos", "Sin")]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])
        for name in ("pixels", "Cos", "Sin")
    ]
    graph = helper.make_graph(nodes, "vision", values[:1], values[1:])
    (pack / "vision.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    report = check(pack)
    assert report.verdict == "ok"
    assert report.graphs == ("model.onnx", "vision.onnx")
    # A pack that does not name its decoder is judged as a whole.
    (pack / "genai_config.json").unlink()
    assert check(pack).verdict == "unsupported"


def test_a_graph_that_would_be_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = tiny_pack(tmp_path / "p", rows=32, config={}, inline=True)
    set_lengths(pack, 64)
    size = (pack / "model.onnx").stat().st_size
    monkeypatch.setattr(draft, "MAX_FILE", size)
    with pytest.raises(PackimportError, match="larger than an ONNX file can be"):
        patch(pack, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(draft, "MAX_FILE", 2 * size)
    patch(pack, tmp_path / "out")
