"""Session: one graph in onnxruntime. The one door to onnxruntime.

Tensors stay in onnxruntime's memory between runs: a `Value` is handed from the
outputs of one run to the inputs of the next without a copy.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from packimport.errors import DependencyError, GraphError

PROVIDER = "CPUExecutionProvider"
OPTIMIZATION = "all"

# onnxruntime's name of a type ─▶ ours, and its number in onnx's TensorProto.DataType.
_TYPES = {
    "tensor(float)": ("float32", 1),
    "tensor(float16)": ("float16", 10),
    "tensor(bfloat16)": ("bfloat16", 16),
    "tensor(int64)": ("int64", 7),
    "tensor(int32)": ("int32", 6),
}
_NUMBERS = dict(_TYPES.values())

# What onnxruntime says where a position lies beyond the rows of a RoPE table.
_TOO_FEW_ROWS = (
    "cos_cache dimension 0 shall not be less than total_sequence_length",
    "Updating cos_cache and sin_cache in RotaryEmbedding is not currently supported",
    "Status Message: position_ids value",
)

# What it says where it has no such operator.
_NO_KERNEL = ("is not a registered function/op", "NOT_IMPLEMENTED", "No Op registered")

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph.

    dtype: "float32", "float16", "bfloat16", "int64" or "int32"; else onnxruntime's own name.
    shape: a number, or None where the graph leaves the dimension open.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def text(self) -> str:
        """For messages: dtype and shape."""
        return f"{self.dtype} [{', '.join('?' if d is None else str(d) for d in self.shape)}]"


class Value:
    """A tensor in onnxruntime's memory."""

    __slots__ = ("_ort",)

    # onnxruntime has no types: OrtValue is Any here and in Session.
    def __init__(self, ort: Any) -> None:
        self._ort = ort

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims."""
        return tuple(self._ort.shape())

    def array(self) -> Array:
        """The tensor in numpy: a view that keeps it alive, or a copy of a bfloat16 one.

        numpy lacks bfloat16, so that dtype is ml_dtypes'.
        """
        if self._ort.data_type() != "tensor(bfloat16)":
            array: Array = self._ort.numpy()
            return array
        import ml_dtypes

        raw = ctypes.string_at(self._ort.data_ptr(), 2 * math.prod(self.shape))
        return np.frombuffer(raw, dtype=np.dtype(ml_dtypes.bfloat16)).reshape(self.shape)


class Session:
    """A graph that is ready to run on the CPU.

    inputs, outputs: by name, in the graph's order.
    """

    def __init__(self, ort: ModuleType, session: Any, place: str) -> None:
        self._ort = ort
        self._session = session
        self.place = place
        self.version: str = ort.__version__
        self.inputs: Mapping[str, Port] = _ports(session.get_inputs())
        self.outputs: Mapping[str, Port] = _ports(session.get_outputs())

    def value(self, array: Array) -> Value:
        """`array` as an input; it must stay unchanged while the Value is in use."""
        return Value(self._ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))

    def empty(self, shape: Sequence[int], dtype: str) -> Value:
        """A tensor of uninitialised entries, such as a past of length 0."""
        make = self._ort.OrtValue.ortvalue_from_shape_and_type
        try:
            kind = _NUMBERS[dtype] if dtype == "bfloat16" else np.dtype(dtype).type
            return Value(make(list(shape), kind, "cpu"))
        except Exception as error:  # onnxruntime's errors have no base of their own
            raise GraphError(
                f"onnxruntime {self.version} makes no {dtype} tensor", place=self.place
            ) from error

    def run(self, feeds: Mapping[str, Value], outputs: Sequence[str]) -> dict[str, Value]:
        """The named outputs for these inputs.

        Raises GraphError where onnxruntime refuses.
        """
        raw = {name: value._ort for name, value in feeds.items()}
        try:
            results = self._session.run_with_ort_values(list(outputs), raw)
        except MemoryError:
            raise
        except Exception as error:  # onnxruntime's errors have no base of their own
            raise _run_error(str(error), self.place) from error
        return {name: Value(result) for name, result in zip(outputs, results, strict=True)}


def open_session(path: Path, place: str, threads: int | None = None) -> Session:
    """The graph at `path`, on the CPU provider, optimised as onnxruntime does by default.

    place:   what errors call the graph.
    threads: for one operator; None leaves the number to onnxruntime.
    Nothing else is loaded: no custom operators, no settings of the pack.
    Raises DependencyError without onnxruntime, GraphError where it refuses the graph.
    """
    ort = _onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # its errors come as exceptions; they need no second line
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = ort.InferenceSession(str(path), options, providers=[PROVIDER])
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's errors have no base of their own
        raise _load_error(str(error), place, ort.__version__) from error
    return Session(ort, session, place)


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(
            "running a pack needs onnxruntime, which is not installed",
            fix="Install it: pip install packimport[ort]",
        ) from error
    module: ModuleType = onnxruntime
    return module


def _ports(nodes: Sequence[Any]) -> dict[str, Port]:
    return {
        node.name: Port(
            node.name,
            _TYPES[node.type][0] if node.type in _TYPES else node.type,
            tuple(dim if isinstance(dim, int) else None for dim in node.shape),
        )
        for node in nodes
    }


def _load_error(text: str, place: str, version: str) -> GraphError:
    foreign = any(sign in text for sign in _NO_KERNEL)
    return GraphError(
        f"onnxruntime {version} can't load the graph on the CPU: {_short(text)}",
        place=place,
        fix="A graph made for an NPU or GPU runs only in that device's environment."
        if foreign
        else None,
    )


def _run_error(text: str, place: str) -> GraphError:
    if any(sign in text for sign in _TOO_FEW_ROWS):
        return GraphError(
            "a RoPE table of the graph has fewer rows than the run has positions",
            place=place,
            fix="Pass fewer tokens; `packimport` on the pack prints the rows of each table.",
        )
    return GraphError(f"onnxruntime can't run the graph: {_short(text)}", place=place)


def _short(text: str) -> str:
    """onnxruntime's message without its code and kind, on one line."""
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
