"""Tar: the members of a tar, read as a stream: ustar, pax and GNU long names.

The standard library reads a header block. All else it would do for a member, such
as following links and growing sparse files, is not wanted here.
Format: POSIX.1-2017, pax, "pax Interchange Format".
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping

from packimport.pack.member import CHUNK, Member, damaged, unsupported

Read = Callable[[int], bytes]

BLOCK = 512
# Of the records and long names in front of a member.
MAX_RECORDS = 1 << 20
_DIGITS = 19
_LONG_NAME = b"L"
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_REFUSED = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a link",
    b"K": "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    b"M": "a part of several",
    b"V": "a volume label",
}
_CURES = {
    tarfile.LNKTYPE: "Make the archive with `tar --hard-dereference`.",
    tarfile.SYMTYPE: "Make the archive with `tar --dereference`.",
    tarfile.GNUTYPE_SPARSE: "Make the archive without `--sparse`.",
}


class _Blocks:
    """A stream, taken in exact amounts."""

    def __init__(self, read: Read, place: str) -> None:
        self._read = read
        self.place = place

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes; raises ContainerError where the stream ends before."""
        pieces = []
        while size:
            piece = self._read(min(size, CHUNK))
            if not piece:
                raise damaged(self.place, "the archive is cut short")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def padded(self, size: int) -> Iterator[bytes]:
        """`size` bytes by pieces; then the rest of the last block is skipped."""
        left = size
        while left:
            piece = self.take(min(left, CHUNK))
            left -= len(piece)
            yield piece
        self.take(-size % BLOCK)

    def refuse_rest(self) -> None:
        """Read to the end, which proves checksums; only zeros may stand there."""
        while piece := self._read(CHUNK):
            if piece.count(0) != len(piece):
                raise damaged(self.place, "bytes behind its end")


def tar_members(read: Read, place: str) -> Iterator[Member]:
    """The members of the tar that `read(size)` gives; `place` is its name in errors.

    Raises ContainerError for what is no tar, damaged or cut short, and for a
    member that is neither a file nor a folder.
    """
    blocks = _Blocks(read, place)
    records: dict[str, str] = {}
    left = MAX_RECORDS
    while (header := _header(blocks)) is not None:
        if header.type in {tarfile.XHDTYPE, tarfile.XGLTYPE, _LONG_NAME}:
            # Its own block counts: a flood of empty ones is one as well.
            left -= header.size + BLOCK
            if left < 0:
                raise damaged(place, f"more than {MAX_RECORDS} bytes in front of a member")
            data = b"".join(blocks.padded(header.size))
            if header.type == _LONG_NAME:
                records["path"] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type == tarfile.XHDTYPE:
                records.update(_records(data, place))
            elif refused := _records(data, place).keys() & {"path", "size", "linkpath"}:
                raise damaged(place, f"a {min(refused)} that counts for all members")
            continue
        yield from _member(header, records, blocks)
        records, left = {}, MAX_RECORDS
    blocks.refuse_rest()


def _header(blocks: _Blocks) -> tarfile.TarInfo | None:
    """The header in the next block; None at the end of the archive, a block of zeros."""
    block = blocks.take(BLOCK)
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if block.count(0) == BLOCK:
            return None
        raise damaged(blocks.place, str(error)) from error
    if header.size < 0:
        raise damaged(blocks.place, f"a size of {header.size}")
    return header


def _member(
    header: tarfile.TarInfo, records: Mapping[str, str], blocks: _Blocks
) -> Iterator[Member]:
    name = records.get("path", header.name)
    place = f"{blocks.place}: {name}"
    if any(key.startswith("GNU.sparse") for key in records):
        header.type = tarfile.GNUTYPE_SPARSE
    if header.type in _REFUSED:
        raise unsupported(place, _REFUSED[header.type], _CURES.get(header.type))
    if header.type not in {*_FILES, tarfile.DIRTYPE}:
        raise unsupported(place, f"a member of type {header.type!r}")
    is_folder = header.type == tarfile.DIRTYPE
    size = _number(records["size"], place) if "size" in records else header.size
    if is_folder and size:
        raise unsupported(place, "a folder with bytes of its own")
    chunks = blocks.padded(size)
    yield Member(name=name, is_folder=is_folder, size=size, chunks=chunks)
    for _ in chunks:
        raise AssertionError("a member was not read to its end")


def _records(data: bytes, place: str) -> dict[str, str]:
    """The records `LENGTH KEY=VALUE\\n` of a pax header."""
    records = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + _DIGITS)
        stop = at + _number(data[at : max(at, space)].decode("latin-1"), place)
        if not space < stop <= len(data) or data[stop - 1] != 0x0A:
            raise damaged(place, "a pax record of another length than it says")
        key, equals, value = data[space + 1 : stop - 1].partition(b"=")
        if not equals:
            raise damaged(place, "a pax record without a value")
        records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at = stop
    return records


def _number(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise damaged(place, f"{text!r} in place of a number")
    return int(text)
