"""OnnxFile: the one door to onnx. A graph is parsed without its weights.

    file = OnnxFile(container, "model.onnx")
    list(file.main.nodes("com.microsoft", "GroupQueryAttention"))
    file.main.producer("cos_cache")     # the Node that makes a value, or None
    file.bodies()                       # functions and nested graphs too

External data is never opened here, and large inline values are never in memory.

Messages for a changed graph are made here too, as bytes: `node_message`, `tensor_message`
and their kin; `changes/splices.py` puts them into the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from google.protobuf.message import (  # type: ignore[import-untyped]  # ships no types
    DecodeError,
    Message,
)
from numpy.typing import NDArray
from onnx import numpy_helper

from packimport.errors import GraphError
from packimport.graph.body import Body
from packimport.graph.census import refuse_dense
from packimport.graph.node import STANDARD, Node, Tensor, check_text
from packimport.graph.protos import DTYPES, TensorProto
from packimport.graph.wire import Path as WirePath
from packimport.graph.wire import Payload, Wire
from packimport.pack.container import Container
from packimport.pack.file_view import FileView

_GRAPH, _FUNCTION = 7, 25
# Bytes of a constant that is read to be computed with: frequencies, shapes, lengths.
MAX_INLINE = 2**20
_VALUES = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_NUMBERS = {name: number for number, name in DTYPES.items()}


class OnnxFile:
    """One parsed ONNX file.

    name:      relative to the container.
    producer:  what made it, as the file states it, with its version.
    opsets:    domain ─▶ version. ir_version: of the format.
    view:      its bytes. wire: the messages in them.
    input_ranks: of the main graph's inputs, of those that state one.
    main:      the main graph.
    functions: the bodies of local functions; `defined` has their (domain, name), and
               `callable` those that are the same at each call.

    Raises GraphError where the file is no ONNX graph, or damaged.
    """

    def __init__(self, container: Container, name: str) -> None:
        self.container = container
        self.name = name
        self.view = FileView(container, name)
        self.wire = Wire(self.view, name)
        slim = self.wire.slim()
        refuse_dense(memoryview(slim), onnx.ModelProto.DESCRIPTOR, name)
        try:
            model = onnx.ModelProto.FromString(slim)
        except DecodeError as error:
            raise _damaged(name, str(error)) from error
        if not model.HasField("graph"):
            raise _damaged(name, "no graph in it")
        functions = [text for f in model.functions for text in (f.domain, f.name)]
        check_text((model.producer_name, model.producer_version, *functions), name)
        self.producer = f"{model.producer_name} {model.producer_version}".strip()
        self.ir_version = int(model.ir_version)
        self._graph = model.graph
        self._shapes: dict[str, onnx.ValueInfoProto] | None = None
        # The ranks of the main graph's inputs, of those that state one.
        self.input_ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in model.graph.input
            if value.type.tensor_type.HasField("shape")
        }
        self.opsets = {opset.domain: opset.version for opset in model.opset_import}
        self.main = Body.of_graph(name, "", ((_GRAPH, 0),), model.graph)
        self.functions = tuple(
            Body.of_function(name, ((_FUNCTION, index),), function)
            for index, function in enumerate(model.functions)
        )
        names = [
            (STANDARD if function.domain == "ai.onnx" else function.domain, function.name)
            for function in model.functions
        ]
        self.defined = frozenset(names)
        # A function with attributes of its own is another one at each call.
        self.callable: Mapping[tuple[str, str], Body] = {
            name: body
            for name, body, function in zip(names, self.functions, model.functions, strict=True)
            if not (function.attribute or function.attribute_proto)
        }

    def bodies(self) -> Iterator[Body]:
        """Every body of the file: the main graph, functions, and all that is nested in them."""
        waiting = [*reversed(self.functions), self.main]
        while waiting:
            body = waiting.pop()
            yield body
            waiting.extend(reversed(body.children))

    def stated_shape(self, name: str) -> tuple[int | None, ...] | None:
        """The dims that the main graph states for a value; None for one that it leaves open.

        None where it states no shape. Shapes are the exporter's word, and no runtime needs them.
        """
        if self._shapes is None:
            values = (*self._graph.value_info, *self._graph.output, *self._graph.input)
            self._shapes = {value.name: value for value in values}
        value = self._shapes.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)

    def value_messages(self, name: str, shape: Sequence[int]) -> dict[WirePath, bytes]:
        """Every record of the shape of a main graph's value, as it is with another shape.

        By place in the file. A graph may state the shapes of its constants, as inputs or
        among its values.
        """
        found: dict[WirePath, bytes] = {}
        fields = {11: self._graph.input, 12: self._graph.output, 13: self._graph.value_info}
        for number, values in fields.items():
            for index, value in enumerate(values):
                if value.name != name or not value.type.HasField("tensor_type"):
                    continue
                changed = onnx.ValueInfoProto.FromString(value.SerializeToString())
                changed.type.tensor_type.ClearField("shape")
                for size in shape:
                    changed.type.tensor_type.shape.dim.add().dim_value = size
                found[((_GRAPH, 0), (number, index))] = changed.SerializeToString()
        return found

    def payload(self, tensor: Tensor) -> Payload | None:
        """Where the inline values of a tensor lie in the file; None where it has none.

        Raises GraphError where the bytes there are not those of the tensor.
        """
        head, payload = self.wire.payload(tensor.path)
        seen, parsed = onnx.TensorProto.FromString(head), tensor.proto
        if (seen.name, seen.data_type, [*seen.dims]) != (
            parsed.name,
            parsed.data_type,
            [*parsed.dims],
        ):
            raise _damaged(self.name, f"tensor {tensor.name} is stored in parts")
        return payload

    def small_array(self, tensor: Tensor) -> NDArray[np.generic] | None:
        """The inline values of a tensor; None where it has none, or more than `MAX_INLINE`."""
        held = [name for name in _VALUES if len(getattr(tensor.proto, name))]
        if len(held) == 1:
            # A small tensor was parsed with its values.
            return _array(self.name, tensor, tensor.proto)
        head, payload = self.wire.payload(tensor.path)
        if payload is None or payload.stop - payload.start > MAX_INLINE:
            return None
        whole = onnx.TensorProto.FromString(head + self.wire.field(payload))
        return _array(self.name, tensor, whole)


def node_message(
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str,
    *,
    domain: str = STANDARD,
    integers: Mapping[str, int | Sequence[int]] | None = None,
    graphs: Mapping[str, bytes] | None = None,
) -> bytes:
    """A node; graphs: bodies by the attribute that holds them."""
    # An empty domain would be written out.
    node = onnx.helper.make_node(
        op, inputs, outputs, name, domain=domain or None, **(integers or {})
    )
    for key, graph in (graphs or {}).items():
        body = onnx.GraphProto.FromString(graph)
        node.attribute.append(onnx.helper.make_attribute(key, body))
    return _bytes(node)


def changed_node(node: Node, inputs: Sequence[str], integers: Mapping[str, int]) -> bytes:
    """A node with other inputs, and with some integer attributes set."""
    changed = onnx.NodeProto.FromString(_bytes(node.proto))
    changed.input[:] = inputs
    for key, value in integers.items():
        for attribute in [a for a in changed.attribute if a.name == key]:
            changed.attribute.remove(attribute)
        changed.attribute.append(onnx.helper.make_attribute(key, value))
    return _bytes(changed)


def copied_node(node: Node, inputs: Sequence[str], output: str, name: str) -> bytes:
    """A node like another one, with its attributes, under a name of its own."""
    copied = onnx.NodeProto.FromString(_bytes(node.proto))
    copied.input[:] = inputs
    copied.output[:] = [output]
    copied.name = name
    return _bytes(copied)


def tensor_message(
    name: str,
    dtype: str,
    shape: Sequence[int],
    values: bytes | None = None,
    external: Mapping[str, str] | None = None,
) -> bytes:
    """A constant with its values inline, or the place of them in a data file."""
    tensor = onnx.TensorProto(name=name, data_type=_NUMBERS[dtype], dims=shape)
    if values is not None:
        tensor.raw_data = values
    if external is not None:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in external.items():
            tensor.external_data.add(key=key, value=value)
    return _bytes(tensor)


def body_message(name: str, nodes: Sequence[bytes], outputs: Sequence[str], dtype: str) -> bytes:
    """A graph without inputs whose outputs are matrices of one dtype."""
    types = [
        onnx.helper.make_tensor_value_info(output, _NUMBERS[dtype], [None, None])
        for output in outputs
    ]
    made = [onnx.NodeProto.FromString(node) for node in nodes]
    return _bytes(onnx.helper.make_graph(made, name, [], types))


def model_message(
    nodes: Sequence[bytes],
    inputs: Mapping[str, tuple[str, Sequence[int]]],
    outputs: Mapping[str, str],
    opsets: Mapping[str, int],
) -> bytes:
    """A whole model; inputs: name ─▶ dtype and shape, outputs: name ─▶ dtype."""
    graph = onnx.helper.make_graph(
        [onnx.NodeProto.FromString(node) for node in nodes],
        "packimport",
        [
            onnx.helper.make_tensor_value_info(name, _NUMBERS[dtype], shape)
            for name, (dtype, shape) in inputs.items()
        ],
        [
            onnx.helper.make_tensor_value_info(name, _NUMBERS[dtype], None)
            for name, dtype in outputs.items()
        ],
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    # The oldest format that has these operators: an older onnxruntime reads it, too.
    version = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return _bytes(onnx.helper.make_model(graph, opset_imports=imports, ir_version=version))


def check(path: Path) -> list[str]:
    """What onnx's checker has against a file, without its path; empty where nothing."""
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, DecodeError) as error:
        return [str(error).replace(str(path), path.name)]
    return []


def _bytes(message: object) -> bytes:
    assert isinstance(message, Message)
    return bytes(message.SerializeToString())


def _array(file: str, tensor: Tensor, proto: TensorProto) -> NDArray[np.generic]:
    try:
        return np.asarray(numpy_helper.to_array(cast(onnx.TensorProto, proto)))
    except (TypeError, ValueError) as error:
        raise _damaged(file, f"tensor {tensor.name}: {error}") from error


def _damaged(name: str, found: str) -> GraphError:
    return GraphError(
        "no ONNX file, or a damaged one", place=name, found=found, fix="Get the file again."
    )
