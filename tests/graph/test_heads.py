"""The heads that a graph states are the declared model's: another cut rotates other entries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import plain_graphs
import pytest
from builders import tiny_pack
from graphs import set_attribute
from mending.mended import run

from packimport import check, patch
from packimport.audit.checks import Finding
from packimport.errors import PatchError
from packimport.semantics.reader import read_semantics

TOKENS = np.random.default_rng(3).integers(0, 64, 20)


def recut(heads: int, keys: int, entries: int) -> Callable[[onnx.ModelProto], None]:
    """The attention of all layers takes the same projections in other heads."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                set_attribute(node, "num_heads", heads)
                set_attribute(node, "kv_num_heads", keys)
        for value in (*model.graph.input, *model.graph.output):
            if "key" in value.name or "value" in value.name:
                dims = value.type.tensor_type.shape.dim
                dims[1].dim_value, dims[3].dim_value = keys, entries

    return change


def the_finding(pack: Path, config: Path | None = None) -> Finding:
    report = check(pack, config)
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    (found,) = [f for f in report.findings if f.code == "RPE041"]
    return found


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_fewer_and_wider_heads(form: str, tmp_path: Path) -> None:
    """4 heads of 16 entries are declared, of 2 for the key; onnxruntime runs 2 of 32."""
    right = tiny_pack(tmp_path / "right", rows=64, config={}, form=form)
    assert check(right).verdict == "ok"
    wrong = tiny_pack(tmp_path / "p", rows=64, config={}, form=form, change=recut(2, 1, 32))
    if form == "gqa":
        assert np.abs(run(right, TOKENS) - run(wrong, TOKENS)).max() > 0.1
    found = the_finding(wrong)
    assert found.found == "2 heads of the query, 1 heads of the key, 32 entries of a head"
    assert found.expected is not None
    assert found.expected.startswith("4 heads of the query, ")
    assert found.expected.endswith("16 entries of a head")
    with pytest.raises(PatchError, match="RPE041"):
        patch(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_attribute_and_cache_that_contradict_each_other(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=64, config={}, change=recut(4, 2, 32))
    assert the_finding(pack).found == "32 entries of a head"
    pack = tiny_pack(tmp_path / "q", rows=64, config={}, change=recut(4, 1, 16))
    assert the_finding(pack).found == "1 heads of the key"


def test_heads_of_the_key_may_be_repeated(tmp_path: Path) -> None:
    """As exporters do: 4 of the pack for the 2 that the source config declares."""
    pack = tiny_pack(tmp_path / "p", rows=64, kv_heads=4, config={"num_key_value_heads": 2})
    report = check(pack)
    assert report.verdict == "ok", report.text()
    assert any("num_key_value_heads" in note for note in report.semantics.notes)


def test_plain_ops_by_the_shape_of_the_query(tmp_path: Path) -> None:
    """Without caches, as torch exports it; onnx itself infers the shapes of its values."""
    trig = plain_graphs.waves(plain_graphs.angles_by_matmul(plain_graphs.PLAIN))
    model = plain_graphs.decoder(trig)
    pack = plain_graphs.write_pack(tmp_path / "p", onnx.shape_inference.infer_shapes(model))
    assert check(pack).verdict == "ok", check(pack).text()
    genai = pack / "genai_config.json"
    if genai.exists():
        genai.unlink()
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    heads, head = plain_graphs.HEADS, plain_graphs.HEAD
    # The same 8 pairs: of the whole head of 16, and of the half of a head of 32.
    foreign = {
        **config, "model_type": "glm", "num_attention_heads": heads // 2,
        "num_key_value_heads": heads // 2, "head_dim": 2 * head, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    other = tmp_path / "other.json"
    other.write_text(json.dumps(foreign), encoding="utf-8")
    found = the_finding(pack, other)
    assert found.found is not None
    assert f"{heads} heads of the query" in found.found
    assert f"{head} entries of a head" in found.found


def test_what_a_graph_does_not_state_is_not_held_against_it(tmp_path: Path) -> None:
    """A cache whose dims are all names."""

    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            if "key" in value.name or "value" in value.name:
                for at, dim in enumerate(value.type.tensor_type.shape.dim):
                    dim.dim_param = f"d{at}"

    pack = tiny_pack(tmp_path / "p", rows=64, config={}, change=change)
    assert check(pack).verdict == "ok", check(pack).text()
    assert read_semantics(pack).num_attention_heads == 4
