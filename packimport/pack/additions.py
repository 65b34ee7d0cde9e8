"""What changes the size of a file: Addition, a span appended to it; Replacement, all of it new."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from packimport.errors import ContainerError
from packimport.pack.edits import Edit
from packimport.pack.file_view import Stretch

# A stretch of the old file is read when it is written, so that the new one is never in
# memory whole.
Piece = bytes | Stretch


def data_of(piece: Piece) -> bytes | memoryview:
    """The bytes of a piece."""
    return piece if isinstance(piece, bytes) else piece.read()


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """New bytes behind the end of a file; every byte before them stays where it is.

    file:     relative to the container, with `/`.
    old_size: of the file when the addition was made; a writer refuses another size.
    offset:   where the bytes go: at `old_size`, behind it (zeros fill the gap), or
              behind another addition.
    reason:   what the bytes are, for the manifest and a person.
    """

    file: str
    old_size: int
    offset: int
    new: bytes = field(repr=False)
    reason: str

    @property
    def end(self) -> int:
        """The offset after the last byte added."""
        return self.offset + len(self.new)

    @property
    def new_sha256(self) -> str:
        """sha256 of the new bytes."""
        return hashlib.sha256(self.new).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """A whole file, made anew.

    old_size, old_sha256: of the file when the replacement was made; a writer refuses
                to replace another.
    pieces:     the new file, in order: new bytes, and stretches of the old file.
    reason:     what is changed, for the manifest and a person.
    """

    file: str
    old_size: int
    old_sha256: str
    pieces: tuple[Piece, ...] = field(repr=False)
    reason: str

    @property
    def size(self) -> int:
        """Bytes of the new file."""
        return sum(map(len, self.pieces))


Change = Edit | Addition | Replacement
_Kind = TypeVar("_Kind", Edit, Addition, Replacement)


def of_kind(changes: Iterable[Change], kind: type[_Kind]) -> list[_Kind]:
    """The changes of one kind, in their order."""
    return [change for change in changes if isinstance(change, kind)]


def additions_by_file(
    additions: Iterable[Addition], sizes: Mapping[str, int]
) -> dict[str, tuple[Addition, ...]]:
    """The additions of each file, in the order of their offsets.

    sizes: bytes of every file that may grow. Raises ContainerError for another file,
    another size, and for additions that overlap or are empty.
    """
    groups: dict[str, tuple[Addition, ...]] = {}
    for addition in sorted(additions, key=lambda addition: (addition.file, addition.offset)):
        before = groups.get(addition.file, ())
        end = before[-1].end if before else addition.old_size
        _refuse_size(addition, sizes)
        if addition.offset < end or not addition.new:
            raise ContainerError(
                "an addition is empty or not behind the end of the file",
                place=addition.file,
                found=f"{len(addition.new)} bytes at offset {addition.offset}",
                allowed=f"offsets from {end}",
            )
        groups[addition.file] = (*before, addition)
    return groups


def replacements_by_file(
    replacements: Iterable[Replacement], sizes: Mapping[str, int], changed: Iterable[str]
) -> dict[str, Replacement]:
    """The replacement of each file.

    changed: files that are edited or grow, which a replacement may not be of.
    Raises ContainerError where a file is missing, of another size, or changed twice.
    """
    groups: dict[str, Replacement] = {}
    taken = set(changed)
    for replacement in replacements:
        _refuse_size(replacement, sizes)
        if replacement.file in taken:
            raise ContainerError("a file is changed in two ways", place=replacement.file)
        taken.add(replacement.file)
        groups[replacement.file] = replacement
    return groups


def _refuse_size(change: Addition | Replacement, sizes: Mapping[str, int]) -> None:
    if sizes.get(change.file) != change.old_size:
        raise ContainerError(
            "a change of a file that the pack lacks, or that has another size",
            place=change.file,
            found=f"{sizes.get(change.file)} bytes",
            allowed=f"{change.old_size} bytes",
            fix="The file changed: check the pack again.",
        )
