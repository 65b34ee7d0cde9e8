"""Layouts: how models and exporters lay cos and sin out, to and from plain pairs.

    duplicated  [..., 2·pairs]   all values, then all values again   (half-split models)
    repeated    [..., 2·pairs]   each value twice                    (interleaved models)
    complex     [..., pairs]     cos + i·sin                         (DeepSeek V2, Llama 4)
    row         [rows, 2·pairs]  a row's cos, then its sin           (one table for both)

`to_x` lays plain arrays out, `from_x` reads them back and refuses, with
ScheduleError, an array that is not laid out so. A `from_x` result is a view of
its input where the layout allows it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from packimport.errors import ScheduleError
from packimport.rope.precision import Values, check_floating

Scalar = TypeVar("Scalar", bound=np.generic)


def to_duplicated(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """cos or sin [..., pairs] as [..., 2·pairs]: entry i again at i + pairs. Dtype kept."""
    _check_pairs(values)
    return np.concatenate([values, values], axis=-1)


def from_duplicated(table: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """[..., 2·pairs] as [..., pairs]; ScheduleError where the halves differ in any value."""
    _check_even(table)
    pairs = table.shape[-1] // 2
    first, second = table[..., :pairs], table[..., pairs:]
    _check_equal(first, second, "the second half is not the first half again")
    return first


def to_repeated(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """cos or sin [..., pairs] as [..., 2·pairs]: entry i at 2i and 2i + 1. Dtype kept."""
    _check_pairs(values)
    return np.repeat(values, 2, axis=-1)


def from_repeated(table: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """[..., 2·pairs] as [..., pairs]; ScheduleError where two neighbours of a pair differ."""
    _check_even(table)
    first, second = table[..., 0::2], table[..., 1::2]
    _check_equal(first, second, "the values do not come twice each")
    return first


def to_complex(cos: Values, sin: Values) -> npt.NDArray[np.complexfloating]:
    """cos + i·sin, [..., pairs]: complex64 from float32, complex128 from float64.

    ScheduleError where the shapes or dtypes differ, or for half precision,
    which has no complex dtype.
    """
    _check_alike(cos, sin)
    if cos.dtype not in (np.float32, np.float64):
        raise ScheduleError(
            "cos", "no complex dtype holds this", found=cos.dtype.name, allowed="float32, float64"
        )
    pairs = np.stack([cos, sin], axis=-1)
    both: npt.NDArray[np.complexfloating] = pairs.view(
        np.complex64 if cos.dtype == np.float32 else np.complex128
    )
    return both[..., 0]


def from_complex(
    table: npt.NDArray[np.complexfloating],
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """complex64 or complex128 [..., pairs] as cos and sin, float32 or float64 [..., pairs]."""
    if table.dtype not in (np.complex64, np.complex128):
        raise ScheduleError(
            "table",
            "the table is not complex",
            found=table.dtype.name,
            allowed="complex64, complex128",
        )
    return table.real, table.imag


def to_row(cos: npt.NDArray[Scalar], sin: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """cos and sin [rows, pairs] as one [rows, 2·pairs], cos first. Dtype kept."""
    _check_alike(cos, sin)
    _check_rows(cos)
    return np.concatenate([cos, sin], axis=-1)


def from_row(table: npt.NDArray[Scalar]) -> tuple[npt.NDArray[Scalar], npt.NDArray[Scalar]]:
    """[rows, 2·pairs] as cos and sin, [rows, pairs].

    ScheduleError for a table of cos or of sin alone, duplicated or repeated:
    it has the same width. A single position 0, which reads 1 … 1 0 … 0, is no
    proof of that, so only a table whose rows differ counts as repeated.
    """
    _check_even(table)
    _check_rows(table)
    pairs = table.shape[-1] // 2
    cos, sin = table[:, :pairs], table[:, pairs:]
    doubled = _equal(cos, sin)
    repeated = _equal(table[:, 0::2], table[:, 1::2])
    rows_differ = not _equal(table[1:], table[:-1])
    if table.size and (doubled or (repeated and rows_differ)):
        raise ScheduleError(
            "table",
            "every value comes twice: this is cos or sin alone, doubled",
            found="[v v]" if doubled else "each value twice",
            allowed="a row of cos, then of sin",
        )
    return cos, sin


def _equal(first: Values, second: Values) -> bool:
    """The same values everywhere; NaN equals NaN, so that a broken table can still be read."""
    return np.array_equal(first, second, equal_nan=True)


def _check_equal(first: Values, second: Values, message: str) -> None:
    """Refuse a table that is not doubled, naming the first entry that shows it."""
    if _equal(first, second):
        return
    differ = (first != second) & ~(np.isnan(first) & np.isnan(second))
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    raise ScheduleError(
        "table",
        f"{message}, first for pair {index[-1]} at index {index[:-1]}",
        found=f"{first[index]} and {second[index]}",
        allowed="two equal values",
    )


def _check_pairs(values: Values) -> None:
    """Refuse what holds no values per pair."""
    check_floating("table", values)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ScheduleError("table", "the table has no pairs", found=values.shape)


def _check_even(table: Values) -> None:
    """Refuse a doubled table whose width is odd or nought."""
    _check_pairs(table)
    if table.shape[-1] % 2:
        raise ScheduleError(
            "table", "a doubled table is of even width", found=table.shape[-1], allowed="2·pairs"
        )


def _check_rows(table: Values) -> None:
    """Refuse what is not [rows, width]."""
    if table.ndim != 2:
        raise ScheduleError("table", "a row per position", found=table.shape, allowed="two axes")


def _check_alike(cos: Values, sin: Values) -> None:
    """Refuse cos and sin that differ in shape or dtype."""
    _check_pairs(cos)
    if (cos.shape, cos.dtype) != (sin.shape, sin.dtype):
        raise ScheduleError(
            "sin",
            "cos and sin differ in shape or dtype",
            found=f"{sin.dtype.name} {sin.shape}",
            allowed=f"{cos.dtype.name} {cos.shape}, as cos",
        )
