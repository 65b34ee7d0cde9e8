"""The packs that tests build: onnxruntime runs them, and they rotate as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from builders import plain, rename_everything, tiny_pack

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def logits(pack: Path, tokens: int = 12, past: int = 0) -> np.ndarray:
    """Logits of a prefill; with `past`, of the tokens after it, run through the cache."""
    session = onnxruntime.InferenceSession(pack / "model.onnx", providers=["CPUExecutionProvider"])
    ids = np.arange(tokens)[None] * 7 % 64
    cache = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), TYPES[value.type])
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    result: list[Any] = []
    for start, stop in ((0, past), (past, tokens)) if past else ((0, tokens),):
        feeds = {"input_ids": ids[:, start:stop], "attention_mask": np.ones((1, stop), np.int64)}
        if "position_ids" in {value.name for value in session.get_inputs()}:
            feeds["position_ids"] = np.arange(start, stop)[None]
        result = session.run(None, feeds | cache)
        cache = dict(zip(cache, result[1:], strict=True))
    return np.asarray(result[0])


def test_both_forms_compute_the_same(tmp_path: Path) -> None:
    packs = [tiny_pack(tmp_path / form, form=form) for form in ("gqa", "rotary_embedding")]
    one, other = map(logits, packs)
    assert np.abs(one).max() > 1
    assert np.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_the_cache_holds_what_a_prefill_computes(form: str, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", form=form)
    assert np.allclose(logits(pack)[:, 8:], logits(pack, past=8), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"inline": True}, {"constants": True}, {"shared": False, "inline": True, "constants": True}],
)
def test_where_the_tables_lie_changes_nothing(options: dict[str, bool], tmp_path: Path) -> None:
    assert np.array_equal(
        logits(tiny_pack(tmp_path / "a")), logits(tiny_pack(tmp_path / "b", **options))
    )


@pytest.mark.parametrize(
    "options",
    [
        {"tables": plain(64, 8, 500.0)},
        {"tables": lambda layer: None},
        {"interleaved": True},
        {"form": "rotary_embedding", "rotary_dim": 8},
        {"seed": 1},
    ],
)
def test_what_rotates_changes_the_logits(options: dict[str, Any], tmp_path: Path) -> None:
    one, other = logits(tiny_pack(tmp_path / "a")), logits(tiny_pack(tmp_path / "b", **options))
    assert np.abs(one - other).max() > 0.1


def test_half_precision_runs(tmp_path: Path) -> None:
    one = logits(tiny_pack(tmp_path / "a"))
    other = logits(tiny_pack(tmp_path / "b", dtype="float16"))
    assert other.dtype == np.float16
    assert np.abs(one - other).max() < 0.05


def test_renaming_changes_no_logits(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    before = logits(pack)
    names = (pack / "model.onnx").read_bytes()
    rename_everything(pack)
    assert b"layer0.q" in names
    assert b"layer0.q" not in (pack / "model.onnx").read_bytes()
    assert np.array_equal(logits(pack), before)


def test_configs(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={"rope_theta": 5.0}, genai_config={"model": {}})
    assert '"rope_theta": 5.0' in (pack / "config.json").read_text(encoding="utf-8")
    assert (pack / "genai_config.json").read_text(encoding="utf-8") == '{\n  "model": {}\n}\n'
    assert not (tiny_pack(tmp_path / "q") / "config.json").exists()
