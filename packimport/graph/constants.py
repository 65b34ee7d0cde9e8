"""Constants: what a subgraph without inputs computes, in numpy, by a small table of ops.

Frequencies are often left in a graph as the arithmetic that makes them. An op
that is not in the table makes a value unknown, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from packimport.errors import GraphError
from packimport.graph.frame import Value, resolve
from packimport.graph.node import STANDARD, Node, Tensor
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.protos import DTYPES
from packimport.graph.spans import Spans

Array = NDArray[np.generic]
Operation = Callable[[Node, Sequence[Array]], "Array | None"]

# Entries of a computed value, and nodes behind it.
_MOST = 2**18
_DEEPEST = 60
_FIXED = {"float32", "float64", "float16", "int32", "int64", "bool", "uint8", "int8"}


class Constants:
    """The constants of one ONNX file, evaluated when asked for."""

    def __init__(self, file: OnnxFile, spans: Spans) -> None:
        self._file = file
        self._spans = spans
        self._known: dict[Value, Array | None] = {}

    def array(self, value: Value, depth: int = 0) -> Array | None:
        """The value as an array; None where it is no constant or not understood.

        value: as `resolve` gives it.
        """
        if value not in self._known:
            # A value that depends on itself is none.
            self._known[value] = None
            self._known[value] = self._evaluate(value, depth) if depth < _DEEPEST else None
        return self._known[value]

    def integer(self, value: Value) -> int | None:
        """The value as one whole number; None where it is none."""
        found = self.array(value)
        if found is None or found.size != 1 or found.dtype.kind not in "iu":
            return None
        return int(found.ravel()[0])

    def integers(self, value: Value) -> tuple[int, ...] | None:
        """The value as a list of whole numbers; None where it is none."""
        found = self.array(value)
        if found is None or found.dtype.kind not in "iu":
            return None
        return tuple(int(number) for number in found.ravel())

    def scalar(self, value: Value) -> float | None:
        """The value as one real number; None where it is none."""
        found = self.array(value)
        if found is None or found.size != 1 or found.dtype.kind not in "fiu":
            return None
        return float(found.ravel()[0])

    def values(self, tensor: Tensor) -> Array | None:
        """The values of a tensor; None where it has too many, or none."""
        if math.prod(tensor.shape) > _MOST:
            return None
        external = self._spans.external_array(tensor)
        return self._file.small_array(tensor) if external is None else external

    def _evaluate(self, value: Value, depth: int) -> Array | None:
        tensor, node = value.tensor, value.node
        if tensor is not None:
            return self.values(tensor)
        if node is None or node.domain != STANDARD:
            return None
        if node.op == "Constant":
            return _attribute(node)
        operation = OPERATIONS.get(node.op)
        if operation is None or value.output:
            return None
        inputs = []
        for name in node.inputs:
            found = self.array(resolve(value.frame, name), depth + 1) if name else None
            if found is None:
                return None
            inputs.append(found)
        try:
            with np.errstate(all="ignore"):
                made = operation(node, inputs)
        except (ValueError, IndexError, TypeError, OverflowError, GraphError):
            return None  # shapes or types that do not fit: onnxruntime refuses it as well
        return made if made is None or made.size <= _MOST else None


def _attribute(node: Node) -> Array | None:
    if (number := _one(node, "value_float")) is not None:
        return np.array(number, np.float32)
    if node.has("value_int"):
        return np.array(node.integer("value_int", 0), np.int64)
    if node.has("value_floats"):
        return np.array(node.numbers("value_floats"), np.float32)
    if node.has("value_ints"):
        return np.array(node.integers("value_ints"), np.int64)
    return None


def _one(node: Node, name: str) -> float | None:
    return node.number(name) if node.has(name) else None


def _cast(node: Node, given: Sequence[Array]) -> Array | None:
    name = DTYPES.get(node.integer("to", 0), "")
    return given[0].astype(name) if name in _FIXED else None


def _axes(node: Node, given: Sequence[Array]) -> tuple[int, ...]:
    if len(given) > 1:
        return tuple(int(axis) for axis in given[1].ravel())
    return node.integers("axes") or ()


def _unsqueeze(node: Node, given: Sequence[Array]) -> Array:
    return np.expand_dims(given[0], _axes(node, given))


def _squeeze(node: Node, given: Sequence[Array]) -> Array:
    return np.squeeze(given[0], _axes(node, given) or None)


def _reshape(node: Node, given: Sequence[Array]) -> Array | None:
    wanted = [int(size) for size in given[1].ravel()]
    if not node.integer("allowzero", 0):
        wanted = [given[0].shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return given[0].reshape(wanted)


def _expand(node: Node, given: Sequence[Array]) -> Array | None:
    shape = np.broadcast_shapes(given[0].shape, tuple(int(size) for size in given[1].ravel()))
    return np.broadcast_to(given[0], shape) if math.prod(shape) <= _MOST else None


def _transpose(node: Node, given: Sequence[Array]) -> Array:
    return np.transpose(given[0], node.integers("perm"))


def _range(node: Node, given: Sequence[Array]) -> Array | None:
    start, limit, delta = (float(array.ravel()[0]) for array in given)
    if not delta or not math.isfinite(limit) or (limit - start) / delta > _MOST:
        return None
    return np.arange(start, limit, delta, dtype=given[0].dtype)


def _divide(node: Node, given: Sequence[Array]) -> Array | None:
    numerator, divisor = given
    if numerator.dtype.kind in "iu":
        if not np.all(divisor):
            return None
        # ONNX rounds toward zero.
        quotient: Array = np.trunc(np.divide(numerator, divisor))
        return quotient.astype(numerator.dtype)
    return np.asarray(np.divide(numerator, divisor))


def _concat(node: Node, given: Sequence[Array]) -> Array:
    return np.concatenate(given, axis=node.integer("axis", 0))


def _gather(node: Node, given: Sequence[Array]) -> Array:
    return np.take(given[0], given[1].astype(np.int64), axis=node.integer("axis", 0))


def _slice(node: Node, given: Sequence[Array]) -> Array:
    data, starts, ends, *more = given
    axes = more[0].ravel() if more else np.arange(starts.size)
    steps = more[1].ravel() if len(more) > 1 else np.ones(starts.size, np.int64)
    cut = [slice(None)] * data.ndim
    for start, end, axis, step in zip(
        *(
            [int(number) for number in array]
            for array in (starts.ravel(), ends.ravel(), axes, steps)
        ),
        strict=True,
    ):
        if step < 1:
            raise ValueError("a slice that runs backwards")
        cut[axis] = slice(start, end, step)
    return data[tuple(cut)]


def _elementwise(function: Callable[..., Array]) -> Operation:
    return lambda node, given: np.asarray(function(*given))


OPERATIONS: Mapping[str, Operation] = {
    "Identity": lambda node, given: given[0],
    "Cast": _cast,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "Transpose": _transpose,
    "Range": _range,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Div": _divide,
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    # The power in float64, rounded once, as the nearest to what runtimes give.
    "Pow": lambda node, given: np.power(
        given[0].astype(np.float64), given[1].astype(np.float64)
    ).astype(given[0].dtype),
    "Neg": _elementwise(np.negative),
    "Reciprocal": _elementwise(np.reciprocal),
    "Exp": _elementwise(np.exp),
    "Log": _elementwise(np.log),
    "Sqrt": _elementwise(np.sqrt),
    "Floor": _elementwise(np.floor),
    "Where": _elementwise(np.where),
    "Less": _elementwise(np.less),
    "Greater": _elementwise(np.greater),
    "Min": _elementwise(lambda *given: np.minimum.reduce(np.broadcast_arrays(*given))),
    "Max": _elementwise(lambda *given: np.maximum.reduce(np.broadcast_arrays(*given))),
    "Clip": _elementwise(np.clip),
}
