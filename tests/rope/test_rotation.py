"""rotate, rotate_at, rows_at against onnxruntime (measured with 1.32).

Bounds. Tables lie in [-1, 1] and heads in [-2, 2], so a product is at most 2
and a result at most 4.

EXACT: the graph written out in basic ops rounds each product and sum as we do,
    in float32 as in float64.
FLOAT32, 1e-6: the RotaryEmbedding kernels may fuse a product into the sum.
    Either side errs by at most half an ulp of two products and of the sum,
    (2 + 2 + 4)·2^-24; both together by 9.5e-7.
FLOAT16, 3e-3: some kernels work in half precision throughout: (2 + 2 + 4)·2^-11 / 2
    = 1.95e-3 there, and half an ulp of the result here, 2^-10.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from packimport.errors import ScheduleError
from packimport.rope.rotation import rotate, rotate_at, rows_at

FLOAT32 = 1e-6
FLOAT16 = 3e-3
ROWS = 40


def table(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of random angles, float64."""
    angles = rng.uniform(-np.pi, np.pi, shape)
    return np.cos(angles), np.sin(angles)


def heads(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-2, 2, shape)


cases = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "heads": st.integers(1, 4),
        "seq": st.integers(1, 6),
        "pairs": st.integers(1, 12),
        "rest": st.sampled_from([0, 0, 2, 6, 16]),
        "interleaved": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)


class Case:
    """Random arrays of one shape, float32, and the attributes a RotaryEmbedding node needs."""

    def __init__(self, drawn: dict[str, int]) -> None:
        rng = np.random.default_rng(drawn["seed"])
        self.batch, self.heads, self.seq = drawn["batch"], drawn["heads"], drawn["seq"]
        self.pairs, self.interleaved = drawn["pairs"], bool(drawn["interleaved"])
        self.head_dim = 2 * self.pairs + drawn["rest"]
        self.x = heads(rng, self.batch, self.heads, self.seq, self.head_dim).astype(np.float32)
        cos, sin = table(rng, ROWS, self.pairs)
        self.cos, self.sin = cos.astype(np.float32), sin.astype(np.float32)
        self.position_ids = rng.integers(0, ROWS, (self.batch, self.seq))
        self.attributes = {"interleaved": int(self.interleaved)}
        if drawn["rest"]:
            self.attributes |= {"rotary_embedding_dim": 2 * self.pairs, "num_heads": self.heads}

    @property
    def flat(self) -> np.ndarray:
        """x as [batch, seq, heads * head_dim]."""
        return np.ascontiguousarray(self.x.transpose(0, 2, 1, 3)).reshape(
            self.batch, self.seq, self.heads * self.head_dim
        )


def close(found: np.ndarray, expected: np.ndarray, bound: float) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=bound
    )


class TestOnnxOperators:
    @settings(deadline=None, max_examples=60)
    @given(cases)
    def test_rotary_embedding_of_opset_23(self, run_graph, drawn) -> None:
        case = Case(drawn)
        node = make_node("RotaryEmbedding", ["x", "cos", "sin", "ids"], ["y"], **case.attributes)
        feeds = {"x": case.x, "cos": case.cos, "sin": case.sin, "ids": case.position_ids}
        found = rotate_at(
            case.x, case.cos, case.sin, case.position_ids, interleaved=case.interleaved
        )
        close(found, run_graph([node], feeds), FLOAT32)

    @settings(deadline=None, max_examples=60)
    @given(cases)
    def test_rotary_embedding_of_com_microsoft(self, run_graph, drawn) -> None:
        case = Case(drawn)
        node = make_node(
            "RotaryEmbedding",
            ["x", "ids", "cos", "sin"],
            ["y"],
            domain="com.microsoft",
            **case.attributes,
        )
        feeds = {"x": case.x, "ids": case.position_ids, "cos": case.cos, "sin": case.sin}
        found = rotate_at(
            case.x, case.cos, case.sin, case.position_ids, interleaved=case.interleaved
        )
        close(found, run_graph([node], feeds), FLOAT32)

    @settings(deadline=None, max_examples=40)
    @given(cases, st.sampled_from(["", "com.microsoft"]))
    def test_three_axes_are_heads_side_by_side(self, run_graph, drawn, domain) -> None:
        case = Case(drawn)
        attributes = case.attributes | {"num_heads": case.heads}
        inputs = ["x", "ids", "cos", "sin"] if domain else ["x", "cos", "sin", "ids"]
        node = make_node("RotaryEmbedding", inputs, ["y"], domain=domain, **attributes)
        feeds = {"x": case.flat, "ids": case.position_ids, "cos": case.cos, "sin": case.sin}
        cos, sin = rows_at(case.cos, case.sin, case.position_ids)
        apart = case.flat.reshape(case.batch, case.seq, case.heads, case.head_dim)
        found = rotate(apart, cos[:, :, None], sin[:, :, None], interleaved=case.interleaved)
        close(found.reshape(case.flat.shape), run_graph([node], feeds), FLOAT32)

    @settings(deadline=None, max_examples=30)
    @given(cases, st.integers(0, ROWS - 6))
    def test_a_single_position_is_the_first_of_a_run(self, run_graph, drawn, start) -> None:
        case = Case(drawn)
        node = make_node(
            "RotaryEmbedding",
            ["x", "ids", "cos", "sin"],
            ["y"],
            domain="com.microsoft",
            **case.attributes,
        )
        feeds = {"x": case.x, "ids": np.array([start]), "cos": case.cos, "sin": case.sin}
        run = start + np.arange(case.seq)[None]
        found = rotate_at(case.x, case.cos, case.sin, run, interleaved=case.interleaved)
        close(found, run_graph([node], feeds), FLOAT32)

    @settings(deadline=None, max_examples=30)
    @given(cases)
    def test_a_table_per_token_needs_no_positions(self, run_graph, drawn) -> None:
        case = Case(drawn)
        node = make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], **case.attributes)
        cos, sin = rows_at(case.cos, case.sin, case.position_ids)
        found = rotate(case.x, cos[:, None], sin[:, None], interleaved=case.interleaved)
        close(found, run_graph([node], {"x": case.x, "cos": cos, "sin": sin}), FLOAT32)

    @settings(deadline=None, max_examples=30)
    @given(cases)
    def test_the_inverse_is_the_negative_sine(self, run_graph, drawn) -> None:
        case = Case(drawn)
        nodes = [
            make_node("Neg", ["sin"], ["minus"]),
            make_node("RotaryEmbedding", ["x", "cos", "minus", "ids"], ["y"], **case.attributes),
        ]
        feeds = {"x": case.x, "cos": case.cos, "sin": case.sin, "ids": case.position_ids}
        found = rotate_at(
            case.x,
            case.cos,
            case.sin,
            case.position_ids,
            interleaved=case.interleaved,
            inverse=True,
        )
        close(found, run_graph(nodes, feeds), FLOAT32)

    @settings(deadline=None, max_examples=30)
    @given(cases)
    def test_a_trailing_slice_is_cut_off_rotated_and_put_back(self, run_graph, drawn) -> None:
        case = Case({**drawn, "rest": drawn["rest"] or 4})
        width = 2 * case.pairs
        nodes = [
            make_node("Split", ["x", "widths"], ["kept", "rope"], axis=-1),
            make_node(
                "RotaryEmbedding",
                ["rope", "cos", "sin", "ids"],
                ["turned"],
                interleaved=int(case.interleaved),
            ),
            make_node("Concat", ["kept", "turned"], ["y"], axis=-1),
        ]
        feeds = {
            "x": case.x,
            "cos": case.cos,
            "sin": case.sin,
            "ids": case.position_ids,
            "widths": np.array([case.head_dim - width, width]),
        }
        found = rotate_at(
            case.x,
            case.cos,
            case.sin,
            case.position_ids,
            interleaved=case.interleaved,
            trailing=True,
        )
        close(found, run_graph(nodes, feeds), FLOAT32)

    @pytest.mark.parametrize("domain", ["", "com.microsoft"])
    @pytest.mark.parametrize("interleaved", [False, True])
    def test_half_precision(self, run_graph, domain, interleaved) -> None:
        rng = np.random.default_rng(20)
        x = heads(rng, 2, 3, 5, 16).astype(np.float16)
        cos, sin = (values.astype(np.float16) for values in table(rng, ROWS, 8))
        ids = rng.integers(0, ROWS, (2, 5))
        inputs = ["x", "ids", "cos", "sin"] if domain else ["x", "cos", "sin", "ids"]
        node = make_node(
            "RotaryEmbedding", inputs, ["y"], domain=domain, interleaved=int(interleaved)
        )
        expected = run_graph([node], {"x": x, "ids": ids, "cos": cos, "sin": sin})
        close(rotate_at(x, cos, sin, ids, interleaved=interleaved), expected, FLOAT16)


def written_out(interleaved: bool, compute: int, store: int) -> list[onnx.NodeProto]:
    """x, cos, sin [.., 1, pairs] -> y: one rotation in basic ops, computed in one dtype.

    x's pairs are cut out with Slice (interleaved, step 2) or Split. The result
    is cast to the dtype to store, and to the one to compute so that it can be fetched.
    """
    nodes = [make_node("Cast", [n], [f"{n}_"], to=compute) for n in ("x", "cos", "sin")]
    if interleaved:
        nodes += [
            make_node("Slice", ["x_", f"from{i}", "end", "axis", "two"], [name])
            for i, name in enumerate(("a", "b"))
        ]
    else:
        nodes += [make_node("Split", ["x_"], ["a", "b"], axis=-1, num_outputs=2)]
    nodes += [
        make_node("Mul", ["a", "cos_"], ["ac"]),
        make_node("Mul", ["b", "sin_"], ["bs"]),
        make_node("Sub", ["ac", "bs"], ["first"]),
        make_node("Mul", ["b", "cos_"], ["bc"]),
        make_node("Mul", ["a", "sin_"], ["as"]),
        make_node("Add", ["bc", "as"], ["second"]),
    ]
    if interleaved:
        nodes += [
            make_node("Unsqueeze", ["first", "axis"], ["first1"]),
            make_node("Unsqueeze", ["second", "axis"], ["second1"]),
            make_node("Concat", ["first1", "second1"], ["stacked"], axis=-1),
            make_node("Reshape", ["stacked", "shape"], ["turned"]),
        ]
    else:
        nodes += [make_node("Concat", ["first", "second"], ["turned"], axis=-1)]
    return [
        *nodes,
        make_node("Cast", ["turned"], ["stored"], to=store),
        make_node("Cast", ["stored"], ["y"], to=compute),
    ]


DTYPES = {
    "float64": (np.float64, onnx.TensorProto.DOUBLE, onnx.TensorProto.DOUBLE),
    "float32": (np.float32, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT),
    "float16": (np.float16, onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16),
    "bfloat16": (ml_dtypes.bfloat16, onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16),
}


class TestExactArithmetic:
    @pytest.mark.parametrize("interleaved", [False, True])
    @pytest.mark.parametrize("name", DTYPES)
    @settings(deadline=None, max_examples=25)
    @given(
        shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 12)),
        seed=st.integers(0, 2**32 - 1),
    )
    def test_bit_for_bit(self, run_graph, name, interleaved, *, shape, seed) -> None:
        """EXACT: half precision included, for both sides compute in float32 and round once."""
        batch, seq, pairs = shape
        dtype, compute, store = DTYPES[name]
        wide = onnx.helper.tensor_dtype_to_np_dtype(compute)
        rng = np.random.default_rng(seed)
        x = heads(rng, batch, 2, seq, 2 * pairs).astype(dtype)
        cos, sin = (values.astype(dtype) for values in table(rng, batch, 1, seq, pairs))
        feeds = {"x": x.astype(wide), "cos": cos.astype(wide), "sin": sin.astype(wide)}
        if interleaved:
            numbers = {"from0": [0], "from1": [1], "end": [2 * pairs], "axis": [-1], "two": [2]}
            feeds |= {key: np.array(value) for key, value in numbers.items()}
            feeds["shape"] = np.array(x.shape)
        expected = run_graph(written_out(interleaved, compute, store), feeds)
        found = rotate(x, cos, sin, interleaved=interleaved)
        assert found.dtype == dtype
        assert np.array_equal(found.astype(wide), expected)

    def test_a_float64_table_is_not_rounded_to_the_dtype_of_x(self) -> None:
        # 1 + 2^-12 has no float16; rounded to 1 first, the difference would be 0.
        x = np.ones(2, np.float16)
        cos, sin = np.array([1 + 2.0**-12]), np.array([1.0])
        assert rotate(x, cos, sin)[0] == np.float16(2.0**-12)

    @pytest.mark.parametrize("trailing", [False, True])
    def test_entries_that_do_not_rotate_keep_their_bits(self, trailing) -> None:
        bits = np.arange(0x7FC1, 0x7FC7, dtype=np.uint16)  # NaNs that a conversion changes
        x = bits.view(ml_dtypes.bfloat16).copy()
        turned = slice(2, 6) if trailing else slice(0, 4)
        x[turned] = 1
        found = rotate(x, np.zeros(2), np.ones(2), trailing=trailing)
        kept = np.ones(6, bool)
        kept[turned] = False
        assert np.array_equal(found.view(np.uint16)[kept], bits[kept])
        assert found[turned].tolist() == [-1, -1, 1, 1]

    def test_x_stays_as_it_was(self) -> None:
        x = np.arange(4.0)
        x.flags.writeable = False
        rotate(x, np.zeros(2), np.ones(2))
        assert x.tolist() == [0, 1, 2, 3]


class TestInverse:
    @settings(deadline=None, max_examples=50)
    @given(cases, st.booleans())
    def test_there_and_back(self, drawn, trailing) -> None:
        """Bound 4e-15: two rotations in float64, each off by (2 + 2 + 4)·2^-53 at most."""
        case = Case(drawn)
        angles = np.random.default_rng(drawn["seed"]).uniform(-4, 4, (case.seq, case.pairs))
        x, cos, sin = case.x.astype(np.float64), np.cos(angles), np.sin(angles)
        how = {"interleaved": case.interleaved, "trailing": trailing}
        back = rotate(rotate(x, cos, sin, **how), cos, sin, inverse=True, **how)
        close(back, x, 4e-15)

    def test_an_attention_factor_is_squared_there_and_back(self) -> None:
        """Bound 1e-14: as above, times 1.5 squared."""
        angles = np.linspace(-3, 3, 8).reshape(2, 4)
        cos, sin = 1.5 * np.cos(angles), 1.5 * np.sin(angles)
        x = np.random.default_rng(3).uniform(-2, 2, (2, 8))
        close(rotate(rotate(x, cos, sin), cos, sin, inverse=True), 2.25 * x, 1e-14)


class TestPositions:
    def test_one_row_of_positions_serves_the_whole_batch(self) -> None:
        rng = np.random.default_rng(4)
        x, (cos, sin) = heads(rng, 3, 2, 4, 6), table(rng, ROWS, 3)
        ids = np.array([[7, 0, 39, 7]])
        shared = rotate_at(x, cos, sin, ids)
        assert np.array_equal(shared, rotate_at(x, cos, sin, np.repeat(ids, 3, axis=0)))

    @pytest.mark.parametrize("bad", [-1, ROWS, 2**40])
    def test_a_position_outside_is_refused(self, bad) -> None:
        cos = np.zeros((ROWS, 2))
        with pytest.raises(ScheduleError) as caught:
            rotate_at(np.zeros((1, 1, 3, 4)), cos, cos, np.array([[0, bad, 1]]))
        assert caught.value.key == "position_ids"
        assert "index (0, 1)" in str(caught.value)
        assert caught.value.found == str(bad)
        assert caught.value.allowed == f"0 to {ROWS - 1}"

    @pytest.mark.parametrize("domain", ["", "com.microsoft"])
    @pytest.mark.parametrize("bad", [-1, ROWS, 2**40])
    def test_onnxruntime_refuses_it_too(self, run_graph, domain, bad) -> None:
        pytest.importorskip("onnxruntime", minversion="1.27")  # Older ones read out of bounds.
        x, cos = np.zeros((1, 1, 3, 4), np.float32), np.zeros((ROWS, 2), np.float32)
        inputs = ["x", "ids", "cos", "cos"] if domain else ["x", "cos", "cos", "ids"]
        node = make_node("RotaryEmbedding", inputs, ["y"], domain=domain)
        with pytest.raises(Exception, match="out of range"):
            run_graph([node], {"x": x, "ids": np.array([[0, bad, 1]]), "cos": cos})

    def test_rows_follow_positions_of_any_shape(self) -> None:
        cos = np.arange(12.0).reshape(4, 3)
        got_cos, got_sin = rows_at(cos, -cos, np.array([[[3]], [[1]]], np.uint8))
        assert got_cos.tolist() == [[[[9, 10, 11]]], [[[3, 4, 5]]]]
        assert np.array_equal(got_sin, -got_cos)

    @pytest.mark.parametrize("ids", [np.zeros((1, 3)), np.zeros((1, 3), bool)])
    def test_positions_are_integers(self, ids) -> None:
        with pytest.raises(ScheduleError, match="integers") as caught:
            rotate_at(np.zeros((1, 1, 3, 4)), np.zeros((5, 2)), np.zeros((5, 2)), ids)
        assert caught.value.key == "position_ids"

    @pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 1, 3), (3, 3), (1,)])
    def test_one_position_per_token(self, shape) -> None:
        x, cos = np.zeros((2, 4, 3, 4)), np.zeros((5, 2))
        with pytest.raises(ScheduleError) as caught:
            rotate_at(x, cos, cos, np.zeros(shape, int))
        assert caught.value.key == "position_ids"

    @pytest.mark.parametrize(
        ("x", "cos", "sin", "key"),
        [
            ((3, 4), (5, 2), (5, 2), "x"),
            ((1, 3, 4), (5, 2), (5, 2), "x"),
            ((1, 1, 3, 4), (1, 5, 2), (1, 5, 2), "cos, sin"),
            ((1, 1, 3, 4), (5, 2), (4, 2), "cos, sin"),
        ],
    )
    def test_shapes_are_refused(self, x, cos, sin, key) -> None:
        with pytest.raises(ScheduleError) as caught:
            rotate_at(np.zeros(x), np.zeros(cos), np.zeros(sin), np.zeros((1, 3), int))
        assert caught.value.key == key


class TestRefused:
    @pytest.mark.parametrize(
        ("x", "cos", "sin", "key"),
        [
            ((2, 8), (2, 5), (2, 5), "cos"),  # wider than the head
            ((2, 8), (2, 8), (2, 8), "cos"),  # doubled
            ((2, 7), (2, 4), (2, 4), "cos"),  # an odd head holds three pairs
            ((2, 8), (2, 0), (2, 0), "cos"),
            ((2, 8), (2, 4), (2, 3), "sin"),
            ((2, 8), (2, 4), (1, 4), "sin"),
            ((2, 8), (3, 4), (3, 4), "cos"),
            ((1, 8), (3, 4), (3, 4), "cos"),  # would enlarge x
            ((2, 8), (1, 2, 4), (1, 2, 4), "cos"),
            ((), (1,), (1,), "x"),
            ((2,), (), (), "cos"),
        ],
    )
    def test_shapes(self, x, cos, sin, key) -> None:
        with pytest.raises(ScheduleError) as caught:
            rotate(np.zeros(x), np.zeros(cos), np.zeros(sin))
        assert caught.value.key == key
        assert caught.value.allowed is not None

    @pytest.mark.parametrize(
        ("x", "cos", "sin", "key"),
        [
            (np.int64, np.float32, np.float32, "x"),
            (np.complex64, np.float32, np.float32, "x"),
            (np.float32, np.int32, np.float32, "cos"),
            (np.float32, np.float32, ml_dtypes.float8_e4m3fn, "sin"),
        ],
    )
    def test_dtypes(self, x, cos, sin, key) -> None:
        with pytest.raises(ScheduleError, match="allowed: float16, bfloat16") as caught:
            rotate(np.zeros(4, x), np.zeros(2, cos), np.zeros(2, sin))
        assert caught.value.key == key
