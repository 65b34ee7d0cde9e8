"""A Rope as one line."""

from __future__ import annotations

import pytest
from little_configs import config, only_rope, scaled

from packimport.rope.schedule import Rope
from packimport.semantics.describe import describe


@pytest.mark.parametrize(
    ("rope", "text"),
    [
        (None, "no RoPE"),
        (only_rope(config()), "default (theta 500000)"),
        (only_rope(scaled("linear")), "linear (theta 500000, factor 4)"),
        (
            only_rope(scaled("llama3")),
            "llama3 (theta 500000, factor 32, low 1, high 4, original_max_position_embeddings"
            " 8192)",
        ),
        (
            only_rope(scaled("yarn", truncate=False, attention_factor=1.25)),
            "yarn (theta 500000, factor 4, truncate false, attention_factor 1.25,"
            " original_max_position_embeddings 8192)",
        ),
        (
            only_rope(scaled("longrope")),
            "longrope (theta 500000, original_max_position_embeddings 4096)",
        ),
        (only_rope(config("phi", rope_theta=10000.5)), "default (theta 10000.5, 32 of 64 entries)"),
    ],
)
def test_describe(rope: Rope | None, text: str) -> None:
    assert describe(rope) == text
