"""Census: how many records a protobuf would be parsed into, counted before it is.

The parser takes up to 200 bytes for a message that is 2 bytes long in the file
(onnx 1.23: AttributeProto), so that a few megabytes could ask for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from packimport.errors import GraphError
from packimport.graph.wire import MAX_DEPTH, Wire

# A smaller file is not counted: it can't take more than 400 MB.
UNCOUNTED = 4 * 2**20
# A graph of 100 000 nodes has about 1 500 000. Wire stops at as many in one walk.
MAX_RECORDS = 2_000_000
_CHUNK = 2**22


class Type(Protocol):
    """What protobuf's descriptor of a message type says."""

    @property
    def full_name(self) -> str:
        """Its name, with the package."""

    @property
    def fields_by_number(self) -> Mapping[int, Field]:
        """Its fields."""


class Field(Protocol):
    """What protobuf's descriptor of a field says."""

    @property
    def message_type(self) -> Type | None:
        """The type of the messages in it; None where it holds none."""


def refuse_dense(data: memoryview, model: Type, name: str) -> None:
    """Raise GraphError where the file holds more records than any graph would.

    model: the descriptor of the outermost message. name: the file's, for errors.
    """
    if len(data) <= UNCOUNTED or _most(data) <= MAX_RECORDS:
        return
    wire, known = Wire(data, name), _known(model)
    count = 0
    # One iterator per level: the records of a level are too many to be kept.
    levels = [(wire.fields(0, len(data)), known[model.full_name])]
    while levels:
        fields, children = levels[-1]
        for tag, _, start, stop in fields:
            count += 1
            child = children.get(tag >> 3) if tag & 7 == 2 else None
            # The parser itself refuses what is nested deeper.
            if child is not None and stop > start and len(levels) <= MAX_DEPTH:
                levels.append((wire.fields(start, stop), known[child]))
                break
        else:
            levels.pop()
        if count > MAX_RECORDS:
            raise GraphError(
                "more records than any graph has",
                place=name,
                found=f"more than {MAX_RECORDS}",
                allowed=f"{MAX_RECORDS}",
                fix="Get the file again, from somebody you trust.",
            )


def _most(data: memoryview) -> int:
    """How many messages and texts a file holds at most: each has a byte of its own that says so.

    The lowest three bits of a field's tag are its wire type, 2 for both. To count such bytes,
    wherever they stand, takes a hundredth of a walk through the fields.
    """
    count = 0
    for start in range(0, len(data), _CHUNK):
        types = np.frombuffer(data[start : start + _CHUNK], np.uint8) & 7
        count += int(np.count_nonzero(types == 2))
    return count


def _known(model: Type) -> Mapping[str, Mapping[int, str]]:
    """For each type within `model`: its fields that hold messages, and their types."""
    found: dict[str, dict[int, str]] = {}
    waiting = [model]
    while waiting:
        kind = waiting.pop()
        if kind.full_name not in found:
            children = dict(_children(kind))
            found[kind.full_name] = {n: child.full_name for n, child in children.items()}
            waiting.extend(children.values())
    return found


def _children(kind: Type) -> Iterator[tuple[int, Type]]:
    for number, field in kind.fields_by_number.items():
        if field.message_type is not None:
            yield number, field.message_type
