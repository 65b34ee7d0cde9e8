"""The largest logits of a row, against Python's own sort of (value, id)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forward.top import overlap, top


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 40, 2560, 2561, 5000]), st.integers(1, 12))
def test_it_is_the_order_by_value_and_id(seed: int, vocab: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    # Few different values: most rows have ties across the cut.
    values = rng.integers(-3, rng.integers(-2, 40), (3, vocab)).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = -np.inf
    for row, found in zip(values.tolist(), top(values, count).tolist(), strict=True):
        assert found == sorted(range(vocab), key=lambda i: (-row[i], i))[:count]


def test_all_equal() -> None:
    assert top(np.zeros((2, 9000), np.float32), 10).tolist() == [list(range(10))] * 2


@pytest.mark.parametrize(("count", "share"), [(1, 0.0), (2, 1.0), (3, 2 / 3)])
def test_overlap_takes_no_account_of_order(count: int, share: float) -> None:
    one, other = np.array([[4, 7, 1]]), np.array([[7, 4, 2]])
    assert overlap(one, other, count).tolist() == [share]


def test_overlap_of_fewer_entries_than_asked_for() -> None:
    assert overlap(np.array([[0, 1]]), np.array([[1, 0]]), 10).tolist() == [1.0]
