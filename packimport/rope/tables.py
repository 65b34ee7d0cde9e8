"""Tables: cos and sin by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packimport.errors import ScheduleError
from packimport.rope.frequencies import Frequencies, frequencies
from packimport.rope.parallel import NARROW, WIDE, block_rows, map_rows
from packimport.rope.rounding import ROUND, table_dtype
from packimport.rope.schedule import Rope
from packimport.rope.short import is_short, rounded


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """cos and sin, each [rows, pairs] and of one dtype; row r is position start + r."""

    cos: NDArray[np.generic]
    sin: NDArray[np.generic]

    def astype(self, dtype: DTypeLike) -> Table:
        """The table in float32, float16 or bfloat16 (that of ml_dtypes).

        Rounded once, to nearest, from this table's float64. Raises
        ScheduleError for another dtype, and for a table that was rounded
        before: rounding twice is not rounding once.
        """
        target = table_dtype(dtype)
        if target == self.cos.dtype:
            return self
        if self.cos.dtype != np.float64 or self.sin.dtype != np.float64:
            raise ScheduleError(
                "dtype",
                "the table was rounded before",
                found=self.cos.dtype.name,
                allowed="float64",
            )
        rows, pairs = self.cos.shape
        cos, sin = (np.empty((rows, pairs), target) for _ in range(2))
        round_once = ROUND[target.name]

        def convert(first: int, last: int) -> None:
            cos[first:last] = round_once(self.cos[first:last].view(np.float64))
            sin[first:last] = round_once(self.sin[first:last].view(np.float64))

        for _ in map_rows(convert, 0, rows, block_rows(pairs)):
            pass
        return Table(cos, sin)


def table(
    rope: Rope,
    rows: int,
    *,
    start: int = 0,
    seq_len: int | None = None,
    dtype: DTypeLike = np.float64,
) -> Table:
    """The table of `rope` for positions start .. start + rows - 1.

    Every entry is float64's cos or sin of the float32 angle, times the
    attention factor, rounded once to `dtype`: within 1 ulp of what torch
    computes in float32, and nearer the truth. `seq_len` is that of
    `frequencies`. To ask for a dtype here takes less memory than `.astype`
    and gives the same bits.

    Raises ScheduleError where the rope, rows, start or dtype is not valid.
    """
    for key, value, least in (("rows", rows, 1), ("start", start, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ScheduleError(key, "no count", found=value, allowed=f"an integer from {least} up")
    target = table_dtype(dtype)
    values = frequencies(rope, seq_len)
    cos, sin = (np.empty((rows, rope.pairs), target) for _ in range(2))
    round_once = ROUND[target.name]

    def fill(first: int, last: int) -> None:
        here = slice(first - start, last - start)
        if is_short(target):
            angle, factor = angles(values, first, last), values.attention_factor
            cos[here] = rounded(np.cos, angle, factor, target)
            sin[here] = rounded(np.sin, angle, factor, target)
        else:
            exact = cos_sin(values, first, last)
            cos[here], sin[here] = map(round_once, exact)

    entries = NARROW if is_short(target) else WIDE
    for _ in map_rows(fill, start, start + rows, block_rows(rope.pairs, entries)):
        pass
    return Table(cos, sin)


def cos_sin(
    values: Frequencies, start: int, stop: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """cos and sin for positions start .. stop - 1, float64 [stop - start, pairs]."""
    return cos_sin_of(angles(values, start, stop), values.attention_factor)


def cos_sin_of(
    angle: NDArray[np.float32], attention_factor: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """float64's cos and sin of float32 angles of any shape, times the attention factor."""
    exact = angle.astype(np.float64)
    cos = np.cos(exact)
    sin = np.sin(exact, out=exact)
    if attention_factor != 1:
        cos *= attention_factor
        sin *= attention_factor
    return cos, sin


def angles(values: Frequencies, start: int, stop: int) -> NDArray[np.float32]:
    """float32(position) * inv_freq for positions start .. stop - 1, float32 [stop - start, pairs].

    The product is rounded to float32, as models compute it: a float64 angle
    differs from theirs by up to 0.009 rad at position 131071.
    """
    positions = np.arange(start, stop).astype(np.float32)
    return np.multiply.outer(positions, values.inv_freq)
