"""Sections that are declared, in graphs whose positions have one axis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import tiny_pack
from mending.mended import run

from packimport import check, patch

SECTIONS: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
}


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_one_axis_is_right_for_text_and_the_report_says_so(form: str, tmp_path: Path) -> None:
    """Of text all three positions are one number, and the sections make no difference."""
    pack = tiny_pack(tmp_path / "p", rows=64, config=SECTIONS, form=form)
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("ok", 0)
    (note,) = [f for f in report.findings if f.code == "RPE014"]
    assert note.severity == "note"
    assert note.message.startswith("text only: ")
    assert note.expected is not None
    assert "[2, 3, 3]" in note.expected
    # The graph is that of a model without sections, bit for bit.
    plain = tiny_pack(tmp_path / "plain", rows=64, config={}, form=form)
    tokens = np.arange(20)
    assert np.array_equal(run(pack, tokens), run(plain, tokens))
    assert [f.code for f in check(plain).findings if f.severity == "note"] == []


def test_one_note_for_a_graph(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=64, config=SECTIONS, layers=3, shared=False)
    report = check(pack)
    assert len(report.sites) > 1
    assert sum("text only" in f.message for f in report.findings) == 1


def test_positions_in_three_axes_and_a_node_that_takes_none(tmp_path: Path) -> None:
    """Fed what images need, and rotated by the count of tokens."""

    def change(model: onnx.ModelProto) -> None:
        made = onnx.helper.make_tensor_value_info("position_ids", 7, [3, "b", "s"])
        for value in [v for v in model.graph.input if v.name == "position_ids"]:
            model.graph.input.remove(value)
        model.graph.input.append(made)

    pack = tiny_pack(tmp_path / "p", rows=64, config=SECTIONS, change=change)
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("mismatch", 1), report.text()
    (found,) = [f for f in report.findings if f.code == "RPE026"]
    assert "3 axes" in found.message
    with pytest.raises(Exception, match="RPE026"):
        patch(pack, tmp_path / "out")


def test_layers_without_attention_are_not_told_to_rotate(tmp_path: Path) -> None:
    """The one attention of this graph is layer 1 of its model, not the convolution before it."""
    config = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
    pack = tiny_pack(tmp_path / "p", rows=64, layers=1, config={**config, "num_hidden_layers": 2})
    genai = json.loads((pack / "genai_config.json").read_text(encoding="utf-8"))
    del genai["model"]["decoder"]["num_hidden_layers"]
    (pack / "genai_config.json").write_text(json.dumps(genai), encoding="utf-8")
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    codes = {f.code for f in report.findings if f.severity == "error"}
    assert "RPE013" in codes
    assert "RPE005" not in codes
