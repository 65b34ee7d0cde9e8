"""Session: one graph in onnxruntime. The one door to onnxruntime.

Tensors stay in onnxruntime's memory between runs: a `Value` is handed from the
outputs of one run to the inputs of the next without a copy.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from forward import ryzen_ai
from forward.engine_errors import load_error, run_error
from forward.ryzen_ai import RyzenAI
from packimport.errors import DependencyError, GraphError, PackimportError, UsageError

PROVIDER = "CPUExecutionProvider"
OPTIMIZATION = "all"

# onnxruntime's name of a type ─▶ ours, and its number in onnx's TensorProto.DataType.
_TYPES = {
    "tensor(float)": ("float32", 1),
    "tensor(float16)": ("float16", 10),
    "tensor(bfloat16)": ("bfloat16", 16),
    "tensor(int64)": ("int64", 7),
    "tensor(int32)": ("int32", 6),
    "tensor(int8)": ("int8", 3),
    "tensor(uint8)": ("uint8", 2),
}
_NUMBERS = dict(_TYPES.values())

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph.

    dtype: as numpy spells it, or "bfloat16"; else onnxruntime's own name.
    shape: a number, or None where the graph leaves the dimension open.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def text(self) -> str:
        """For messages: dtype and shape."""
        return f"{self.dtype} [{', '.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How onnxruntime runs a graph.

    threads:    for one operator; None leaves the number to onnxruntime.
    provider:   onnxruntime's name of the execution provider; None for that of the pack,
                which is the CPU unless it names the Ryzen AI runtime.
    custom_ops: sha256 of the one library of custom operators that may be loaded.
    """

    threads: int | None = None
    provider: str | None = None
    custom_ops: str | None = None


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
    """A graph that is ready to run.

    inputs, outputs: by name, in the graph's order.
    provider:        onnxruntime's name of the execution provider that was asked for.
    """

    def __init__(self, ort: ModuleType, session: Any, place: str) -> None:
        self._ort = ort
        self._session = session
        self.place = place
        self.version: str = ort.__version__
        self.provider: str = session.get_providers()[0]
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

    def zeros(self, shape: Sequence[int], dtype: str) -> Value:
        """A tensor of zeros. Memory that is never touched costs nothing."""
        if dtype == "bfloat16":
            value = self.empty(shape, dtype)
            ctypes.memset(value._ort.data_ptr(), 0, 2 * math.prod(shape))
            return value
        return self.value(np.zeros(shape, dtype))

    def run(self, feeds: Mapping[str, Value], outputs: Sequence[str]) -> dict[str, Value]:
        """The named outputs for these inputs.

        Raises GraphError where onnxruntime refuses.
        """
        raw = {name: value._ort for name, value in feeds.items()}
        run = self._session.run_with_ort_values
        # Nodes that lead to no output of the run need not run.
        options = None if len(outputs) == len(self.outputs) else _partial_run(self._ort)
        results = _attempted(lambda: run(list(outputs), raw, options), self.place)
        return {name: Value(result) for name, result in zip(outputs, results, strict=True)}

    def bind(self) -> Binding:
        """A new binding of inputs and outputs, with nothing bound."""
        return Binding(self._ort, self._session, self.place)


class Binding:
    """Inputs and outputs that stay bound from run to run: only what changes is bound again."""

    def __init__(self, ort: ModuleType, session: Any, place: str) -> None:
        self._ort = ort
        self._session = session
        self._place = place
        self._binding = session.io_binding()
        # The binding does not keep a numpy array alive that a Value looks at.
        self._inputs: dict[str, Value] = {}
        # In the order of onnxruntime's own list; None where each run allocates.
        self._outputs: dict[str, Value | None] = {}

    def input(self, name: str, value: Value) -> None:
        """Bind an input; of one that is bound already, the entries may have changed."""
        if self._inputs.get(name) is value:
            return
        self._inputs[name] = value
        self._binding.bind_ortvalue_input(name, value._ort)

    def inputs(self, values: Mapping[str, Value]) -> None:
        """Bind several."""
        for name, value in values.items():
            self.input(name, value)

    def output(self, name: str, value: Value) -> None:
        """Bind an output to a tensor of its shape, which the run overwrites."""
        if self._outputs.get(name) is value:
            return
        self._outputs[name] = value
        self._binding.bind_ortvalue_output(name, value._ort)

    def new_output(self, name: str) -> None:
        """Let each run allocate an output in the CPU's memory."""
        self._outputs[name] = None
        self._binding.bind_output(name)

    def run(self, partly: bool = False) -> None:
        """Run the graph; partly: only the nodes that lead to what is bound.

        Raises GraphError where onnxruntime refuses.
        """
        options = _partial_run(self._ort) if partly else None
        _attempted(lambda: self._session.run_with_iobinding(self._binding, options), self._place)

    def result(self, name: str) -> Value:
        """What the last run gave for an output."""
        value = self._outputs[name]
        if value is None:
            value = Value(self._binding.get_outputs()[list(self._outputs).index(name)])
        return value


def _partial_run(ort: ModuleType) -> Any:
    options = ort.RunOptions()
    options.only_execute_path_to_fetches = True
    return options


def _attempted(run: Callable[[], Any], place: str) -> Any:
    try:
        return run()
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's errors have no base of their own
        raise run_error(str(error), place) from error


def version() -> str:
    """onnxruntime's version. Raises DependencyError without it."""
    return str(_onnxruntime().__version__)


def require_runtime(runtime: RyzenAI) -> None:
    """Raises DependencyError without onnxruntime, or without the runtime of Ryzen AI."""
    ryzen_ai.library_for(_onnxruntime(), runtime)


def open_model(model: bytes, place: str) -> Session:
    """A model in memory, on the CPU. Raises as `open_session` does."""
    ort = _onnxruntime()
    return _opened(ort, model, place, _options(ort, Settings()), Settings())


def open_session(
    path: Path,
    place: str,
    settings: Settings | None = None,
    library: Path | None = None,
    *,
    reuse: bool = True,
    runtime: RyzenAI | None = None,
) -> Session:
    """The graph at `path`, optimised as onnxruntime does by default.

    place:   what errors call the graph.
    library: custom operators to load. That runs its code: the caller has checked it.
    reuse:   whether memory that is free again may be planned for another tensor.
    runtime: what the pack says to the Ryzen AI runtime, where that is to run it.
    No other settings of the pack are obeyed.
    Raises DependencyError without onnxruntime or that runtime, GraphError where the graph
    is refused.
    """
    ort = _onnxruntime()
    settings = settings or Settings()
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise GraphError(
            "the path is not Unicode, and onnxruntime opens no other",
            place=str(path),
            fix="Rename the folder, or name the pack by a link.",
        ) from error
    options = _options(ort, settings)
    options.enable_mem_reuse = reuse
    return _opened(ort, str(path), place, options, settings, library=library, runtime=runtime)


def _options(ort: ModuleType, settings: Settings) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # its errors come as exceptions; they need no second line
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    if settings.threads is not None:
        options.intra_op_num_threads = settings.threads
    return options


def _opened(
    ort: ModuleType,
    model: str | bytes,
    place: str,
    options: Any,
    settings: Settings,
    *,
    library: Path | None = None,
    runtime: RyzenAI | None = None,
) -> Session:
    wanted = ryzen_ai.PROVIDER if runtime is not None else settings.provider or PROVIDER
    try:
        if library is not None:
            options.register_custom_ops_library(str(library))
        if runtime is not None:
            ryzen_ai.join(ort, options, runtime, Path(str(model)).parent.resolve())
        # Providers that the options have must not be named again.
        providers = [wanted] if runtime is None else None
        session = ort.InferenceSession(model, options, providers=providers)
    except (MemoryError, PackimportError):
        raise
    except Exception as error:  # onnxruntime's errors have no base of their own
        where = "the CPU" if wanted == PROVIDER else wanted
        raise load_error(str(error), place, ort.__version__, where) from error
    found = session.get_providers()[0]
    if found != wanted:
        raise GraphError(
            f"onnxruntime {ort.__version__} can't start {wanted} here and would run"
            " on another provider",
            place=place,
            found=found,
            fix="Look at the device and its driver, or pass --ep cpu.",
        )
    return Session(ort, session, place)


def find_provider(name: str) -> str:
    """onnxruntime's name of a provider that a user calls "cpu", "cuda", "dml" and so on.

    Raises UsageError where this onnxruntime has none of that name.
    """
    if name.lower() == ryzen_ai.NAME.lower():
        return ryzen_ai.PROVIDER  # a plug-in: onnxruntime lists it when it is registered
    if name.lower() == _short_name(PROVIDER):
        return PROVIDER
    available = _onnxruntime().get_available_providers()
    for provider in available:
        if name.lower() in (provider.lower(), _short_name(provider)):
            return str(provider)
    raise UsageError(
        "this onnxruntime has no such execution provider",
        place="--ep",
        found=name,
        allowed=", ".join(map(_short_name, available)),
        fix="Other providers come with other builds of onnxruntime.",
    )


def _short_name(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(
            "running a pack needs onnxruntime, which is not installed",
            fix="Install it: pip install onnxruntime. Or use the environment that brings its own.",
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
