"""Which releases a report names: real packs by what made them, and tables by the known faults.

Expected are the ranges of releases that were built and compared with transformers 5.24.0.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import tiny_pack
from ryzen_packs import build
from ryzen_tables import (
    LLAMA3,
    YARN,
    Tables,
    default,
    llama3,
    plain_instead,
    tables,
    yarn,
    yarn_attention,
)

from packimport import check

PACKS = Path(__file__).parents[1] / "packs"
ROWS, PAIRS = 1024, 8
OGA = "onnxruntime-genai builder"
AMD = "AMD's builder 0.7.0.1 (Ryzen AI 1.5)"


def exporters(pack: Path, config: Path | None = None) -> set[str | None]:
    report = check(pack, config)
    said = report.to_dict()["sites"]
    assert isinstance(said, list)
    named = {site["exporter"] for site in said}
    for name in named - {None}:
        assert f"known of    {name}" in report.text()
    return named


ORIGINAL_MAX = f"{OGA} 0.6.0 to 0.13.2 (Ryzen AI 1.4 to 1.7.1); {AMD}"


@pytest.mark.parametrize(
    ("pack", "expected"),
    [
        ("amd-oga-0.7.0.1-llama3-int4-dml", ORIGINAL_MAX),
        ("oga-0.11.2-llama3", ORIGINAL_MAX),
        ("oga-0.11.2-gemma3", f"{OGA} 0.8.3 to 0.13.2"),
        ("oga-0.18.0-linear", f"{OGA} 0.6.0 to 0.13.2 and 0.15.2 to 0.18.0; {AMD}"),
    ],
)
def test_real_packs_with_a_fault(pack: str, expected: str) -> None:
    assert exporters(PACKS / pack) - {None} == {expected}


@pytest.mark.parametrize(
    "pack", ["oga-0.18.0-llama3-int4", "oga-0.18.0-qwen3", "oga-0.18.0-longrope-dml"]
)
def test_right_packs_name_none(pack: str) -> None:
    assert exporters(PACKS / pack) == {None}


@pytest.mark.parametrize("family", ["hybrid 1.4", "npu 1.6", "hybrid 1.7", "full fusion 1.8"])
def test_ryzen_ai_packs(family: str, tmp_path: Path) -> None:
    inv_freq = llama3(LLAMA3.pairs, 500000.0, 32.0, 4096)
    pack = build(family, tmp_path / "p", LLAMA3, tables=tables(inv_freq, ROWS))
    assert exporters(pack.path, pack.config) == {ORIGINAL_MAX}
    plain = build(family, tmp_path / "y", YARN, tables=plain_instead(YARN, ROWS))
    assert exporters(plain.path, plain.config) == {f"{OGA} 0.6.0 to 0.15.2"}


def upside_down(rows: int) -> Tables:
    """What onnxruntime-genai 0.11.2's builder.py computes for yarn: theta^(+i/d), and the longest
    length in the place of the original one; the range of the ramp is not rounded.
    """
    rising = np.float32(1) / default(PAIRS, 1e4).astype(np.float32)
    low, high = (
        PAIRS * math.log(rows / (turns * 2 * math.pi)) / math.log(1e4) for turns in (32.0, 1.0)
    )
    keep = 1 - np.clip((np.arange(PAIRS) - low) / (high - low), 0, 1)
    mixed = rising / 4 * (1 - keep) + rising * keep
    return tables(mixed, rows, attention=yarn_attention(4.0))


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN_BLOCK = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
WITH_BETA = {**YARN_BLOCK, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3_BLOCK = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
PLAIN = default(PAIRS, 1e4)


@pytest.mark.parametrize(
    ("family", "block", "expected"),
    [
        ("llama", LLAMA3_BLOCK, None),
        ("qwen2", LLAMA3_BLOCK, f"{OGA} 0.15 to 0.16"),
        ("mistral", LLAMA3_BLOCK, f"{OGA} 0.15 to 0.16"),
        ("llama", LINEAR, f"{OGA} 0.6.0 to 0.13.2 and 0.15.2 to 0.18.0; {AMD}"),
        ("qwen2", LINEAR, f"{OGA} 0.6.0 to 0.13.2"),
        ("smollm3", LINEAR, f"{OGA} 0.6.0 to 0.13.2 and 0.18.0"),
        ("llama", YARN_BLOCK, f"{OGA} 0.6.0 to 0.18.0; {AMD}"),
        ("qwen2", YARN_BLOCK, f"{OGA} 0.6.0 to 0.15.2"),
        ("smollm3", YARN_BLOCK, f"{OGA} 0.6.0 to 0.15.2 and 0.18.0"),
        ("llama", WITH_BETA, f"{OGA} 0.6.0 to 0.8.3 and 0.15.2 to 0.18.0; {AMD}"),
        ("qwen2", WITH_BETA, f"{OGA} 0.6.0 to 0.8.3"),
        ("smollm3", WITH_BETA, f"{OGA} 0.6.0 to 0.8.3 and 0.18.0"),
        ("nemotron", WITH_BETA, f"{OGA} 0.6.0 to 0.8.3 and 0.18.0"),
    ],
)
def test_a_plain_table(
    family: str, block: Mapping[str, Any], expected: str | None, tmp_path: Path
) -> None:
    config = {"model_type": family, "rope_scaling": block, "max_position_embeddings": ROWS}
    if family == "nemotron":
        config["partial_rotary_factor"] = 1.0
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=tables(PLAIN, ROWS), config=config)
    assert exporters(pack) == {expected}


def test_theta_10000_in_the_place_of_another(tmp_path: Path) -> None:
    config = {"rope_theta": 5e5, "max_position_embeddings": ROWS}
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=tables(PLAIN, ROWS), config=config)
    assert exporters(pack) == {f"{OGA} 0.9.2 and 0.11.2, for configs saved by transformers 5"}


def test_a_ramp_that_is_not_rounded(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2",
        "rope_scaling": WITH_BETA,
        "max_position_embeddings": ROWS,
    }
    inv_freq = yarn(PAIRS, 1e4, 4.0, 256, truncate=False)
    made = tables(inv_freq, ROWS, attention=yarn_attention(4.0))
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=made, config=config)
    assert exporters(pack) == {f"{OGA} 0.14.0 to 0.18.0"}


def test_frequencies_upside_down(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen2",
        "rope_scaling": WITH_BETA,
        "max_position_embeddings": ROWS,
    }
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=upside_down(ROWS), config=config)
    assert exporters(pack) == {f"{OGA} 0.9.2 to 0.13.2"}


def test_a_dynamic_schedule_that_is_frozen(tmp_path: Path) -> None:
    """Plain up to max_position_embeddings, and the pack is used beyond."""
    config = {
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 256,
    }
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=tables(PLAIN, ROWS), config=config)
    assert exporters(pack) == {f"{OGA}, every release"}


def test_nothing_is_named_where_nothing_is_declared(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=tables(PLAIN, ROWS))
    assert exporters(pack) == {None}


@pytest.mark.parametrize("family", ["phi", "nemotron"])
def test_a_partial_factor_that_is_lost(family: str, tmp_path: Path) -> None:
    """All 16 entries of a head rotate where 8 are declared."""
    config = {"model_type": family, "partial_rotary_factor": 0.5, "max_position_embeddings": ROWS}
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=tables(PLAIN, ROWS), config=config)
    assert exporters(pack) == {f"{OGA} 0.9.2 to 0.15.2, for configs saved by transformers 5"}


def test_layers_without_rope_of_smollm3_that_are_rotated(tmp_path: Path) -> None:
    config = {
        "model_type": "smollm3",
        "no_rope_layers": [1, 0],
        "max_position_embeddings": ROWS,
    }
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=tables(PLAIN, ROWS), config=config)
    assert exporters(pack) == {f"{OGA}, every release that builds it"}


def test_one_table_for_both_kinds_of_layers_of_gemma_3(tmp_path: Path) -> None:
    config = {
        "model_type": "gemma3_text",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 256,
        "max_position_embeddings": ROWS,
    }
    pack = tiny_pack(
        tmp_path / "p", rows=ROWS, tables=tables(default(PAIRS, 1e6), ROWS), config=config
    )
    named = "onnxruntime's fusion of rotary embeddings (read in its source, not run)"
    report = check(pack)
    assert "RPE011" in {finding.code for finding in report.findings}
    assert exporters(pack) == {named}, report.text()


def test_the_short_list_of_longrope_frozen_by_tracing(tmp_path: Path) -> None:
    """Frequencies that optimum 0.1.0 baked for llama3, declared as a dynamic schedule."""
    pack = shutil.copytree(PACKS / "optimum-0.1.0-llama3", tmp_path / "p")
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    (site,) = check(pack).sites
    values = site.site.waves
    assert values is not None
    config["rope_scaling"] = {
        "rope_type": "longrope",
        "short_factor": [500000.0 ** -(i / 8) / v for i, v in enumerate(values.values)],
        "long_factor": [8.0] * 8,
        "original_max_position_embeddings": 256,
        "attention_factor": 1.0,
    }
    config.pop("rope_parameters", None)
    config["rope_theta"] = 500000.0
    (pack / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = check(pack)
    assert {f.code for f in report.findings if f.severity == "error"} == {"RPE012"}, report.text()
    assert exporters(pack) == {"optimum-onnx 0.1.0, torch's older exporter"}
