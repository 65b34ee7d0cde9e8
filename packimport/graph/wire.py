"""Wire: the protobuf bytes of an ONNX file, walked without reading the weights in them.

Two services: `slim`, the file without the payloads of its tensors, small enough
to parse; and `payload`, the byte span of one tensor's payload in the file.

Field numbers: onnx/onnx.proto of IR version 13. The wire format:
https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from packimport.errors import GraphError

# A message up to this size is kept as it is: looking inside costs more than its bytes.
SMALL = 1024
# Limits that bound time and memory for a file made to exhaust them. A graph of 100 000
# nodes has 100 000 fields to be walked and 50 MB besides its payloads. Protobuf's own parser stops
# at 100 nested messages.
MAX_FILE = 2**31 - 1
MAX_FIELDS = 2_000_000
MAX_SLIM = 512 * 2**20
MAX_DEPTH = 100
# What is read at once to look at fields, and how far a field's tag and length reach.
WINDOW = 64 * 2**10
_HEAD = 20

# Steps from the model down: (field number, index among the fields of that number).
Path = tuple[tuple[int, int], ...]
Piece = memoryview | bytes


class Data(Protocol):
    """The bytes of a file, in memory or read when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> memoryview:
        """The bytes start .. stop."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A message type: which fields are messages to enter, and which are dropped when large."""

    children: dict[int, Kind] = field(default_factory=dict)
    bulk: frozenset[int] = frozenset()


GRAPH, FUNCTION, NODE, ATTRIBUTE, SPARSE = (Kind() for _ in range(5))
# training_info (20) never runs at inference, and may hold graphs and tensors.
MODEL = Kind({7: GRAPH, 25: FUNCTION}, frozenset({20}))
# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data.
TENSOR = Kind(bulk=frozenset({4, 5, 6, 7, 9, 10, 11}))
GRAPH.children.update({1: NODE, 5: TENSOR, 15: SPARSE})
FUNCTION.children.update({7: NODE})
NODE.children.update({5: ATTRIBUTE})
ATTRIBUTE.children.update({5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH, 22: SPARSE, 23: SPARSE})
SPARSE.children.update({1: TENSOR, 2: TENSOR})
FLOAT_DATA = 4
RAW_DATA = 9


@dataclass(frozen=True, slots=True)
class Payload:
    """Where a tensor's values lie in the file: bytes start .. stop of the field `number`."""

    number: int
    start: int
    stop: int


class Wire:
    """The bytes of one ONNX file.

    data: the whole file. name: the file's, for errors.
    Raises GraphError where the bytes are no protobuf, or beyond the limits above.
    """

    def __init__(self, data: Data, name: str) -> None:
        if not 0 < len(data) <= MAX_FILE:
            raise GraphError(
                "no ONNX file has this size",
                place=name,
                found=f"{len(data)} bytes",
                allowed=f"1 to {MAX_FILE} bytes",
            )
        self._data = data
        self._name = name
        self._fields_left = MAX_FIELDS
        self._slim_left = MAX_SLIM
        self._window = (0, data[0:WINDOW])
        self._children: dict[tuple[int, int], tuple[array[int], array[int]]] = {}

    def slim(self) -> Piece:
        """The file without the large payloads of its tensors; every other byte is there."""
        pieces = self._slim(MODEL, 0, len(self._data), 0)
        return self._kept(0, len(self._data)) if pieces is None else b"".join(pieces)

    def payload(self, path: Path) -> tuple[bytes, Payload | None]:
        """The tensor at `path`: the message without its values, and where those lie.

        None where it holds no values. Raises GraphError where it holds them twice.
        """
        start, stop = self._locate(path)
        kept, found = [], []
        for tag, key, begin, end in self.fields(start, stop):
            if tag >> 3 in TENSOR.bulk:
                if tag & 7 != 2:
                    raise self._error("values of a tensor that are not packed", key)
                found.append(Payload(tag >> 3, begin, end))
            else:
                kept.append(self._data[key:end])
        if len(found) > 1:
            raise self._error("a tensor that holds its values twice", found[1].start)
        return b"".join(kept), found[0] if found else None

    def field(self, payload: Payload) -> bytes:
        """The field of a payload as protobuf stores it: tag, length and bytes."""
        head = varint_bytes(payload.number << 3 | 2) + varint_bytes(payload.stop - payload.start)
        return head + bytes(self._data[payload.start : payload.stop])

    def _slim(self, kind: Kind, start: int, stop: int, depth: int) -> list[Piece] | None:
        # None: nothing was dropped, so the enclosing message keeps these bytes in one run.
        if depth > MAX_DEPTH:
            raise self._error("messages nested too deep", start)
        pieces: list[Piece] = []
        kept = start
        for tag, key, begin, end in self.fields(start, stop, above=SMALL):
            if tag & 7 != 2:
                continue
            number = tag >> 3
            if number in kind.bulk:
                pieces.append(self._kept(kept, key))
                kept = end
            elif number in kind.children:
                inner = self._slim(kind.children[number], begin, end, depth + 1)
                if inner is not None:
                    head = varint_bytes(tag) + varint_bytes(sum(map(len, inner)))
                    pieces += [self._kept(kept, key), head, *inner]
                    kept = end
        if kept == start:
            return None
        pieces.append(self._kept(kept, stop))
        return pieces

    def _kept(self, start: int, stop: int) -> memoryview:
        self._slim_left -= stop - start
        if self._slim_left < 0:
            raise self._error(f"more than {MAX_SLIM} bytes besides the values of its tensors", 0)
        return self._data[start:stop]

    def _locate(self, path: Path) -> tuple[int, int]:
        start, stop = 0, len(self._data)
        for number, index in path:
            starts, stops = self._messages(start, stop, number)
            if index >= len(starts):
                raise self._error("a message that is not where the parser saw it", start)
            start, stop = starts[index], stops[index]
        return start, stop

    def _messages(self, start: int, stop: int, number: int) -> tuple[array[int], array[int]]:
        # The spans are kept: a graph of many layers asks for a tensor in each.
        known = self._children.get((start, number))
        if known is None:
            known = (array("Q"), array("Q"))
            for tag, _, begin, end in self.fields(start, stop):
                if tag == number << 3 | 2:
                    known[0].append(begin)
                    known[1].append(end)
            self._children[start, number] = known
        return known

    def fields(
        self, start: int, stop: int, *, above: int = -1
    ) -> Iterator[tuple[int, int, int, int]]:
        """(tag, where the tag starts, where the value starts, where it ends) of each field.

        above: fields of no more bytes than these are checked, and not handed out.
        """
        base, data = self._window
        end, count, at = base + len(data), 0, start
        while at < stop:
            if at < base or at + _HEAD > end < len(self._data):
                base, data = self._moved_window(at)
                end = base + len(data)
            key = at
            tag = data[at - base]
            at += 1
            if tag > 0x7F:
                tag, at = self._varint(data, base, key, stop)
            wire = tag & 7
            if wire == 2:
                # The test in place of a call: most fields are short.
                if at < stop and (size := data[at - base]) < 0x80:
                    begin = at + 1
                else:
                    size, begin = self._varint(data, base, at, stop)
                at = begin + size
            elif wire == 0:
                begin, at = at, self._varint(data, base, at, stop)[1]
            elif wire in {1, 5}:
                begin, at = at, at + (8 if wire == 1 else 4)
            else:
                raise self._error("a group, or no wire type", key)
            count += 1
            if at > stop or tag < 8 or tag > 0xFFFFFFFF or count > self._fields_left:
                raise self._error("a field that runs past its message, or too many fields", key)
            if at - begin > above:
                yield tag, key, begin, at
        self._fields_left -= count

    def _moved_window(self, start: int) -> tuple[int, memoryview]:
        # Callers keep the window that they have: one inside the other may move it.
        self._window = start, self._data[start : start + WINDOW]
        return self._window

    def _varint(self, data: memoryview, base: int, at: int, stop: int) -> tuple[int, int]:
        value, shift, start = 0, 0, at
        while at < stop and shift < 70:
            byte = data[at - base]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise self._error("a number that does not end", start)

    def _error(self, what: str, at: int) -> GraphError:
        return GraphError(
            "no ONNX file, or a damaged one",
            place=self._name,
            found=f"{what}, at byte {at}",
            fix="Get the file again.",
        )


def varint_bytes(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
