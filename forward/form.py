"""Form: which rows of a run a dump keeps, how many entries of each, and in which dtype."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from forward.entries import log_sums
from forward.statistics import row_maxima
from forward.top import Ids, top
from packimport.errors import DumpError, UsageError

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What is kept.

    dtype:     "float32" or "float16".
    positions: ranges start … stop − 1, ascending and apart; None keeps all.
    top_k:     the largest logits of each row, with log Σ exp of the others; None keeps all.
    """

    dtype: str = "float32"
    positions: Ranges | None = None
    top_k: int | None = None

    def to_json(self) -> list[object]:
        """What tells it from others, as JSON values."""
        ranges = None if self.positions is None else [list(span) for span in self.positions]
        return [self.dtype, ranges, self.top_k]

    def kept(self, count: int) -> Ids:
        """The positions that are kept of `count`, int64 ascending."""
        if self.positions is None:
            return np.arange(count)
        if self.positions[-1][1] > count:
            raise DumpError(
                "--positions asks for more than there are",
                found=self.positions[-1][1] - 1,
                allowed=f"0 to {count - 1}",
            )
        return np.concatenate([np.arange(start, stop) for start, stop in self.positions])


ALL = Form()


def parse_positions(text: str) -> Ranges:
    """Ranges from a text such as "0-127,2040-2055,4000": both ends are in, as in a report.

    Raises UsageError for anything else, and for ranges that do not ascend.
    """
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        start, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < start or (ranges and start < ranges[-1][1]):
            raise UsageError(
                "--positions takes ascending ranges", found=text, allowed="such as 0-127,2040-2055"
            )
        ranges.append((start, last + 1))
    return tuple(ranges)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What is written of some rows.

    logits: float32 or float16 [rows, entries]. ids: int32 [rows, entries] of a top-k dump,
    and tail: float64 [rows], log Σ exp of the logits that were left out.
    """

    logits: npt.NDArray[np.generic]
    ids: npt.NDArray[np.int32] | None = None
    tail: npt.NDArray[np.float64] | None = None


def keep(rows: npt.NDArray[np.generic], form: Form, first: int) -> Kept:
    """`rows`, [rows, vocab] of any float dtype, in a form; `first` is the position of row 0.

    Raises DumpError for rows without a softmax, such as those of an overflow in float16,
    and for a finite logit that float16 can't hold.
    """
    wide = np.ascontiguousarray(rows, dtype="<f4")
    row_maxima(wide, "run", first)
    if form.top_k is None:
        return Kept(_narrow(wide, form.dtype, first))
    if form.top_k >= wide.shape[1]:
        raise DumpError(
            "--top-k keeps no fewer entries than there are",
            found=form.top_k,
            allowed=f"1 to {wide.shape[1] - 1}",
        )
    ids = top(wide, form.top_k)
    kept = _narrow(np.take_along_axis(wide, ids, 1), form.dtype, first)
    return Kept(kept, np.ascontiguousarray(ids, dtype="<i4"), tail_of(wide, ids))


def tail_of(logits: npt.NDArray[np.float32], ids: Ids) -> npt.NDArray[np.float64]:
    """log Σ exp of the entries of each row but `ids`, float64 [rows]; −inf where none is left."""
    rest = logits.copy()
    np.put_along_axis(rest, ids, -np.inf, 1)
    maxima = rest.max(axis=1).astype(np.float64)
    none = np.isinf(maxima)
    tail = np.full(len(rest), -np.inf)
    tail[~none] = log_sums(rest[~none], maxima[~none])
    return tail


def _narrow(wide: npt.NDArray[np.float32], dtype: str, first: int) -> npt.NDArray[np.generic]:
    if dtype == "float32":
        return wide
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(wide, dtype="<f2")
    lost = np.flatnonzero((np.isinf(narrow) & ~np.isinf(wide)).any(axis=1))
    if lost.size:
        raise DumpError(
            f"float16 can't hold the logits at position {first + int(lost[0])}",
            found=float(np.nanmax(np.abs(wide[lost[0]]))),
            allowed="65504 or less",
            fix="Pass --dtype float32.",
        )
    return cast("npt.NDArray[np.generic]", narrow)
