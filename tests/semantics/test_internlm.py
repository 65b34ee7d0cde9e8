"""InternLM2 and InternLM3: their configs as the one helper whose base follows the call."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from little_configs import only_rope, scaled

from packimport.rope.dynamic import DynamicRope
from packimport.semantics.models import model_config

ROWS = {
    row["model"]: row["config"]
    for row in json.loads(
        (Path(__file__).parent.parent / "data" / "rope_configs.json").read_text(encoding="utf-8")
    )
}


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic"])
def test_both_families_share_the_helper(kind: str) -> None:
    two, three = (DynamicRope(only_rope(scaled(kind, f"internlm{n}"))) for n in (2, 3))
    assert two == three
    assert two.position_scale == {"default": 1.0, "linear": 0.25, "dynamic": 1.0}[kind]
    x = np.random.default_rng(5).standard_normal((4, 9, 64)).astype(np.float32)
    # 40000 lies beyond max_position_embeddings, 32768.
    for offset, length in ((0, 9), (100, 109), (39991, 40000)):
        assert np.array_equal(two.apply(x, offset, length), three.apply(x, offset, length))
    grows = two.base_for(40000) > two.base_for(32768)
    assert (two.base_for(32768), grows) == (500000.0, kind == "dynamic")


@pytest.mark.parametrize(
    ("config", "bases"),
    [
        # theta * (factor * length / 32768 - (factor - 1))^(128/126), float64; of InternLM3 as
        # transformers 5.24.0 computes it.
        (ROWS["internlm/internlm2-chat-7b"], (1e6, 1e6, 1e6)),
        (ROWS["internlm/internlm3-8b-instruct"], (5e7, 117777118.66283214, 360979300.4325469)),
        (
            model_config("internlm/internlm2_5-7b-chat").value,
            (1e6, 1e6 * 1.44140625 ** (128 / 126), 1e6 * 3 ** (128 / 126)),
        ),
    ],
)
def test_published_configs(config: object, bases: tuple[float, float, float]) -> None:
    helper = DynamicRope(only_rope(config))
    assert helper.position_scale == 1
    for length in (1, 100, 32768):
        assert helper.base_for(length) == bases[0]
    assert [helper.base_for(n) for n in (32768, 40000, 65536)] == pytest.approx(bases, rel=1e-14)
