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
}


def decode(site: Site, container: Container) -> tuple[Array, Array]:
    """cos and sin of a site, [rows, pairs] in the stored dtype, mapped and not copied.

    Raises ContainerError where the file changed since the container was opened.
    """
    return ENCODINGS[site.encoding].decode(
        _stored(site.cos, container), _stored(site.sin, container)
    )


def encode(table: Table, dtype: str, encoding: str = "pairs") -> tuple[bytes, bytes]:
    """The bytes of cos and of sin that store a float64 Table, rounded once to `dtype`.

    dtype: "float32", "float16" or "bfloat16", as in `TensorSpan`.
    """
    cos, sin = ENCODINGS[encoding].encode(table.astype(DTYPES[dtype]))
    return cos.tobytes(), sin.tobytes()


def _stored(span: TensorSpan, container: Container) -> Array:
    data = container.map(span.file, span.offset, span.length)
    return np.frombuffer(data, DTYPES[span.dtype]).reshape(span.shape)
