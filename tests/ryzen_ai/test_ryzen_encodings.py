"""The two encodings of compiled nodes: of every value, and what is no copy of itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from packimport.graph.encodings import ENCODINGS, encode
from packimport.graph.site import ENTRIES
from packimport.rope.schedule import Rope
from packimport.rope.tables import Table, table

BF16 = ml_dtypes.bfloat16
PAIRS = 16
ROPE = Rope(type="default", theta=10000.0, head_dim=2 * PAIRS, rotary_dim=2 * PAIRS)


def every_float16() -> np.ndarray:
    """All finite ones, of both signs, zeros and subnormals as well; [rows, 16]."""
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    return values[np.isfinite(values)].reshape(-1, PAIRS)


def test_every_encoding_has_a_width() -> None:
    assert ENCODINGS.keys() == ENTRIES.keys()


def test_hi_and_lo_hold_every_float16_exactly() -> None:
    cos = every_float16()
    sin = cos[::-1]
    (stored,) = ENCODINGS["hi-lo"].encode(Table(cos, sin))
    assert (stored.dtype, stored.shape) == (BF16, (2, len(cos), 4 * PAIRS))
    for part, values in zip(stored, (cos, sin), strict=True):
        hi, again, lo, lo_again = np.split(part, 4, axis=1)
        wide = values.astype(np.float64)
        assert np.array_equal(hi.astype(np.float64) + lo.astype(np.float64), wide)
        # hi is the nearest bfloat16, so that lo is at most half a step of it.
        assert np.array_equal(hi, values.astype(np.float32).astype(BF16))
        assert hi.tobytes() == again.tobytes()
        assert lo.tobytes() == lo_again.tobytes()
    back = ENCODINGS["hi-lo"].decode([stored])
    assert [values.tobytes() for values in back] == [cos.tobytes(), sin.tobytes()]


def test_hi_and_lo_of_float32_values_are_read_to_the_nearest_float16() -> None:
    """Their sum has 16 bits: such a table is right, and is not given back bit for bit."""
    exact = table(ROPE, 512)
    made = []
    for values in (exact.cos, exact.sin):
        wide = values.astype(np.float32)
        hi = wide.astype(BF16)
        lo = (wide - hi.astype(np.float32)).astype(BF16)
        made.append(np.concatenate([hi, hi, lo, lo], axis=1))
    cos, sin = ENCODINGS["hi-lo"].decode([np.stack(made)])
    for found, values in ((cos, exact.cos), (sin, exact.sin)):
        ulp = np.spacing(np.maximum(np.abs(values), 2.0**-14).astype(np.float16))
        assert (np.abs(found.astype(np.float64) - values) <= ulp.astype(np.float64)).all()


@pytest.mark.parametrize("column", [0, PAIRS, 2 * PAIRS, 3 * PAIRS])
def test_copies_that_differ_are_no_number(column: int) -> None:
    (stored,) = ENCODINGS["hi-lo"].encode(table(ROPE, 64, dtype=np.float16))
    stored[1, 5, column + 3] += BF16(0.5)
    cos, sin = ENCODINGS["hi-lo"].decode([stored])
    assert np.argwhere(np.isnan(sin)).tolist() == [[5, 3]]
    assert not np.isnan(cos).any()


@pytest.mark.parametrize("odd", [np.nan, np.inf, 3e38])
def test_what_is_no_float16_is_handed_on_as_such(odd: float) -> None:
    (stored,) = ENCODINGS["hi-lo"].encode(table(ROPE, 64, dtype=np.float16))
    stored[0, 7, [2, 2 + PAIRS]] = BF16(odd)
    cos, _ = ENCODINGS["hi-lo"].decode([stored])
    assert np.argwhere(~np.isfinite(cos)).tolist() == [[7, 2]]


def test_a_row_holds_cos_and_then_sin() -> None:
    made = table(ROPE, 300)
    (data,) = encode(made, "bfloat16", "cos-sin")
    stored = np.frombuffer(data, BF16).reshape(300, 2 * PAIRS)
    for part, values in ((stored[:, :PAIRS], made.cos), (stored[:, PAIRS:], made.sin)):
        # Once rounded from float64: within half a step, and 1 + 2^-9 is one step of 2^-7.
        assert (np.abs(part.astype(np.float64) - values) <= 2.0**-9).all()
    cos, sin = ENCODINGS["cos-sin"].decode([stored])
    assert encode(Table(cos, sin), "bfloat16", "cos-sin") == (data,)
