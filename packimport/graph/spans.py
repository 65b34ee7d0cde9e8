"""Spans: where on disk the bytes of a tensor lie, checked before anything reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.errors import GraphError
from packimport.graph.node import Tensor
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.site import TensorSpan
from packimport.graph.trace import Offloaded, Unfollowed
from packimport.graph.wire import FLOAT_DATA, RAW_DATA, Path

# Bytes of an entry, for the dtypes that a table may have.
ITEM_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
# What is computed with, little-endian as ONNX stores raw values.
_ARRAYS: Mapping[str, np.dtype[np.generic]] = {
    **{
        name: np.dtype(f"<{code}")
        for name, code in (
            ("float32", "f4"),
            ("float64", "f8"),
            ("float16", "f2"),
            ("int64", "i8"),
            ("int32", "i4"),
        )
    },
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# Digits of the largest offset that a file may have.
_DIGITS = 19
# A table is read into memory. The longest contexts known, of ten million positions, have
# tables of 1.3 GB.
MAX_TABLE = 2**31
# Files that a patch of "their" bytes would break.
_NO_DATA = (".onnx", ".json", ".yaml", ".txt")


class Spans:
    """The spans of the tensors of one ONNX file."""

    def __init__(self, file: OnnxFile) -> None:
        self._file = file
        self._files: dict[str, tuple[str, int]] = {}
        self._tables: dict[Path, TensorSpan] = {}

    def table(self, tensor: Tensor, *, flat: bool = True) -> TensorSpan:
        """The span of a table [rows, pairs].

        flat: whether it has those two dims; else all dims but the last are rows.

        Raises Offloaded where its values are not in the pack's graph and data files,
        Unfollowed where the tensor can't be a table that can be rewritten in place,
        GraphError where its span contradicts its dims or its file.
        """
        if tensor.shape == (0,):
            raise Offloaded(f"has the shape [0]: the values of {tensor.name} were moved elsewhere")
        if (flat and len(tensor.shape) != 2) or len(tensor.shape) < 2 or 0 in tensor.shape:
            raise Unfollowed(f"has shape {list(tensor.shape)}; a table has [rows, pairs]")
        return self._known(tensor)

    def frequencies(self, tensor: Tensor) -> TensorSpan | None:
        """The span of a small float constant of any shape; None where it can't be rewritten."""
        try:
            return self._known(tensor)
        except Unfollowed:
            return None

    def external_array(self, tensor: Tensor) -> NDArray[np.generic] | None:
        """The values of a tensor with external data; None where they are inline.

        Raises as `external` does, and GraphError where there are too few bytes.
        """
        dtype = _ARRAYS.get(tensor.dtype)
        if tensor.external is None or dtype is None:
            return None
        length = math.prod(tensor.shape) * dtype.itemsize
        found = self.external(tensor, length)
        if found is None or found[2] != length:
            raise GraphError("the values are not as many as the dims say", place=tensor.name)
        data = self._file.container.span(*found)
        return np.frombuffer(data, dtype).reshape(tensor.shape)

    def _known(self, tensor: Tensor) -> TensorSpan:
        if tensor.path not in self._tables:
            self._tables[tensor.path] = self._table(tensor)
        return self._tables[tensor.path]

    def _table(self, tensor: Tensor) -> TensorSpan:
        if tensor.dtype not in ITEM_BYTES:
            raise Unfollowed(f"has dtype {tensor.dtype}; a table has {', '.join(ITEM_BYTES)}")
        length = math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
        name, offset, found = self.external(tensor, length) or self._inline(tensor)
        if found != length:
            raise GraphError(
                "the values are not as many as the dims say",
                place=self._place(tensor),
                found=f"{found} bytes",
                allowed=f"{length} bytes for {tensor.dtype} {list(tensor.shape)}",
            )
        if length > MAX_TABLE:
            raise Unfollowed(f"has shape {list(tensor.shape)}, larger than any table")
        return TensorSpan(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            file=name,
            offset=offset,
            length=length,
        )

    def external(self, tensor: Tensor, unstated: int = 0) -> tuple[str, int, int] | None:
        """File, offset and length of a tensor's external data; None where it is inline.

        unstated: the length where the graph states none. Raises GraphError where the
        span is not wholly inside the file, ContainerError where the file is missing
        or outside the folder of the graph.
        """
        if tensor.external is None:
            return None
        entries = dict(tensor.external)
        location = entries.get("location", "")
        if location not in self._files:
            name = self._file.container.safe_name(location, self._file.name)
            if name.lower().endswith(_NO_DATA):
                raise GraphError(
                    "values that lie in a file of another kind",
                    place=self._place(tensor),
                    found=name,
                    allowed="a data file",
                )
            self._file.container.resolve(name)  # no pointer of Git LFS in its place
            self._files[location] = (name, self._file.container.size(name))
        name, size = self._files[location]
        offset = self._number(tensor, entries, "offset", 0)
        length = self._number(tensor, entries, "length", unstated)
        if offset + length > size:
            raise GraphError(
                f"the values end beyond {name}",
                place=self._place(tensor),
                found=f"{length} bytes at offset {offset}",
                allowed=f"{size} bytes",
                fix="The data file is cut short or belongs to another graph: get the pack again.",
            )
        return name, offset, length

    def externals(self) -> Iterator[tuple[str, tuple[str, int, int]]]:
        """Name and external span of every initializer, at any depth; all are checked."""
        for body in self._file.bodies():
            for tensor in body.tensors():
                span = self.external(tensor)
                if span is not None:
                    yield tensor.name, span

    def _inline(self, tensor: Tensor) -> tuple[str, int, int]:
        payload = self._file.payload(tensor)
        if payload is None:
            raise Unfollowed("holds no values in the graph")
        is_floats = payload.number == FLOAT_DATA and tensor.dtype == "float32"
        if payload.number != RAW_DATA and not is_floats:
            raise Unfollowed(f"stores {tensor.dtype} as a list of integers, not as raw bytes")
        return self._file.name, payload.start, payload.stop - payload.start

    def _number(self, tensor: Tensor, entries: Mapping[str, str], key: str, default: int) -> int:
        text = entries.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise GraphError(
                f"the {key} of external data is no number",
                place=self._place(tensor),
                found=text,
                allowed="a decimal integer from 0 up",
            )
        return int(text)

    def _place(self, tensor: Tensor) -> str:
        return f"{self._file.name}: {tensor.name}"
