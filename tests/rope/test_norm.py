"""RMS norm, alone and with the rotation of a head's end, against onnxruntime.

The graph: RMSNormalization of opset 23, Split, RotaryEmbedding (or its basic
ops, for float64), Concat. Measured with onnxruntime 1.32.

Bounds, for entries of size 1 to 2 and weights up to 1, so results below 3:
float64, 1e-13: a sum of n <= 64 squares in another order, n·2^-53 of the result.
float32, 1e-6: the kernel sums 512 squares in float32, in lanes; measured 2.4e-7.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from packimport.errors import ScheduleError
from packimport.rope.norm import rms_norm, rms_norm_rotate

# A power of two, for ONNX holds epsilon in float32; about the 1e-6 of real models.
EPSILON = 2.0**-20


def drawn(seed: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape)


def table(seed: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.random.default_rng(seed).uniform(-4, 4, shape)
    return np.cos(angles), np.sin(angles)


def norm_node(output: str):
    return make_node("RMSNormalization", ["x", "weight"], [output], axis=-1, epsilon=EPSILON)


class TestNorm:
    @settings(deadline=None, max_examples=40)
    @given(width=st.integers(2, 64), weighted=st.booleans(), seed=st.integers(0, 2**32 - 1))
    def test_float64(self, run_graph, width, weighted, seed) -> None:
        x = drawn(seed, 2, 3, width)
        weight = np.random.default_rng(seed).uniform(-1, 1, width) if weighted else None
        feeds = {"x": x, "weight": np.ones(width) if weight is None else weight}
        found = rms_norm(x, weight, epsilon=EPSILON)
        np.testing.assert_allclose(found, run_graph([norm_node("y")], feeds), rtol=0, atol=1e-13)

    def test_small_entries_show_epsilon(self, run_graph) -> None:
        """At x about epsilon's root the result is about x / sqrt(x² + epsilon), far below 1."""
        x = drawn(5, 4, 32) * np.sqrt(EPSILON)
        expected = run_graph([norm_node("y")], {"x": x, "weight": np.ones(32)})
        found = rms_norm(x, None, epsilon=EPSILON)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
        assert (np.sqrt((found**2).mean(axis=-1)) < 0.9).all()

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
    def test_half_precision_is_the_float32_result_rounded_once(self, run_graph, dtype) -> None:
        """Bound 1 ulp: the kernel's float32 sum may tip a result that lies between two values."""
        x = drawn(6, 5, 512).astype(dtype)
        feeds = {"x": x.astype(np.float32), "weight": np.ones(512, np.float32)}
        expected = run_graph([norm_node("y")], feeds).astype(dtype)
        found = rms_norm(x, None, epsilon=EPSILON)
        assert found.dtype == dtype
        steps = found.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
        assert np.abs(steps).max() <= 1


class TestNormThenRotation:
    def test_deepseek_v4_sizes_in_float32(self, run_graph) -> None:
        """A head of 512, its last 64 entries rotated, interleaved."""
        x = drawn(1, 2, 3, 5, 512).astype(np.float32)
        weight = np.random.default_rng(2).uniform(-1, 1, 512).astype(np.float32)
        cos, sin = (values.astype(np.float32) for values in table(3, 2, 5, 32))
        nodes = [
            norm_node("normalised"),
            make_node("Split", ["normalised", "widths"], ["kept", "rope"], axis=-1),
            make_node("RotaryEmbedding", ["rope", "cos", "sin"], ["turned"], interleaved=1),
            make_node("Concat", ["kept", "turned"], ["y"], axis=-1),
        ]
        feeds = {"x": x, "weight": weight, "cos": cos, "sin": sin, "widths": np.array([448, 64])}
        found = rms_norm_rotate(
            x,
            weight,
            cos[:, None],
            sin[:, None],
            epsilon=EPSILON,
            interleaved=True,
            trailing=True,
        )
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, run_graph(nodes, feeds), rtol=0, atol=1e-6)

    @settings(deadline=None, max_examples=40)
    @given(pairs=st.integers(1, 12), rest=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
    def test_float64(self, run_graph, pairs, rest, seed) -> None:
        """Half-split, at the start of the head, no weight."""
        width = 2 * pairs + rest
        x, (cos, sin) = drawn(seed, 2, 3, width), table(seed, 3, pairs)
        nodes = [
            norm_node("normalised"),
            make_node("Split", ["normalised", "widths"], ["a", "b", "kept"], axis=-1),
            make_node("Mul", ["a", "cos"], ["ac"]),
            make_node("Mul", ["b", "sin"], ["bs"]),
            make_node("Mul", ["a", "sin"], ["as"]),
            make_node("Mul", ["b", "cos"], ["bc"]),
            make_node("Sub", ["ac", "bs"], ["first"]),
            make_node("Add", ["as", "bc"], ["second"]),
            make_node("Concat", ["first", "second", "kept"], ["y"], axis=-1),
        ]
        feeds = {
            "x": x,
            "weight": np.ones(width),
            "cos": cos,
            "sin": sin,
            "widths": np.array([pairs, pairs, rest]),
        }
        found = rms_norm_rotate(x, None, cos, sin, epsilon=EPSILON)
        np.testing.assert_allclose(found, run_graph(nodes, feeds), rtol=0, atol=1e-13)

    def test_half_precision_is_rounded_once(self) -> None:
        """The float32 result for the same inputs, itself checked above, rounded once."""
        x = drawn(7, 4, 16).astype(np.float16)
        cos, sin = (values.astype(np.float16) for values in table(8, 4, 4))
        wide = (a.astype(np.float32) for a in (x, np.ones(16, np.float16), cos, sin))
        expected = rms_norm_rotate(*wide, epsilon=EPSILON).astype(np.float16)
        found = rms_norm_rotate(x, np.ones(16, np.float16), cos, sin, epsilon=EPSILON)
        assert np.array_equal(found, expected)


class TestRefused:
    @pytest.mark.parametrize("epsilon", [0.0, -1e-6, np.nan, np.inf])
    def test_epsilon(self, epsilon) -> None:
        with pytest.raises(ScheduleError) as caught:
            rms_norm(np.ones(4), None, epsilon=epsilon)
        assert caught.value.key == "epsilon"

    @pytest.mark.parametrize("shape", [(), (3, 0)])
    def test_nothing_to_normalise(self, shape) -> None:
        with pytest.raises(ScheduleError) as caught:
            rms_norm(np.ones(shape), None, epsilon=EPSILON)
        assert caught.value.key == "x"

    @pytest.mark.parametrize("shape", [(3,), (2, 4), (1,), ()])
    def test_one_weight_per_entry(self, shape) -> None:
        with pytest.raises(ScheduleError) as caught:
            rms_norm(np.ones((2, 4)), np.ones(shape), epsilon=EPSILON)
        assert caught.value.key == "weight"

    def test_dtypes(self) -> None:
        with pytest.raises(ScheduleError) as caught:
            rms_norm(np.ones(4, int), None, epsilon=EPSILON)
        assert caught.value.key == "x"
        with pytest.raises(ScheduleError) as caught:
            rms_norm(np.ones(4), np.ones(4, int), epsilon=EPSILON)
        assert caught.value.key == "weight"

    def test_a_table_that_does_not_fit(self) -> None:
        with pytest.raises(ScheduleError) as caught:
            rms_norm_rotate(np.ones(4), None, np.ones(3), np.ones(3), epsilon=EPSILON)
        assert caught.value.key == "cos"
