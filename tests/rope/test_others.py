"""The others that a label names make the same frequencies, by the formulas of ryzen_tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ryzen_tables import Doubles, llama3, yarn

from packimport.rope.naming.others import others
from packimport.rope.schedule import Rope

LLAMA3 = Rope(
    type="llama3", theta=500000.0, head_dim=128, rotary_dim=128, factor=8.0,
    low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192,
)  # fmt: skip
YARN = Rope(
    type="yarn", theta=10000.0, head_dim=64, rotary_dim=64, factor=4.0,
    original_max_position_embeddings=4096,
)  # fmt: skip


def yarn_of(length: int, fast: float = 32, slow: float = 1) -> Doubles:
    return yarn(32, 10000.0, 4.0, length, fast=fast, slow=slow)


def test_llama3_by_twice_of_each_bound() -> None:
    assert list(others(LLAMA3)) == [
        "llama3 with low_freq_factor 2, high_freq_factor 8, original_max_position_embeddings 16384"
    ]
    np.testing.assert_allclose(
        llama3(64, 5e5, 8.0, 16384, 2.0, 8.0), llama3(64, 5e5, 8.0, 8192, 1.0, 4.0), rtol=1e-14
    )


def test_yarn_by_the_lengths_between_which_no_pair_changes() -> None:
    lengths, bounds = others(YARN)
    start = "yarn with original_max_position_embeddings "
    assert lengths.startswith(start)
    least, most = (int(part) for part in lengths.removeprefix(start).split(" to "))
    assert least < 4096 < most
    same = yarn_of(4096)
    for length in (least, (least + most) // 2, most):
        np.testing.assert_array_equal(yarn_of(length), same)
    for length in (least - 1, most + 1):
        assert np.abs(yarn_of(length) / same - 1).max() > 1e-4
    assert bounds == ("yarn with original_max_position_embeddings 8192, beta_fast 64, beta_slow 2")
    np.testing.assert_array_equal(yarn_of(8192, 64, 2), same)


def test_a_length_within_no_ramp() -> None:
    """No pair of a short head lies between the bounds, so that many lengths are one."""
    few = replace(LLAMA3, head_dim=8, rotary_dim=8, high_freq_factor=1.5)
    (lengths, _) = others(few)
    least, most = (int(part) for part in lengths.split("embeddings ")[1].split(" to "))
    same = llama3(4, 5e5, 8.0, 8192, 1.0, 1.5)
    for length, is_same in ((least, True), (most, True), (least - 1, False), (most + 1, False)):
        found = np.allclose(llama3(4, 5e5, 8.0, length, 1.0, 1.5), same, rtol=1e-6, atol=0)
        assert found == is_same, length


@pytest.mark.parametrize(
    "rope",
    [
        Rope(type="default", theta=1e4, head_dim=64, rotary_dim=64),
        # Twice of each is another attention factor, as that follows from the lengths.
        replace(YARN, factor=None, max_position_embeddings=16384, truncate=False),
    ],
)
def test_none(rope: Rope) -> None:
    assert list(others(rope)) == []
