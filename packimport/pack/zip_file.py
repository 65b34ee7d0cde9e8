"""Zip: the members of a .zip, stored or deflated, in the order of its directory.

The standard library reads the directory and inflates; what it would let pass is
refused here: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import BinaryIO

from packimport.errors import ContainerError
from packimport.pack.listing import MAX_FILES
from packimport.pack.member import CHUNK, Member, damaged, unsupported

# The directory of 100 000 files with names of 100 characters takes 15 MB.
MAX_DIRECTORY = 16 * 2**20
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_LOCAL_HEADER = 30
_END = struct.Struct("<4s4H2LH")
# Everything that zipfile raises for bytes that are no zip.
_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


class _Guarded:
    """A file that is never read in large pieces: zipfile reads a directory whole."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = MAX_DIRECTORY
        if size > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"a directory of more than {MAX_DIRECTORY} bytes")
        return self._file.read(size)


@contextmanager
def _faults(place: str) -> Iterator[None]:
    try:
        yield
    except _FAULTS as error:
        raise damaged(place, str(error) or type(error).__name__) from error


def zip_members(file: BinaryIO, place: str) -> Iterator[Member]:
    """The members of the zip in `file`; `place` is its name in errors.

    Raises ContainerError for what is no zip or damaged, on several disks,
    encrypted, packed by another method, or a link or device; and for members
    that share bytes, of which bombs are made. Checked before the first is yielded.
    """
    with _faults(place):
        archive = zipfile.ZipFile(_Guarded(file))
        _refuse_tail(file, archive, place)
    members = archive.infolist()
    if len(members) > MAX_FILES:
        raise ContainerError(
            "the archive holds too many files",
            place=place,
            found=len(members),
            allowed=f"{MAX_FILES}",
        )
    for info in members:
        _refuse(info, f"{place}: {info.orig_filename}")
    _refuse_overlaps(members, archive.start_dir, place)
    for info in members:
        name = info.orig_filename
        yield Member(
            name=name,
            is_folder=name.endswith("/"),
            size=info.file_size,
            chunks=_chunks(archive, info, f"{place}: {name}"),
        )


def _chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str) -> Iterator[bytes]:
    # The library compares the checksum once it has read to the end.
    with _faults(place), archive.open(info) as member:
        while data := member.read(CHUNK):
            yield data


def _refuse_tail(file: BinaryIO, archive: zipfile.ZipFile, place: str) -> None:
    """Two readers may look for the end record in two ways: it must be the end of the file."""
    length = file.seek(0, 2)
    file.seek(max(0, length - len(archive.comment) - _END.size))
    signature, disk, first_disk, *_ = _END.unpack(file.read(_END.size))
    if signature != b"PK\5\6":
        raise zipfile.BadZipFile("bytes behind its end")
    # 0xffff: the number stands in the record of zip64, which the library reads.
    if {disk, first_disk} - {0, 0xFFFF}:
        raise unsupported(place, "a part of several", "Join the parts first.")


def _refuse(info: zipfile.ZipInfo, place: str) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.flag_bits & _ENCRYPTED:
        raise unsupported(place, "an encrypted file")
    if info.volume not in {0, 0xFFFF}:
        raise unsupported(place, "a part of several", "Join the parts first.")
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise unsupported(place, f"a file packed by method {info.compress_type}")
    if kind == stat.S_IFLNK:
        raise unsupported(place, "a link")
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise unsupported(place, "a device or pipe")
    if (kind == stat.S_IFDIR) != info.orig_filename.endswith("/") and kind:
        raise unsupported(place, "a file that claims to be a folder, or a folder a file")
    if info.orig_filename.endswith("/") and info.file_size:
        raise unsupported(place, "a folder with bytes of its own")


def _refuse_overlaps(members: list[zipfile.ZipInfo], end: int, place: str) -> None:
    spans = sorted(
        (info.header_offset, info.header_offset + _LOCAL_HEADER + info.compress_size)
        for info in members
    )
    for (_, stop), (start, _) in pairwise([*spans, (end, end)]):
        if start < stop:
            raise damaged(place, "members that share bytes")
