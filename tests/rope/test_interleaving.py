"""Sorting pairs apart, against onnxruntime running the graph written out.

Bounds: 0 in basic ops (each product and sum rounded alike, in float32 and
float64). The attention scores of two ways to rotate are sums of 2·pairs
products in different order: float64, entries up to 2, 12 pairs: 24·4·24·2^-53
< 3e-13 at the very most.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from packimport.errors import ScheduleError
from packimport.rope.interleaving import deinterleave, interleave, rotate_deinterleaved
from packimport.rope.rotation import rotate

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 12))
SEEDS = st.integers(0, 2**32 - 1)


def angles_and_heads(shape: tuple[int, int, int], seed: int, rest: int = 0):
    batch, seq, pairs = shape
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-4, 4, (seq, pairs))
    return np.cos(angles), np.sin(angles), rng.uniform(-2, 2, (2, batch, seq, 2 * pairs + rest))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(deadline=None, max_examples=30)
@given(shape=SHAPES, seed=SEEDS)
def test_reshape_transpose_then_half_split(run_graph, dtype, shape, seed) -> None:
    """The older wording of DeepSeek V3's rope_interleave, as exporters write it."""
    batch, seq, pairs = shape
    cos, sin, (x, _) = angles_and_heads(shape, seed)
    x, cos, sin = x.astype(dtype), cos.astype(dtype), sin.astype(dtype)
    nodes = [
        make_node("Reshape", ["x", "as_pairs"], ["pairs"]),
        make_node("Transpose", ["pairs"], ["sorted"], perm=[0, 1, 3, 2]),
        make_node("Reshape", ["sorted", "as_heads"], ["apart"]),
        make_node("Split", ["apart"], ["a", "b"], axis=-1, num_outputs=2),
        make_node("Neg", ["b"], ["minus_b"]),
        make_node("Concat", ["minus_b", "a"], ["half_turned"], axis=-1),
        make_node("Concat", ["cos", "cos"], ["cos2"], axis=-1),
        make_node("Concat", ["sin", "sin"], ["sin2"], axis=-1),
        make_node("Mul", ["apart", "cos2"], ["kept"]),
        make_node("Mul", ["half_turned", "sin2"], ["turned"]),
        make_node("Add", ["kept", "turned"], ["y"]),
    ]
    feeds = {
        "x": x,
        "cos": cos,
        "sin": sin,
        "as_pairs": np.array([batch, seq, pairs, 2]),
        "as_heads": np.array([batch, seq, 2 * pairs]),
    }
    assert np.array_equal(rotate_deinterleaved(x, cos, sin), run_graph(nodes, feeds))


@settings(deadline=None, max_examples=50)
@given(shape=SHAPES, seed=SEEDS, trailing=st.booleans())
def test_scores_are_those_of_interleaved_rotation(shape, seed, trailing) -> None:
    """q and k stand at different positions, or the rotation would cancel out."""
    cos, sin, heads = angles_and_heads(shape, seed, rest=4)
    scores = []
    for how in (rotate_deinterleaved, partial(rotate, interleaved=True)):
        q = how(heads[0], cos, sin, trailing=trailing)
        k = how(heads[1], cos[::-1], -sin, trailing=trailing)
        scores.append((q * k).sum(axis=-1))
    np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=3e-13)


@settings(deadline=None, max_examples=50)
@given(shape=SHAPES, seed=SEEDS)
def test_rotating_back_then_interleaving_undoes_it(shape, seed) -> None:
    """Bound 4e-15: two rotations in float64, each off by (2 + 2 + 4)·2^-53 at most."""
    cos, sin, (x, _) = angles_and_heads(shape, seed)
    back = interleave(rotate(rotate_deinterleaved(x, cos, sin), cos, sin, inverse=True))
    np.testing.assert_allclose(back, x, rtol=0, atol=4e-15)


def test_only_the_rotated_slice_is_sorted() -> None:
    x = np.arange(8.0)
    still = np.ones(2), np.zeros(2)
    assert rotate_deinterleaved(x, *still).tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert rotate_deinterleaved(x, *still, trailing=True).tolist() == [0, 1, 2, 3, 4, 6, 5, 7]


def test_deinterleave_puts_even_entries_first() -> None:
    assert deinterleave(np.array([[0, 1, 2, 3, 4, 5]])).tolist() == [[0, 2, 4, 1, 3, 5]]
    assert interleave(np.array([[0, 2, 4, 1, 3, 5]])).tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("sort", [deinterleave, interleave])
@pytest.mark.parametrize("shape", [(2, 5), ()])
def test_an_odd_width_is_refused(sort, shape) -> None:
    with pytest.raises(ScheduleError, match="even last axis") as caught:
        sort(np.zeros(shape))
    assert caught.value.key == "x"


def test_a_table_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ScheduleError) as caught:
        rotate_deinterleaved(np.zeros((2, 6)), np.zeros((2, 4)), np.zeros((2, 4)))
    assert caught.value.key == "cos"
