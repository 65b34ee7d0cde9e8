"""Every pack of tests/packs, mended where it is wrong, against transformers 5.24.0.

transformers' model has the weights of the pack's own graph. A right pack of the same model
is made with onnx from the tables of transformers' own rotary embedding; the mended one may be
ten times as far from transformers as that one, no further. Weights of float16
and of four bits are taken as what they stand for.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mending.mended import run
from mending.test_smollm3 import mean_kl
from oracle.graph_weights import logits_of, logits_with_cache, model_of, right_pack

from packimport import check, patch

pytestmark = pytest.mark.oracle

PACKS = Path(__file__).parent.parent / "packs"
TOKENS = np.random.default_rng(11).integers(3, 512, 400)
LENGTHS = (24, 400)
LISTS = {
    "short_factor": [1.0 + 4 * i for i in range(8)],
    "long_factor": [9.0 - i for i in range(8)],
}
# Pack ─▶ what it declares instead, if anything, as changes of its RoPE block.
WRONG: dict[str, dict[str, Any]] = {
    "amd-oga-0.7.0.1-llama3-int4-dml": {},
    "oga-0.11.2-gemma3": {},
    "oga-0.11.2-llama3": {},
    "oga-0.11.2-smollm3": {},
    "oga-0.18.0-linear": {},
    "oga-0.18.0-llama3-int4": {"rope_theta": 300.0},
    "oga-0.18.0-longrope-dml": LISTS,
    "oga-0.18.0-longrope-if": LISTS,
    "oga-0.18.0-qwen3": {"rope_theta": 300.0},
    "optimum-0.1.0-llama3": {"factor": 2.0, "original_max_position_embeddings": 8},
}
RIGHT = ("oga-0.18.0-longrope-if", "oga-0.18.0-qwen3", "optimum-0.1.0-llama3")
# SmolLM3's pack does not load before it is mended.
NOT_LOADED = "oga-0.11.2-smollm3"
# What right packs of tiny models show, at most: those of float32 here 1e-15, of float16 4e-9.
# Below the least is float noise.
MOST, LEAST = 3e-7, 1e-13

# Its products take values that are rounded to int8 (accuracy_level 4).
NOISE = {"oga-0.18.0-llama3-int4": 1e-5}


def declaring(name: str, changes: dict[str, Any], out: Path) -> Path:
    pack = shutil.copytree(PACKS / name, out)
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    block = config.get("rope_parameters") or config["rope_scaling"] or {}
    assert block.keys() >= changes.keys()
    block.update(changes)
    (pack / "config.json").write_text(json.dumps(config), encoding="utf-8", newline="\n")
    return pack


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_mended_pack_equals_transformers(name: str, tmp_path: Path) -> None:
    pack = declaring(name, WRONG[name], tmp_path / "pack")
    assert check(pack).verdict == "mismatch"
    patch(pack, tmp_path / "mended")
    assert check(tmp_path / "mended").verdict == "ok"
    model = model_of(pack, pack)
    right = right_pack(pack, model, tmp_path / "right")
    for count in LENGTHS:
        tokens = TOKENS[:count]
        expected = logits_of(model, tokens)
        made, mended = run(right, tokens, 4), run(tmp_path / "mended", tokens, 4)
        of_right, of_mended = mean_kl(expected, made), mean_kl(expected, mended)
        assert of_right < NOISE.get(name, MOST)
        assert of_mended <= 10 * max(of_right, LEAST)
        if name != NOT_LOADED:
            # Beside the right pack, whose noise of short weights is the same.
            apart, before = mean_kl(made, mended), mean_kl(made, run(pack, tokens, 4))
            assert before > 10 * max(apart, LEAST)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_pack_equals_transformers(name: str, tmp_path: Path) -> None:
    assert check(PACKS / name).verdict == "ok"
    model = model_of(PACKS / name, PACKS / name)
    for count in LENGTHS:
        found = mean_kl(logits_of(model, TOKENS[:count]), run(PACKS / name, TOKENS[:count], 4))
        assert found < MOST


@pytest.mark.parametrize(
    ("length", "decode"), [(255, 0), (256, 0), (257, 0), (256, 16), (264, 16), (272, 8)]
)
@pytest.mark.parametrize("name", ["oga-0.18.0-longrope-dml", "oga-0.18.0-longrope-if"])
def test_longrope_on_both_sides_of_the_edge(name: str, length: int, decode: int) -> None:
    # The original length is 256: a decode of 16 from 248 on crosses it. Keys that were
    # cached before keep the short rotation, in transformers' forward as in the pack.
    tokens = TOKENS[:length]
    expected = logits_with_cache(model_of(PACKS / name, PACKS / name), tokens, decode)
    assert mean_kl(expected, run(PACKS / name, tokens, decode)) < MOST


def test_every_pack_is_here() -> None:
    assert {path.name for path in PACKS.iterdir()} == WRONG.keys()
