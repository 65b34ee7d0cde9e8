"""Protos: the shape of onnx's messages, as far as the graph layer reads them.

Structural types and the numbers of onnx/onnx.proto (IR version 13), so that the
parsed messages can be named outside the one module that imports onnx.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

# AttributeProto.AttributeType and TensorProto.DataLocation.
FLOAT, INT, STRING, TENSOR, FLOATS, INTS = 1, 2, 3, 4, 6, 7
EXTERNAL = 1

# TensorProto.DataType; float and double by the names that numpy has for them.
DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
}


class EntryProto(Protocol):
    """A key and its value: external_data."""

    key: str
    value: str


class TensorProto(Protocol):
    """A constant tensor."""

    name: str
    data_type: int
    data_location: int
    dims: Sequence[int]
    external_data: Sequence[EntryProto]


class SparseTensorProto(Protocol):
    """A constant tensor that stores its non-zero values; these bear its name."""

    values: TensorProto


class AttributeProto(Protocol):
    """An attribute: `type` says which of the others counts."""

    name: str
    type: int
    ref_attr_name: str
    f: float
    i: int
    s: bytes
    t: TensorProto
    floats: Sequence[float]
    ints: Sequence[int]
    g: BodyProto
    graphs: Sequence[BodyProto]

    def HasField(self, name: str) -> bool: ...  # noqa: D102 - protobuf's own


class NodeProto(Protocol):
    """A node of a graph or function."""

    name: str
    op_type: str
    domain: str
    input: Sequence[str]
    output: Sequence[str]
    attribute: Sequence[AttributeProto]


class ValueInfoProto(Protocol):
    """A value that goes into a graph or comes out of it."""

    name: str


class BodyProto(Protocol):
    """A graph."""

    node: Sequence[NodeProto]
    input: Sequence[ValueInfoProto]
    output: Sequence[ValueInfoProto]
    initializer: Sequence[TensorProto]
    sparse_initializer: Sequence[SparseTensorProto]


class FunctionProto(Protocol):
    """A local function: its inputs and outputs are bare names."""

    name: str
    domain: str
    node: Sequence[NodeProto]
    input: Sequence[str]
    output: Sequence[str]
    attribute: Sequence[str]
    attribute_proto: Sequence[AttributeProto]
