"""Models with layers that have no attention: convolutions, recurrences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from builders import INPUTS, OUTPUTS, plain, tiny_pack, write_json
from onnx import helper

from packimport import check, patch
from packimport.audit.show import show

# Layers 0 and 2 of four are convolutions.
LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention"] * 2,
}
WHERE = (1, 3)


def renumber(model: onnx.ModelProto, layers: tuple[int, ...] = WHERE) -> None:
    """Let the key caches, which builders.py counts on, be those of these layers."""
    patterns = [INPUTS["past_key_names"], INPUTS["past_value_names"]]
    patterns += [OUTPUTS["present_key_names"], OUTPUTS["present_value_names"]]
    new = {p % at: p % layer for p in patterns for at, layer in enumerate(layers)}
    for value in (*model.graph.input, *model.graph.output):
        value.name = new.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]


def hybrid(
    folder: Path, change: Callable[[onnx.ModelProto], None] = renumber, **settings: Any
) -> Path:
    """Two attention layers in the place of layers 1 and 3 of an LFM2."""
    pack = tiny_pack(folder, config=LFM2, change=change, **settings)
    path = pack / "genai_config.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    described["model"]["decoder"]["num_hidden_layers"] = 4
    write_json(path, described)
    return pack


def test_layers_without_attention_are_not_looked_for(tmp_path: Path) -> None:
    report = check(hybrid(tmp_path / "p"))
    assert (report.verdict, report.findings) == ("ok", ())
    assert [judged.site.layers for judged in report.sites] == [WHERE]


def test_a_wrong_table_is_mended(tmp_path: Path) -> None:
    pack = hybrid(tmp_path / "p", tables=plain(64, 8, 5e5))
    assert [f.code for f in check(pack).findings] == ["RPE001"]
    assert patch(pack, tmp_path / "out").edits
    assert check(tmp_path / "out").verdict == "ok"


def without_caches(model: onnx.ModelProto) -> None:
    """As an export without a cache: only the order of the nodes tells the layers."""
    kept = [v for v in model.graph.input if "past" not in v.name]
    shown = [v for v in model.graph.output if "present" not in v.name]
    for node in model.graph.node:
        node.input[:] = ["" if "past" in name else name for name in node.input]
        node.output[:] = ["" if "present" in name else name for name in node.output]
    del model.graph.input[:], model.graph.output[:]
    model.graph.input.extend(kept)
    model.graph.output.extend(shown)


def test_attention_layers_are_counted_off(tmp_path: Path) -> None:
    report = check(hybrid(tmp_path / "p", without_caches))
    assert report.verdict == "ok", report.text()
    assert [judged.site.layers for judged in report.sites] == [WHERE]


@pytest.mark.parametrize("layers", [(0, 1), (1, 2), (2, 3)])
def test_attention_in_a_layer_that_has_none(layers: tuple[int, ...], tmp_path: Path) -> None:
    report = check(hybrid(tmp_path / "p", lambda model: renumber(model, layers)))
    assert report.verdict == "unsupported"
    codes = [f.code for f in report.findings]
    assert "RPE013" in codes
    assert "RPE005" not in codes
    (found,) = [f for f in report.findings if f.code == "RPE013"]
    first = min({*layers} - {*WHERE})
    assert f"the first in layer {first}" in found.message
    assert "none in layers 0, 2" in found.message


def test_another_number_of_attention_layers(tmp_path: Path) -> None:
    report = check(hybrid(tmp_path / "p", lambda m: renumber(m, (1, 3, 5)), layers=3))
    assert report.verdict == "unsupported"
    (found,) = [f for f in report.findings if f.code == "RPE013"]
    assert found.message == "the graph has 3 attention layers, the declaration 2"


def test_a_linear_attention_takes_no_positions(tmp_path: Path) -> None:
    """Builder 0.18.0 writes these for Qwen3.5: a recurrence, and its gates."""

    def change(model: onnx.ModelProto) -> None:
        renumber(model)
        at = next(i for i, n in enumerate(model.graph.node) if "layer0.norm" in n.output)
        value, width = "layer0.norm", 32
        made = [
            helper.make_node(
                "LinearAttentionGate", [value, "dt", "scale"], ["decay"], domain="com.microsoft"
            ),
            helper.make_node(
                "LinearAttention", [value, value, value, "", "decay"], ["linear", "state"],
                domain="com.microsoft", q_num_heads=width, kv_num_heads=width,
                update_rule="gated",
            ),
        ]  # fmt: skip
        for name in ("dt", "scale"):
            model.graph.initializer.append(helper.make_tensor(name, 1, [width], [0.5] * width))
        for offset, node in enumerate(made, 1):
            model.graph.node.insert(at + offset, node)
        model.graph.output.append(helper.make_tensor_value_info("linear", 1, None))

    report = check(hybrid(tmp_path / "p", change))
    assert report.verdict == "ok", report.text()


def test_what_is_rotated_before_a_linear_attention_is_refused(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        renumber(model)
        at = next(i for i, n in enumerate(model.graph.node) if "layer1.q_rotary" in n.output)
        rotated = "layer1.q_rotary"
        node = helper.make_node(
            "LinearAttention", [rotated, rotated, rotated], ["linear", "state"],
            domain="com.microsoft", q_num_heads=4, kv_num_heads=4, update_rule="linear",
        )  # fmt: skip
        model.graph.node.insert(at + 1, node)
        taker = next(
            n for n in model.graph.node if n.name == "/layer1.attention/GroupQueryAttention"
        )
        taker.input[0] = "layer1.q"
        model.graph.output.append(helper.make_tensor_value_info("linear", 1, None))

    report = check(hybrid(tmp_path / "p", change, form="rotary_embedding"))
    assert report.verdict == "unsupported"


def test_show_tells_them_from_layers_without_rope(tmp_path: Path) -> None:
    text = show(hybrid(tmp_path / "p")).text()
    assert "layers 0, 2: no attention" in text
    assert "layers 1, 3: default (theta 10000)" in text
    assert "model.onnx: 2 attention layers" in text
