"""Encodings: how a table lies in the tensors of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.graph.site import Site, TensorSpan
from packimport.pack.container import Container
from packimport.rope.parallel import block_rows, map_rows
from packimport.rope.tables import Table

Array = NDArray[np.generic]

# Little-endian, as ONNX stores raw values.
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """Two functions that undo each other.

    decode: the stored tensors, each of its own shape ─▶ cos and sin [rows, pairs].
    encode: a Table [rows, pairs] ─▶ the arrays to store, one per tensor.
    values: the dtype of the Table's entries; None where it is that of the tensors.
    """

    decode: Callable[[Sequence[Array]], tuple[Array, Array]]
    encode: Callable[[Table], tuple[Array, ...]]
    values: str | None = None


def _of_two(decode: Callable[[Array], Array], encode: Callable[[Array], Array]) -> Encoding:
    """cos in one tensor and sin in another, in the same way; all dims but the last are rows."""
    return Encoding(
        decode=lambda stored: (decode(_rows(stored[0])), decode(_rows(stored[1]))),
        encode=lambda table: (encode(table.cos), encode(table.sin)),
    )


ENCODINGS: Mapping[str, Encoding] = {
    # One value per pair, [rows, pairs], in each of two tensors.
    "pairs": _of_two(lambda stored: stored, lambda values: values),
    # Every value twice: a row after itself, or each entry after itself.
    "halves": _of_two(lambda stored: _twice(stored, "halves"), lambda values: np.tile(values, 2)),
    "repeated": _of_two(
        lambda stored: _twice(stored, "repeated"), lambda values: np.repeat(values, 2, axis=1)
    ),
    # One tensor [rows, 2 * pairs]: a row's cos, then its sin.
    "cos-sin": Encoding(
        decode=lambda stored: _halves(_rows(stored[0])),
        encode=lambda table: (np.concatenate([table.cos, table.sin], axis=1),),
    ),
    # The same the other way round: GPT-J, CodeGen.
    "sin-cos": Encoding(
        decode=lambda stored: _halves(_rows(stored[0]))[::-1],
        encode=lambda table: (np.concatenate([table.sin, table.cos], axis=1),),
    ),
    # One tensor [2, rows, 4 * pairs], cos before sin. A row is hi, hi, lo, lo: bfloat16 of
    # a float16 value, and of what that leaves, which is exact.
    "hi-lo": Encoding(
        decode=lambda stored: (_summed(stored[0][0]), _summed(stored[0][1])),
        encode=lambda table: (np.stack([_split(table.cos), _split(table.sin)]),),
        values="float16",
    ),
}


def values_dtype(site: Site) -> np.dtype[np.generic]:
    """The dtype that the values of a site's table are rounded to once."""
    return DTYPES[ENCODINGS[site.encoding].values or site.cos.dtype]


def decode(site: Site, container: Container) -> tuple[Array, Array]:
    """cos and sin of a site with a table, [rows, pairs] of the dtype `values_dtype`.

    Raises ContainerError where the file changed since the container was opened.
    """
    table = site.table
    assert table is not None
    stored = [_stored(span, container) for span in table.tensors]
    cos, sin = ENCODINGS[site.encoding].decode(stored)
    return cos[table.start : table.stop], sin[table.start : table.stop]


def encode(table: Table, dtype: str, encoding: str = "pairs") -> tuple[bytes, ...]:
    """The bytes that store a Table, rounded once: of cos and of sin, or of both in one.

    table: float64, or made in the dtype of the values, which takes half the memory.
    dtype: of the tensors: "float32", "float16" or "bfloat16", as in `TensorSpan`.
    """
    how = ENCODINGS[encoding]
    return tuple(array.tobytes() for array in how.encode(table.astype(DTYPES[how.values or dtype])))


def _stored(span: TensorSpan, container: Container) -> Array:
    data = container.span(span.file, span.offset, span.length)
    return np.frombuffer(data, DTYPES[span.dtype]).reshape(span.shape)


def _rows(stored: Array) -> Array:
    return stored.reshape(-1, stored.shape[-1])


def _halves(stored: Array) -> tuple[Array, Array]:
    pairs = stored.shape[1] // 2
    return stored[:, :pairs], stored[:, pairs:]


def _twice(stored: Array, layout: str) -> Array:
    """One value per pair of rows that hold two; NaN where the two differ, which is never right."""
    one, other = _halves(stored) if layout == "halves" else (stored[:, ::2], stored[:, 1::2])
    if np.array_equal(one, other):
        return one
    return np.where(one == other, one, np.array(np.nan, stored.dtype))


def _summed(stored: Array) -> Array:
    """hi + lo of rows hi, hi, lo, lo, as float16.

    NaN where copies differ, or hi is not the sum rounded to bfloat16.
    """
    rows, pairs = stored.shape[0], stored.shape[1] // 4
    made = np.empty((rows, pairs), np.float16)

    def fill(first: int, last: int) -> None:
        part = stored[first:last].astype(np.float32).reshape(last - first, 4, pairs)
        hi, lo = part[:, 0], part[:, 2]
        with np.errstate(all="ignore"):  # a damaged table may hold anything
            # A zero keeps its sign.
            value = np.where(lo == 0, hi, hi + lo)
            value[(part[:, 1] != hi) | (part[:, 3] != lo)] = np.nan
            # Half an ulp of hi: more is left where parts are swapped, or the sum is split
            # in another way.
            value[np.abs(lo) > np.abs(hi) * 2.0**-8] = np.nan
            made[first:last] = value

    for _ in map_rows(fill, 0, rows, block_rows(4 * pairs)):
        pass
    return made


def _split(values: Array) -> Array:
    """Rows hi, hi, lo, lo of float16 values, as bfloat16."""
    rows, pairs = values.shape
    made = np.empty((rows, 4 * pairs), ml_dtypes.bfloat16)

    def fill(first: int, last: int) -> None:
        value = values[first:last].astype(np.float32)
        hi = value.astype(ml_dtypes.bfloat16)
        lo = (value - hi.astype(np.float32)).astype(ml_dtypes.bfloat16)
        made[first:last] = np.concatenate([hi, hi, lo, lo], axis=1)

    for _ in map_rows(fill, 0, rows, block_rows(4 * pairs)):
        pass
    return made
