"""Graphs are changed where table bytes do not suffice, and then run as a right pack does.

The reference is the pack that tests/builders.py builds right, with the same seeded
weights, run by onnxruntime 1.32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
from builders import Tables, plain, tiny_pack
from click.testing import CliRunner
from mending.mended import TOKENS, mend, run, set_lengths
from numpy.typing import NDArray

from packimport import check, patch
from packimport.cli import group
from packimport.errors import PatchError
from packimport.in_place import patch_in_place, undo

STORED = [{}, {"inline": True}, {"constants": True}]
FORMS = ["gqa", "rotary_embedding"]
# Ops of onnxruntime that reach past their table raise one of these.
FAILS = (ort_state.Fail, ort_state.InvalidArgument, ort_state.RuntimeException)


def near(one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    """Equal but for rounding: the angles of `builders.plain` are float64, a model's float32."""
    assert np.abs(one - other).max() < 2e-4


def nodes(pack: Path, op: str) -> list[onnx.NodeProto]:
    model = onnx.load(pack / "model.onnx", load_external_data=False)
    return [node for node in model.graph.node if node.op_type == op]


def integer(node: onnx.NodeProto, name: str) -> int:
    return next(a.i for a in node.attribute if a.name == name)


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_table_grows(tmp_path: Path, form: str, stored: dict[str, Any]) -> None:
    config = {"max_position_embeddings": 256}
    pack = tiny_pack(tmp_path / "p", rows=64, form=form, config=config, **stored)
    set_lengths(pack, 256)
    right = tiny_pack(tmp_path / "right", rows=256, form=form, config=config, **stored)
    with pytest.raises(FAILS):
        run(pack, TOKENS)
    patched = mend(pack, tmp_path / "out")
    assert {record.change for record in patched.graph_changes} == {"64 x 8 becomes 256 x 8"}
    assert all("RPE009" in record.reason for record in patched.graph_changes)
    near(run(tmp_path / "out", TOKENS, 2), run(right, TOKENS, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_table_of_another_dtype_grows(tmp_path: Path, dtype: str) -> None:
    pack = tiny_pack(tmp_path / "p", dtype=dtype, config={"max_position_embeddings": 128})
    mend(set_lengths(pack, 128), tmp_path / "out")


def test_a_large_span_is_aligned_for_mapping(tmp_path: Path) -> None:
    rows = 40_000
    pack = tiny_pack(tmp_path / "p", config={"max_position_embeddings": rows})
    patched = mend(set_lengths(pack, rows), tmp_path / "out")
    manifest = json.loads((tmp_path / "out/packimport.json").read_text(encoding="utf-8"))
    assert [item["offset"] % 65536 for item in manifest["additions"]] == [0, 0]
    assert run(tmp_path / "out", TOKENS).shape == (200, 64)
    assert "added at" in patched.text()


def test_a_wrong_table_that_must_grow_gets_both_in_one(tmp_path: Path) -> None:
    config = {"max_position_embeddings": 256, "rope_theta": 500000.0}
    pack = tiny_pack(tmp_path / "p", config=config)
    right = tiny_pack(tmp_path / "right", rows=256, tables=plain(256, 8, 500000.0), config=config)
    mend(set_lengths(pack, 256), tmp_path / "out")
    near(run(tmp_path / "out", TOKENS), run(right, TOKENS))


SMOLLM3 = {
    "model_type": "smollm3",
    "no_rope_layers": [1, 0, 1],
    "no_rope_layer_interval": 2,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_rotation_that_must_not_be_there(tmp_path: Path, form: str) -> None:
    pack = tiny_pack(tmp_path / "p", layers=3, rows=256, form=form, config=SMOLLM3)
    tables = plain(256, 8)
    right = tiny_pack(
        tmp_path / "right", layers=3, form=form, rows=256, config=SMOLLM3,
        tables=lambda layer: None if layer == 1 else tables,
    )  # fmt: skip
    assert np.abs(run(pack, TOKENS) - run(right, TOKENS)).max() > 0.1
    patched = mend(pack, tmp_path / "out")
    assert {record.reason for record in patched.graph_changes} == {
        "RPE005: layer 1 is declared without RoPE"
    }
    assert patched.text().splitlines()[0].endswith(": ok; the graph is changed")
    assert np.array_equal(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))
    if form == "gqa":
        attentions = nodes(tmp_path / "out", "GroupQueryAttention")
        assert [integer(node, "do_rotary") for node in attentions] == [1, 0, 1]
        assert [list(node.input[7:9]) for node in attentions] == [
            ["cos", "sin"], ["", ""], ["cos", "sin"]
        ]  # fmt: skip
    else:
        assert len(nodes(tmp_path / "out", "RotaryEmbedding")) == 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("interleaved", [True, False])
def test_pairs_that_lie_otherwise(tmp_path: Path, form: str, interleaved: bool) -> None:
    # Cohere pairs neighbours, Llama halves.
    config = {"model_type": "cohere"} if interleaved else {}
    settings = {"rows": 256, "form": form, "config": config}
    pack = tiny_pack(tmp_path / "p", interleaved=not interleaved, **settings)
    right = tiny_pack(tmp_path / "right", interleaved=interleaved, **settings)
    assert np.abs(run(pack, TOKENS) - run(right, TOKENS)).max() > 0.1
    patched = mend(pack, tmp_path / "out")
    assert all("RPE007" in record.reason for record in patched.graph_changes)
    assert np.array_equal(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))


def partial(form: str, head_dim: int = 32) -> dict[str, Any]:
    """A model that rotates half of each head, as its config says it."""
    config = {"model_type": "nemotron", "partial_rotary_factor": 0.5}
    return {"rows": 256, "form": form, "head_dim": head_dim, "config": config}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_a_partial_factor_that_was_lost(tmp_path: Path, form: str, stored: dict[str, Any]) -> None:
    settings = {**partial(form), **stored}
    pack = tiny_pack(tmp_path / "p", tables=plain(256, 16), **settings)
    right = tiny_pack(
        tmp_path / "right", tables=plain(256, 8),
        rotary_dim=16 if form == "rotary_embedding" else None, **settings,
    )  # fmt: skip
    assert np.abs(run(pack, TOKENS) - run(right, TOKENS)).max() > 0.1
    patched = mend(pack, tmp_path / "out")
    assert any(record.change == "256 x 16 becomes 256 x 8" for record in patched.graph_changes)
    near(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_head_that_is_rotated_in_part(tmp_path: Path, form: str) -> None:
    rotary_dim = 16 if form == "rotary_embedding" else None
    settings: dict[str, Any] = {"rows": 256, "form": form, "head_dim": 32, "config": {}}
    pack = tiny_pack(tmp_path / "p", tables=plain(256, 8), rotary_dim=rotary_dim, **settings)
    right = tiny_pack(tmp_path / "right", **settings)
    mend(pack, tmp_path / "out")
    near(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))


def test_a_width_that_the_node_can_not_have_is_refused(tmp_path: Path) -> None:
    # 8 entries: GroupQueryAttention takes tables of 8, 16, ... pairs.
    pack = tiny_pack(tmp_path / "p", tables=plain(256, 8), **partial("gqa", 16))
    with pytest.raises(PatchError, match="multiple of 16 entries, not 8"):
        patch(pack, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


GEMMA3 = {
    "model_type": "gemma3_text",
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 512,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("baked", [1e6, 1e4, 5e5])
def test_one_table_for_layers_of_two_schedules(
    tmp_path: Path, form: str, stored: dict[str, Any], baked: float
) -> None:
    settings: dict[str, Any] = {
        "layers": 3, "rows": 256, "form": form, "config": GEMMA3, **stored
    }  # fmt: skip

    def tables(layer: int) -> Tables:
        return plain(256, 8, 1e6 if layer == 1 else 1e4)

    pack = tiny_pack(tmp_path / "p", tables=plain(256, 8, baked), **settings)
    right = tiny_pack(tmp_path / "right", tables=tables, shared=False, **settings)
    assert np.abs(run(pack, TOKENS) - run(right, TOKENS)).max() > 0.01
    patched = mend(pack, tmp_path / "out")
    added = [r for r in patched.graph_changes if "is added" in r.change]
    assert len(added) == 2
    # The table that is right for some layers stays as it is.
    others = "layers 0, 2 declare" if baked == 1e6 else "layer 1 declares"
    assert all(f"RPE011: {others} default" in r.reason for r in added)
    assert patched.edits == () or baked == 5e5
    near(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))


def test_several_faults_at_once(tmp_path: Path) -> None:
    # Layers 0 and 2 grow, layer 1 is not rotated, all pairs lie otherwise.
    config = {**SMOLLM3, "max_position_embeddings": 256}
    pack = tiny_pack(tmp_path / "p", layers=3, interleaved=True, config=config)
    tables = plain(256, 8)
    right = tiny_pack(
        tmp_path / "right", layers=3, rows=256, config=config,
        tables=lambda layer: None if layer == 1 else tables,
    )  # fmt: skip
    patched = mend(set_lengths(pack, 256), tmp_path / "out")
    codes = {record.reason[:6] for record in patched.graph_changes}
    assert codes == {"RPE005", "RPE007", "RPE009"}
    near(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))


FAULTS: dict[str, dict[str, Any]] = {
    "RPE005": {"layers": 3, "config": SMOLLM3},
    "RPE007": {"config": {}, "interleaved": True},
    "RPE008": {**partial("rotary_embedding"), "tables": plain(256, 16)},
    "RPE009": {"config": {"max_position_embeddings": 256}},
    "RPE011": {"layers": 3, "rows": 256, "config": GEMMA3},
}


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_bytes_only_refuses_what_needs_the_graph(tmp_path: Path, code: str) -> None:
    pack = tiny_pack(tmp_path / "p", **FAULTS[code])
    if code == "RPE009":
        set_lengths(pack, 256)
    with pytest.raises(PatchError, match=f"{code}.*leave --bytes-only out"):
        patch(pack, tmp_path / "out", bytes_only=True)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_bytes_only_mends_what_bytes_mend(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={"rope_theta": 500000.0})
    patched = patch(pack, tmp_path / "out", bytes_only=True)
    assert len(patched.edits) == 2
    assert patched.graph_changes == ()
    assert check(tmp_path / "out").verdict == "ok"


def test_a_graph_that_is_too_old_is_refused(tmp_path: Path) -> None:
    def age(model: onnx.ModelProto) -> None:
        model.ir_version = 3

    pack = tiny_pack(tmp_path / "p", layers=3, rows=256, config=GEMMA3, change=age)
    with pytest.raises(PatchError, match="IR version 3"):
        patch(pack, tmp_path / "out")


def test_declared_shapes_follow(tmp_path: Path) -> None:
    def declare(model: onnx.ModelProto) -> None:
        """As older exporters do: constants are inputs as well, with their shapes."""
        for name in ("cos", "sin"):
            info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 8])
            model.graph.input.append(info)

    pack = tiny_pack(tmp_path / "p", config={"max_position_embeddings": 256}, change=declare)
    mend(set_lengths(pack, 256), tmp_path / "out")
    model = onnx.load(tmp_path / "out/model.onnx", load_external_data=False)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    assert shapes["cos"] == shapes["sin"] == [256, 8]


def test_a_node_that_rotates_too_few_entries(tmp_path: Path) -> None:
    # onnxruntime reads a table of 8 pairs by rows of 4 then.
    def cut(model: onnx.ModelProto) -> None:
        heads = {"q": 4, "k": 2}
        for node in model.graph.node:
            if node.op_type == "RotaryEmbedding":
                side = node.output[0].split(".")[1][0]
                for name, value in (("rotary_embedding_dim", 8), ("num_heads", heads[side])):
                    for attribute in [a for a in node.attribute if a.name == name]:
                        node.attribute.remove(attribute)
                    node.attribute.append(onnx.helper.make_attribute(name, value))

    settings: dict[str, Any] = {"rows": 256, "form": "rotary_embedding", "config": {}}
    pack = tiny_pack(tmp_path / "p", change=cut, **settings)
    right = tiny_pack(tmp_path / "right", **settings)
    assert {f.code for f in check(pack).findings} == {"RPE018"}
    patched = mend(pack, tmp_path / "out")
    assert {r.change for r in patched.graph_changes} == {"rotary_embedding_dim becomes 0"}
    assert np.array_equal(run(tmp_path / "out", TOKENS, 3), run(right, TOKENS, 3))


def test_two_graphs_that_share_their_data(tmp_path: Path) -> None:
    # Prefill and decode are graphs of their own, with one data file.
    pack = tiny_pack(tmp_path / "p", config={"max_position_embeddings": 256})
    (pack / "decode.onnx").write_bytes((pack / "model.onnx").read_bytes())
    config = json.loads((pack / "genai_config.json").read_text(encoding="utf-8"))
    decoder = config["model"]["decoder"]
    decoder["pipeline"] = [
        {"prefill": {"filename": decoder.pop("filename"), "run_on_token_gen": False}},
        {"decode": {"filename": "decode.onnx", "run_on_prompt": False}},
    ]
    (pack / "genai_config.json").write_text(json.dumps(config), encoding="utf-8", newline="\n")
    patched = mend(set_lengths(pack, 256), tmp_path / "out")
    assert {r.graph for r in patched.graph_changes} == {"model.onnx", "decode.onnx"}
    # The new tables are stored once.
    manifest = json.loads((tmp_path / "out/packimport.json").read_text(encoding="utf-8"))
    assert len(manifest["additions"]) == 2
    prefill, decode = ((tmp_path / "out" / name).read_bytes() for name in
                       ("model.onnx", "decode.onnx"))  # fmt: skip
    assert prefill == decode


def test_a_patch_in_place_changes_the_graph_and_is_taken_back(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={"max_position_embeddings": 256})
    set_lengths(pack, 256)
    before = {path.name: path.read_bytes() for path in pack.iterdir()}
    patched = patch_in_place(pack)
    assert patched.graph_changes
    assert "64 x 8 becomes 256 x 8" in patched.text()
    # 256 rows of 8 float32, twice.
    assert "; the graph is changed; 16384 bytes of tables written\n" in patched.text()
    assert check(pack).verdict == "ok"
    assert run(pack, TOKENS).shape == (200, 64)
    assert patch_in_place(pack).written == 0
    undo(pack)
    after = {path.name: path.read_bytes() for path in pack.iterdir() if path.is_file()}
    assert after == before


def test_the_command_lists_the_changes(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={}, interleaved=True)
    runner = CliRunner()
    refused = runner.invoke(group, ["patch", str(pack), "--bytes-only", "-o", str(tmp_path / "o")])
    assert isinstance(refused.exception, PatchError)
    assert "leave --bytes-only out" in str(refused.exception)
    planned = runner.invoke(group, ["patch", str(pack), "--dry-run"])
    done = runner.invoke(group, ["patch", str(pack), "-o", str(tmp_path / "out")])
    for result in (planned, done):
        assert "rotary_interleaved becomes 0 (half-split)" in result.output
        assert "RPE007: pairs lie otherwise than declared" in result.output
    shown = runner.invoke(group, ["patch", str(pack), "--dry-run", "--format", "json"])
    (change,) = {tuple(c.values())[2:] for c in json.loads(shown.output)["graph_changes"]}
    assert change == (
        "rotary_interleaved becomes 0 (half-split)",
        "RPE007: pairs lie otherwise than declared",
    )
