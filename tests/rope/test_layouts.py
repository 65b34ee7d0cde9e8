"""Layouts of cos and sin, each read by onnxruntime in the graph that models export for it.

Bound 0: basic ops round each product and sum as `rotate` does, in float32 and
in float64. For the RotaryEmbedding kernel, which may fuse a product into the
sum: 1e-6, as in test_rotation.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from packimport.errors import ScheduleError
from packimport.rope import layouts
from packimport.rope.rotation import rotate_at

ROWS = 17
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 12))
SEEDS = st.integers(0, 2**32 - 1)

graph_test = settings(deadline=None, max_examples=25)
in_both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def drawn(shape: tuple[int, int, int], seed: int, dtype: type = np.float64):
    """x [batch, 2, seq, 2·pairs], cos and sin [ROWS, pairs], position_ids [batch, seq]."""
    batch, seq, pairs = shape
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi, np.pi, (ROWS, pairs))
    x = rng.uniform(-2, 2, (batch, 2, seq, 2 * pairs)).astype(dtype)
    ids = rng.integers(0, ROWS, (batch, seq))
    return x, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype), ids


def looked_up(*tables: str) -> list:
    """Nodes: the rows of each table at `ids`, with an axis for the heads: `cos` -> `cos_`."""
    return [
        node
        for name in tables
        for node in (
            make_node("Gather", [name, "ids"], [f"{name}_rows"], axis=0),
            make_node("Unsqueeze", [f"{name}_rows", "one"], [f"{name}_"]),
        )
    ]


def blended(half_turned: str) -> list:
    """Nodes: y = x·cos + half_turned·sin, with doubled tables."""
    return [
        make_node("Mul", ["x", "cos_"], ["kept"]),
        make_node("Mul", [half_turned, "sin_"], ["turned"]),
        make_node("Add", ["kept", "turned"], ["y"]),
    ]


class TestGraphs:
    @in_both_dtypes
    @graph_test
    @given(shape=SHAPES, seed=SEEDS)
    def test_duplicated_halves(self, run_graph, dtype, shape, seed) -> None:
        """As Llama-class models are exported: x·cos + concat(−x2, x1)·sin."""
        x, cos, sin, ids = drawn(shape, seed, dtype)
        nodes = [
            *looked_up("cos", "sin"),
            make_node("Split", ["x"], ["a", "b"], axis=-1, num_outputs=2),
            make_node("Neg", ["b"], ["minus_b"]),
            make_node("Concat", ["minus_b", "a"], ["half"], axis=-1),
            *blended("half"),
        ]
        tables = {"cos": layouts.to_duplicated(cos), "sin": layouts.to_duplicated(sin)}
        feeds = {"x": x, **tables, "ids": ids, "one": np.array([1])}
        assert np.array_equal(rotate_at(x, cos, sin, ids), run_graph(nodes, feeds))

    @in_both_dtypes
    @graph_test
    @given(shape=SHAPES, seed=SEEDS)
    def test_each_value_twice(self, run_graph, dtype, shape, seed) -> None:
        """As Cohere is exported: neighbours of a pair swapped, one negated."""
        x, cos, sin, ids = drawn(shape, seed, dtype)
        nodes = [
            *looked_up("cos", "sin"),
            make_node("Reshape", ["x", "as_pairs"], ["pairs"]),
            make_node("Split", ["pairs"], ["a", "b"], axis=-1, num_outputs=2),
            make_node("Neg", ["b"], ["minus_b"]),
            make_node("Concat", ["minus_b", "a"], ["swapped"], axis=-1),
            make_node("Reshape", ["swapped", "as_heads"], ["half"]),
            *blended("half"),
        ]
        feeds = {
            "x": x,
            "cos": layouts.to_repeated(cos),
            "sin": layouts.to_repeated(sin),
            "ids": ids,
            "one": np.array([1]),
            "as_pairs": np.array([*x.shape[:-1], shape[2], 2]),
            "as_heads": np.array(x.shape),
        }
        expected = run_graph(nodes, feeds)
        assert np.array_equal(rotate_at(x, cos, sin, ids, interleaved=True), expected)

    @in_both_dtypes
    @graph_test
    @given(shape=SHAPES, seed=SEEDS)
    def test_complex_pairs(self, run_graph, dtype, shape, seed) -> None:
        """A complex product, written out over the real view [..., pairs, 2] that ONNX can hold."""
        x, cos, sin, ids = drawn(shape, seed, dtype)
        table = layouts.to_complex(cos, sin)
        real_view = table.view(dtype).reshape(ROWS, shape[2], 2)
        nodes = [
            *looked_up("table"),
            make_node("Reshape", ["x", "as_pairs"], ["pairs"]),
            make_node("Split", ["pairs"], ["a", "b"], axis=-1, num_outputs=2),
            make_node("Split", ["table_"], ["cos", "sin"], axis=-1, num_outputs=2),
            make_node("Mul", ["a", "cos"], ["ac"]),
            make_node("Mul", ["b", "sin"], ["bs"]),
            make_node("Mul", ["a", "sin"], ["as"]),
            make_node("Mul", ["b", "cos"], ["bc"]),
            make_node("Sub", ["ac", "bs"], ["real"]),
            make_node("Add", ["as", "bc"], ["imaginary"]),
            make_node("Concat", ["real", "imaginary"], ["product"], axis=-1),
            make_node("Reshape", ["product", "as_heads"], ["y"]),
        ]
        feeds = {
            "x": x,
            "table": real_view,
            "ids": ids,
            "one": np.array([1]),
            "as_pairs": np.array([*x.shape[:-1], shape[2], 2]),
            "as_heads": np.array(x.shape),
        }
        found = rotate_at(x, *layouts.from_complex(table), ids, interleaved=True)
        assert np.array_equal(found, run_graph(nodes, feeds))

    @graph_test
    @given(shape=SHAPES, seed=SEEDS)
    def test_cos_then_sin_in_a_row(self, run_graph, shape, seed) -> None:
        x, cos, sin, ids = drawn(shape, seed, np.float32)
        nodes = [
            make_node("Gather", ["table", "ids"], ["rows"], axis=0),
            make_node("Split", ["rows"], ["cos", "sin"], axis=-1, num_outputs=2),
            make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"]),
        ]
        table = layouts.to_row(cos, sin)
        found = rotate_at(x, *layouts.from_row(table), ids)
        expected = run_graph(nodes, {"x": x, "table": table, "ids": ids})
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


class TestRoundTrips:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("name", ["duplicated", "repeated"])
    def test_doubled(self, dtype, name) -> None:
        values = np.arange(24.0).reshape(2, 3, 4).astype(dtype)
        doubled = getattr(layouts, f"to_{name}")(values)
        assert doubled.shape == (2, 3, 8)
        assert doubled.dtype == dtype
        assert np.array_equal(getattr(layouts, f"from_{name}")(doubled), values)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_row(self, dtype) -> None:
        cos, sin = np.arange(16.0).astype(dtype).reshape(2, 2, 4)
        row = layouts.to_row(cos, sin)
        assert row.shape == (2, 8)
        assert row.dtype == dtype
        found = layouts.from_row(row)
        assert np.array_equal(found[0], cos)
        assert np.array_equal(found[1], sin)

    @pytest.mark.parametrize(
        ("dtype", "both"), [(np.float32, np.complex64), (np.float64, np.complex128)]
    )
    def test_complex(self, dtype, both) -> None:
        cos, sin = np.arange(24.0).astype(dtype).reshape(2, 3, 4)
        table = layouts.to_complex(cos, sin)
        assert table.dtype == both
        assert table[1, 2] == complex(cos[1, 2], sin[1, 2])
        found = layouts.from_complex(table)
        assert found[0].dtype == dtype
        assert np.array_equal(found[0], cos)
        assert np.array_equal(found[1], sin)

    def test_where_values_lie(self) -> None:
        assert layouts.to_duplicated(np.array([1.0, 2.0])).tolist() == [1, 2, 1, 2]
        assert layouts.to_repeated(np.array([1.0, 2.0])).tolist() == [1, 1, 2, 2]
        row = layouts.to_row(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
        assert row.tolist() == [[1, 2, 3, 4]]

    def test_nan_twice_is_doubled(self) -> None:
        values = np.array([[np.nan, 1.0]], np.float32)
        for name in ("duplicated", "repeated"):
            doubled = getattr(layouts, f"to_{name}")(values)
            found = getattr(layouts, f"from_{name}")(doubled)
            assert np.array_equal(found, values, equal_nan=True)

    def test_position_nought_alone_is_a_row_of_cos_and_sin(self) -> None:
        cos, sin = layouts.from_row(np.array([[1.0, 1.0, 0.0, 0.0]]))
        assert cos.tolist() == [[1, 1]]
        assert sin.tolist() == [[0, 0]]


class TestRefused:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("name", ["duplicated", "repeated"])
    @pytest.mark.parametrize("value", [0.5, np.nan])
    def test_one_value_that_is_not_doubled(self, dtype, name, value) -> None:
        doubled = getattr(layouts, f"to_{name}")(np.ones((5, 4), dtype))
        doubled[3, 6] = value  # Pair 2 of [v v], pair 3 of each value twice.
        with pytest.raises(ScheduleError) as caught:
            getattr(layouts, f"from_{name}")(doubled)
        assert caught.value.key == "table"
        pair = 2 if name == "duplicated" else 3
        assert f"pair {pair} at index (3,)" in str(caught.value)
        assert caught.value.found is not None
        assert str(value) in caught.value.found

    @pytest.mark.parametrize(
        ("to", "read"),
        [
            (layouts.to_repeated, layouts.from_duplicated),
            (layouts.to_duplicated, layouts.from_repeated),
            (layouts.to_duplicated, layouts.from_row),
            (layouts.to_repeated, layouts.from_row),
        ],
    )
    def test_another_layout(self, to, read) -> None:
        _, cos, _, _ = drawn((1, 1, 4), 8)
        with pytest.raises(ScheduleError):
            read(to(cos))

    @pytest.mark.parametrize(
        "read", [layouts.from_duplicated, layouts.from_repeated, layouts.from_row]
    )
    @pytest.mark.parametrize("table", [np.zeros((3, 5)), np.zeros((3, 0)), np.zeros((3, 4), int)])
    def test_odd_empty_or_integer_tables(self, read, table) -> None:
        with pytest.raises(ScheduleError) as caught:
            read(table)
        assert caught.value.key == "table"

    @pytest.mark.parametrize("to", [layouts.to_duplicated, layouts.to_repeated])
    @pytest.mark.parametrize("values", [np.zeros((3, 0)), np.zeros(()), np.zeros((3, 4), int)])
    def test_no_pairs(self, to, values) -> None:
        with pytest.raises(ScheduleError):
            to(values)

    @pytest.mark.parametrize("to", [layouts.to_complex, layouts.to_row])
    @pytest.mark.parametrize("sin", [np.zeros((3, 5)), np.zeros((3, 4), np.float32)])
    def test_cos_and_sin_that_differ(self, to, sin) -> None:
        with pytest.raises(ScheduleError) as caught:
            to(np.zeros((3, 4)), sin)
        assert caught.value.key == "sin"

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
    def test_no_complex_dtype_for_half_precision(self, dtype) -> None:
        with pytest.raises(ScheduleError, match="float32, float64"):
            layouts.to_complex(np.zeros((3, 4), dtype), np.zeros((3, 4), dtype))

    @pytest.mark.parametrize("dtype", [np.float64, np.int64])
    def test_a_real_table_is_not_complex(self, dtype) -> None:
        with pytest.raises(ScheduleError, match="complex64, complex128"):
            layouts.from_complex(np.zeros((3, 4), dtype))

    @pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
    def test_a_row_table_has_two_axes(self, shape) -> None:
        with pytest.raises(ScheduleError, match="two axes"):
            layouts.from_row(np.arange(np.prod(shape), dtype=float).reshape(shape))
        with pytest.raises(ScheduleError, match="two axes"):
            layouts.to_row(np.zeros(shape), np.zeros(shape))
