"""Verdicts on packs that the real builder makes on the spot.

The truth is transformers' own inv_freq for the same config, computed by the
release that the builder ran beside; the pack's table is read with onnx.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from oracle.exporters import CURRENT, build, old_python, run, save_model

from packimport import check, patch

pytestmark = pytest.mark.oracle

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
INV_FREQ = """
import sys, json, transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
config = transformers.AutoConfig.from_pretrained(sys.argv[1], local_files_only=True)
values = LlamaRotaryEmbedding(config).inv_freq.double().tolist()
open(sys.argv[2], "w").write(json.dumps(values))
"""


def expected(python: str, model: Path, tmp_path: Path) -> np.ndarray:
    """transformers' inv_freq for a saved model, float64 of its float32."""
    run(python, "-c", INV_FREQ, str(model), str(tmp_path / "inv_freq.json"))
    return np.array(json.loads((tmp_path / "inv_freq.json").read_text(encoding="utf-8")))


def table_error(pack: Path, inv_freq: np.ndarray) -> float:
    """Largest error of the cos and sin that onnx reads from a pack."""
    model = onnx.load(pack / "model.onnx")
    tables = {
        t.name: numpy_helper.to_array(t)
        for t in model.graph.initializer
        if t.name in ("cos_cache", "sin_cache")
    }
    positions = np.arange(len(tables["cos_cache"]), dtype=np.float32)
    angles = np.outer(positions, inv_freq.astype(np.float32)).astype(np.float64)
    return max(
        float(np.abs(tables["cos_cache"] - np.cos(angles)).max()),
        float(np.abs(tables["sin_cache"] - np.sin(angles)).max()),
    )


def judge(python: str, tmp_path: Path, label: str, wrong: bool, **settings: object) -> None:
    model = save_model(python, tmp_path / "model", **settings)
    pack = build(python, model, tmp_path / "pack")
    inv_freq = expected(python, model, tmp_path)
    # torch's own tables lie within 1e-6 of these; a wrong schedule is off by more than 0.1.
    assert (table_error(pack, inv_freq) > 0.1) == wrong
    report = check(pack, config=model)
    assert report.exit_code == int(wrong)
    assert [judged.measurement.baked_as for judged in report.sites] == [label]
    patched = patch(pack, tmp_path / "out", config=model)
    assert bool(patched.edits) == wrong
    assert table_error(tmp_path / "out", inv_freq) < 1e-6
    assert check(tmp_path / "out").exit_code == 0


def test_llama3_of_0_18_is_right(tmp_path: Path) -> None:
    judge(
        CURRENT, tmp_path, "llama3", False, max_position_embeddings=2048,
        rope_parameters={**LLAMA3, "rope_theta": 500000.0}, **{"class": "Llama"},
    )  # fmt: skip


def test_linear_of_0_18_is_plain(tmp_path: Path) -> None:
    block = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    judge(
        CURRENT, tmp_path, "default", True, max_position_embeddings=1024,
        rope_parameters=block, **{"class": "Llama"},
    )  # fmt: skip


def test_llama3_of_0_11_has_the_wrong_original_length(tmp_path: Path) -> None:
    python = old_python()
    if python is None:
        pytest.skip("PACKIMPORT_OLD_BUILDER names no interpreter with builder 0.11.2")
    judge(
        python, tmp_path, "llama3 with original_max_position_embeddings 2048", True,
        max_position_embeddings=2048, rope_theta=500000.0, rope_scaling=LLAMA3,
        **{"class": "Llama"},
    )  # fmt: skip
