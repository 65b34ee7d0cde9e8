"""Node and Tensor: what a body of a graph is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from packimport.errors import GraphError
from packimport.graph.protos import (
    DTYPES,
    EXTERNAL,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    STRING,
    TENSOR,
    AttributeProto,
    NodeProto,
    TensorProto,
)
from packimport.graph.wire import Path

STANDARD = ""
MICROSOFT = "com.microsoft"
_ATTRIBUTE_FIELD, _TENSOR_FIELD = 5, 5


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A constant of a graph: an initializer, or the value of a Constant node.

    name:     of the initializer, or of the Constant's output.
    dtype:    as numpy spells it; "data type N" for those it has no name for.
    external: key and value of its external data; None where the values are inline.
    path:     where the message lies in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    external: tuple[tuple[str, str], ...] | None
    path: Path = field(repr=False)
    proto: TensorProto = field(repr=False)


def make_tensor(proto: TensorProto, *, name: str, path: Path, file: str) -> Tensor:
    """The Tensor of a message. Raises GraphError where its dims or external data are odd."""
    shape = tuple(proto.dims[:])
    if shape and min(shape) < 0:
        raise GraphError("a tensor with a negative dim", place=f"{file}: {name}", found=shape)
    external = None
    if proto.data_location == EXTERNAL:
        external = tuple([(entry.key, entry.value) for entry in proto.external_data[:]])
        keys = {key for key, _ in external}
        check_text((*keys, *[value for _, value in external]), f"{file}: {name}")
        if len(keys) < len(external):
            raise GraphError(
                "a key of external data stands twice", place=f"{file}: {name}", found=external
            )
    dtype = DTYPES.get(proto.data_type, f"data type {proto.data_type}")
    return Tensor(name, dtype, shape, external, path, proto)


def check_text(texts: Iterable[str], place: str) -> None:
    """Raises GraphError for a name that is not UTF-8, which protobuf hands out as bytes."""
    if bytes in map(type, texts):
        raise GraphError("a name that is not UTF-8", place=place)


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
    """Where the nodes of a body are.

    file, where: the ONNX file, and the body in it ("" for the main graph).
    path:  where the message of the body lies in the file.
    field: the number of the field that holds its nodes.
    """

    file: str
    where: str
    path: Path
    field: int

    @property
    def place(self) -> str:
        """The file and the body, for errors."""
        return f"{self.file}: {self.where}" if self.where else self.file


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One node.

    index:  among the nodes of its body.
    op:     its type. domain: "" for ONNX's own.
    inputs: names; "" for one that is left out.

    A check makes thousands of these, so what it rarely asks for is read when asked.
    Raises GraphError for a name that is not UTF-8.
    """

    scope: Scope = field(repr=False)
    index: int
    op: str
    domain: str
    inputs: tuple[str, ...]
    proto: NodeProto = field(repr=False)

    @property
    def name(self) -> str:
        """The node's own name, often ""."""
        name = self.proto.name
        check_text((name,), f"{self.scope.place}: node {self.index}")
        return name

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names; "" for one that is left out."""
        outputs = tuple(self.proto.output)
        check_text(outputs, self.place)
        return outputs

    @property
    def path(self) -> Path:
        """Where the message lies in the file."""
        return (*self.scope.path, (self.scope.field, self.index))

    @property
    def label(self) -> str:
        """The node's name, or `op#index` where it has none, and the body it is in."""
        own = self.name or f"{self.op}#{self.index}"
        return f"{own} in {self.scope.where}" if self.scope.where else own

    @property
    def place(self) -> str:
        """The file and the label, for errors."""
        return f"{self.scope.file}: {self.label}"

    def input(self, index: int) -> str:
        """The name of an input; "" where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def integer(self, name: str, default: int) -> int:
        """An integer attribute. Raises GraphError where it has another type."""
        found = self._attribute(name)
        if found is None:
            return default
        if found[1].type != INT:
            raise GraphError(f"attribute {name} is no integer", place=self.place)
        return found[1].i

    def number(self, name: str) -> float | None:
        """A float attribute; None where it is left out. Raises GraphError for another type."""
        found = self._attribute(name)
        if found is not None and found[1].type != FLOAT:
            raise GraphError(f"attribute {name} is no float", place=self.place)
        return None if found is None else found[1].f

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """A list of floats; None where it is left out. Raises GraphError for another type."""
        found = self._attribute(name)
        if found is not None and found[1].type != FLOATS:
            raise GraphError(f"attribute {name} is no list of floats", place=self.place)
        return None if found is None else tuple(found[1].floats)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; None where it is left out. Raises GraphError for another type."""
        found = self._attribute(name)
        if found is not None and found[1].type != INTS:
            raise GraphError(f"attribute {name} is no list of integers", place=self.place)
        return None if found is None else tuple(found[1].ints)

    def text(self, name: str) -> str:
        """A text attribute; "" where it is left out. Raises GraphError for another type."""
        found = self._attribute(name)
        if found is not None and found[1].type != STRING:
            raise GraphError(f"attribute {name} is no text", place=self.place)
        return "" if found is None else found[1].s.decode(errors="replace")

    def has(self, name: str) -> bool:
        """Whether an attribute is there."""
        return self._attribute(name) is not None

    def tensor(self, name: str) -> Tensor | None:
        """A tensor attribute; None where there is none of this name and type."""
        found = self._attribute(name)
        if found is None or found[1].type != TENSOR:
            return None
        path = (*self.path, (_ATTRIBUTE_FIELD, found[0]), (_TENSOR_FIELD, 0))
        made = self.outputs[0] if self.outputs else self.label
        return make_tensor(found[1].t, name=made, path=path, file=self.scope.file)

    def _attribute(self, name: str) -> tuple[int, AttributeProto] | None:
        found = [(i, a) for i, a in enumerate(self.proto.attribute) if a.name == name]
        if len(found) > 1:
            raise GraphError(f"attribute {name} stands twice", place=self.place)
        if found and found[0][1].ref_attr_name:
            raise GraphError(
                f"attribute {name} is that of a function's call, which is not followed",
                place=self.place,
            )
        return found[0] if found else None
