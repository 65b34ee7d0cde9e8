"""Splices: messages of an ONNX file replaced, added and removed, every other byte kept.

A message is named by its path (`wire.Path`), which counts the messages of the old
file. The weights in the file are neither read nor copied: the new file is a list of
pieces, most of them stretches of the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from packimport.graph.wire import MAX_DEPTH, Path, Wire, varint_bytes
from packimport.pack.additions import Piece
from packimport.pack.digests import CHUNK
from packimport.pack.file_view import FileView, Stretch

# A span of the old file, or new bytes.
_Part = tuple[int, int] | bytes


@dataclass(slots=True)
class Splices:
    """What is to change in one file.

    replaced: message ─▶ its new bytes, None to remove it.
    inserted: (parent, field number) ─▶ index ─▶ messages to stand before the one of
              that index, or behind the last where there is none.
    written:  offset in the old file ─▶ bytes to stand there in place of as many.
    """

    replaced: dict[Path, bytes | None] = field(default_factory=dict)
    inserted: dict[tuple[Path, int], dict[int, list[bytes]]] = field(default_factory=dict)
    written: dict[int, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.replaced or self.inserted or self.written)

    def applied(self, wire: Wire, data: FileView) -> tuple[Piece, ...]:
        """The new file, in pieces. data: the old file, whole, as `wire` reads it."""
        parents = {path[:depth] for path in self._places() for depth in range(len(path))}
        parts = _merged(_Emission(self, wire, parents).parts((), 0, len(data)))
        return tuple(self._pieces(data, parts))

    def _places(self) -> Iterator[Path]:
        yield from self.replaced
        for (parent, number), _ in self.inserted.items():
            yield (*parent, (number, 0))

    def _pieces(self, data: FileView, parts: list[_Part]) -> Iterator[Piece]:
        waiting = sorted(self.written.items())
        for part in parts:
            if isinstance(part, bytes):
                yield part
                continue
            at, stop = part
            while waiting and waiting[0][0] < stop:
                offset, new = waiting.pop(0)
                assert at <= offset
                assert offset + len(new) <= stop
                yield from _stretches(data, at, offset)
                yield new
                at = offset + len(new)
            yield from _stretches(data, at, stop)
        assert not waiting  # bytes to write lie in a message that was replaced


def _stretches(data: FileView, start: int, stop: int) -> Iterator[Stretch]:
    """A span of the old file, in pieces that are small enough to be read at once."""
    for at in range(start, stop, CHUNK):
        yield Stretch(data, at, min(at + CHUNK, stop))


@dataclass(frozen=True, slots=True)
class _Emission:
    splices: Splices
    wire: Wire
    parents: set[Path]

    def parts(self, path: Path, start: int, stop: int) -> list[_Part]:
        """The new content of the message at `path`, which lies at start .. stop."""
        assert len(path) <= MAX_DEPTH
        parts: list[_Part] = []
        counts: dict[int, int] = {}
        inserted = {
            number: dict(before)
            for (parent, number), before in self.splices.inserted.items()
            if parent == path
        }
        for tag, key, begin, end in self.wire.fields(start, stop):
            number = tag >> 3
            index = counts.get(number, 0)
            counts[number] = index + 1
            for message in inserted.get(number, {}).pop(index, []):
                parts.append(_framed(tag, message))
            child = (*path, (number, index))
            if child in self.splices.replaced:
                new = self.splices.replaced[child]
                if new is not None:
                    parts.append(_framed(tag, new))
            elif child in self.parents:
                inner = self.parts(child, begin, end)
                size = sum(len(p) if isinstance(p, bytes) else p[1] - p[0] for p in inner)
                parts += [varint_bytes(tag) + varint_bytes(size), *inner]
            else:
                parts.append((key, end))
        for number, before in inserted.items():
            for _, messages in sorted(before.items()):
                parts += [_framed(number << 3 | 2, message) for message in messages]
        return parts


def _framed(tag: int, message: bytes) -> bytes:
    return varint_bytes(tag) + varint_bytes(len(message)) + message


def _merged(parts: list[_Part]) -> list[_Part]:
    """The parts, neighbours in the old file joined."""
    merged: list[_Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, tuple) and isinstance(last, tuple) and last[1] == part[0]:
            merged[-1] = (last[0], part[1])
        else:
            merged.append(part)
    return merged
