"""Encodings: how a table lies in the tensors of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.graph.site import Site, TensorSpan
from packimport.pack.container import Container
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

    decode: the stored cos and sin [rows, columns] ─▶ cos and sin [rows, pairs].
    encode: a Table [rows, pairs] of the stored dtype ─▶ the arrays to store.
    """

    decode: Callable[[Array, Array], tuple[Array, Array]]
    encode: Callable[[Table], tuple[Array, Array]]


ENCODINGS: Mapping[str, Encoding] = {
    # One value per pair, [rows, pairs], in each of two tensors.
    "pairs": Encoding(
        decode=lambda cos, sin: (cos, sin), encode=lambda table: (table.cos, table.sin)
    ),
    # Every value twice: a row after itself, or each entry after itself.
    "halves": Encoding(
        decode=lambda cos, sin: (_twice(cos, "halves"), _twice(sin, "halves")),
        encode=lambda table: (np.tile(table.cos, 2), np.tile(table.sin, 2)),
    ),
    "repeated": Encoding(
        decode=lambda cos, sin: (_twice(cos, "repeated"), _twice(sin, "repeated")),
        encode=lambda table: (np.repeat(table.cos, 2, axis=1), np.repeat(table.sin, 2, axis=1)),
    ),
}


def _twice(stored: Array, layout: str) -> Array:
    """One value per pair of rows that hold two; NaN where the two differ, which is never right."""
    pairs = stored.shape[1] // 2
    by_halves = stored[:, :pairs], stored[:, pairs:]
    one, other = by_halves if layout == "halves" else (stored[:, ::2], stored[:, 1::2])
    if np.array_equal(one, other):
        return one
    return np.where(one == other, one, np.array(np.nan, stored.dtype))


def decode(site: Site, container: Container) -> tuple[Array, Array]:
    """cos and sin of a site with a table, [rows, pairs] in the stored dtype.

    Raises ContainerError where the file changed since the container was opened.
    """
    table = site.table
    assert table is not None
    cos, sin = (
        _stored(span, container)[table.start : table.stop] for span in (table.cos, table.sin)
    )
    return ENCODINGS[site.encoding].decode(cos, sin)


def encode(table: Table, dtype: str, encoding: str = "pairs") -> tuple[bytes, bytes]:
    """The bytes of cos and of sin that store a Table, rounded once to `dtype`.

    table: float64, or made in `DTYPES[dtype]`, which takes half the memory.
    dtype: "float32", "float16" or "bfloat16", as in `TensorSpan`.
    """
    cos, sin = ENCODINGS[encoding].encode(table.astype(DTYPES[dtype]))
    return cos.tobytes(), sin.tobytes()


def _stored(span: TensorSpan, container: Container) -> Array:
    data = container.span(span.file, span.offset, span.length)
    return np.frombuffer(data, DTYPES[span.dtype]).reshape(-1, span.shape[-1])
