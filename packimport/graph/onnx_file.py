"""OnnxFile: the one door to onnx. A graph is parsed without its weights.

    file = OnnxFile(container, "model.onnx")
    list(file.main.nodes("com.microsoft", "GroupQueryAttention"))
    file.main.producer("cos_cache")     # the Node that makes a value, or None
    file.bodies()                       # functions and nested graphs too

External data is never opened here, and large inline values are never in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types

from packimport.errors import GraphError
from packimport.graph.body import Body
from packimport.graph.node import STANDARD, Tensor, check_text
from packimport.graph.wire import Payload, Wire
from packimport.pack.container import Container

_GRAPH, _FUNCTION = 7, 25


class OnnxFile:
    """One parsed ONNX file.

    name:      relative to the container.
    producer:  what made it, as the file states it, with its version.
    opsets:    domain ─▶ version.
    main:      the main graph.
    functions: the bodies of local functions; `defined` has their (domain, name).

    Raises GraphError where the file is no ONNX graph, or damaged.
    """

    def __init__(self, container: Container, name: str) -> None:
        self.container = container
        self.name = name
        self._wire = Wire(container.map(name, 0, container.size(name)), name)
        try:
            model = onnx.ModelProto.FromString(self._wire.slim())
        except DecodeError as error:
            raise _damaged(name, str(error)) from error
        if not model.HasField("graph"):
            raise _damaged(name, "no graph in it")
        functions = [text for f in model.functions for text in (f.domain, f.name)]
        check_text((model.producer_name, model.producer_version, *functions), name)
        self.producer = f"{model.producer_name} {model.producer_version}".strip()
        self.opsets = {opset.domain: opset.version for opset in model.opset_import}
        self.main = Body.of_graph(name, "", ((_GRAPH, 0),), model.graph)
        self.functions = tuple(
            Body.of_function(name, ((_FUNCTION, index),), function)
            for index, function in enumerate(model.functions)
        )
        self.defined = frozenset(
            (STANDARD if function.domain == "ai.onnx" else function.domain, function.name)
            for function in model.functions
        )

    def bodies(self) -> Iterator[Body]:
        """Every body of the file: the main graph, functions, and all that is nested in them."""
        waiting = [*reversed(self.functions), self.main]
        while waiting:
            body = waiting.pop()
            yield body
            waiting.extend(reversed(body.children))

    def payload(self, tensor: Tensor) -> Payload | None:
        """Where the inline values of a tensor lie in the file; None where it has none.

        Raises GraphError where the bytes there are not those of the tensor.
        """
        head, payload = self._wire.payload(tensor.path)
        seen, parsed = onnx.TensorProto.FromString(head), tensor.proto
        if (seen.name, seen.data_type, [*seen.dims]) != (
            parsed.name,
            parsed.data_type,
            [*parsed.dims],
        ):
            raise _damaged(self.name, f"tensor {tensor.name} is stored in parts")
        return payload


def check(path: Path) -> list[str]:
    """What onnx's checker has against a file, without its path; empty where nothing."""
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, DecodeError) as error:
        return [str(error).replace(str(path), path.name)]
    return []


def _damaged(name: str, found: str) -> GraphError:
    return GraphError(
        "no ONNX file, or a damaged one", place=name, found=found, fix="Get the file again."
    )
