"""What `packimport show` prints: every field with the file and pointer that it was read from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packimport.audit.show import show
from packimport.errors import DocumentError, UsageError
from packimport.wrapping import wrapped

PACKS = Path(__file__).parent.parent / "packs"
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4}


def write(folder: Path, value: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_bare_config(tmp_path: Path) -> None:
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    path = write(tmp_path, {"model_type": "llama", **SIZES, "rope_scaling": block})
    lines = [line.split() for line in show(path).text().splitlines()]
    assert ["family", "llama,", "pairs", "half-split"] in lines
    assert ["factor", "4.0", f"{path}#/rope_scaling/factor"] in lines
    assert ["head_dim", "64", f"{path}#/hidden_size"] in lines
    assert ["theta", "10000.0", "families.yaml#/families/llama/theta"] in lines
    assert show(path).to_dict()["graphs"] == []


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    lines = show(PACKS / "oga-0.18.0-qwen3").text().splitlines()
    assert "    num_hidden_layers        2     config.json#/num_hidden_layers" in lines


def test_a_pointer_that_does_not_fit_stands_below_its_name_and_not_below_the_value() -> None:
    text = show(PACKS / "oga-0.11.2-llama3").text()
    lines = wrapped(text, 80, values=8).splitlines()
    at = lines.index("    original_max_position_embeddings  256")
    assert lines[at + 1] == "        config.json#/rope_scaling/original_max_position_embeddings"
    assert max(map(len, lines)) <= 80


def test_kinds_of_layers_and_layers_without_rope() -> None:
    text = show(PACKS / "oga-0.11.2-smollm3" / "config.json").text()
    assert "layers 0-2: default (theta 2000000)" in text
    assert "layer 3: no RoPE" in text


def test_notes_are_shown(tmp_path: Path) -> None:
    block = {"rope_type": "default", "rope_theta": 5e5}
    config = {"model_type": "llama", **SIZES, "rope_theta": 1e4, "rope_parameters": block}
    text = show(write(tmp_path, config)).text()
    assert "note: " in text
    assert "#/rope_theta says 10000.0" in text


def test_a_config_that_declares_nothing(tmp_path: Path) -> None:
    text = show(write(tmp_path, {"model_type": "something", **SIZES})).text()
    assert "nothing declares a schedule" in text
    assert "family something is unknown and it has no key of RoPE" in text


def test_refusals(tmp_path: Path) -> None:
    path = write(tmp_path, {"model_type": "llama", **SIZES, "rope_scaling": {"factor": 2.0}})
    with pytest.raises(DocumentError, match="without a type"):
        show(path)
    with pytest.raises(UsageError, match="for itself"):
        show(path, model="Qwen/Qwen3-0.6B")
