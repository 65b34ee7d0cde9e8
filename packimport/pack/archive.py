"""Archive: a pack in a .zip, .tar, .tar.gz or .tar.zst, unpacked for as long as it is read.

    with opened("pack.tar.zst") as container, interruptible():
        ...

It is unpacked whole, into a private folder: where in a compressed stream a table
lies shows only when all before it was inflated, and the graph, which names the
place, may come last.
"""

from __future__ import annotations

import gzip
import importlib
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import BinaryIO, cast

from packimport.errors import DependencyError
from packimport.pack.container import READ_FLAGS, Container, changed_error, open_container
from packimport.pack.faults import faults
from packimport.pack.listing import scan, stamp_of
from packimport.pack.member import Member, damaged
from packimport.pack.progress import OnProgress
from packimport.pack.refusals import refuse_no_pack
from packimport.pack.signals import ended_by_signals, interruptible
from packimport.pack.tar_file import Read, tar_members
from packimport.pack.unpacking import Allowance, Unpacking
from packimport.pack.workshop import workshop
from packimport.pack.zip_file import zip_members

ZIP, TAR, TAR_GZ, TAR_ZST = "zip", "tar", "tar.gz", "tar.zst"

_SUFFIXES = {".zip": ZIP, ".tar": TAR, ".tar.gz": TAR_GZ, ".tgz": TAR_GZ, ".tar.zst": TAR_ZST}
_STARTS = {b"PK": ZIP, b"\x1f\x8b": TAR_GZ, b"\x28\xb5\x2f\xfd": TAR_ZST}
_USTAR = slice(257, 262)
# Memory that a stranger's file may make zstandard take; `zstd --long` asks for 128 MiB.
_WINDOW_LOG = 27


def archive_format(path: Path) -> str | None:
    """ "zip", "tar", "tar.gz" or "tar.zst"; None for anything that is no archive.

    The first bytes count; the name only where they say nothing, as in an old tar.
    """
    if not path.is_file():
        return None
    with faults(str(path)), _open(path) as file:
        head = file.read(_USTAR.stop)
    if head[_USTAR] == b"ustar":
        return TAR
    by_start = (kind for start, kind in _STARTS.items() if head.startswith(start))
    by_name = (kind for end, kind in _SUFFIXES.items() if path.name.lower().endswith(end))
    return next(by_start, None) or next(by_name, None)


@contextmanager
def opened(
    path: str | os.PathLike[str],
    *,
    scratch: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Container]:
    """The pack at `path`, a folder or an archive, for the time of the block.

    scratch:     the folder to unpack an archive in; the system's temporary one by
                 default. What was unpacked is removed at the end of the block, also
                 after errors and SIGTERM; after a SIGKILL, by the next run there.
    on_progress: called with bytes of the archive that are read and bytes in all.

    Raises as `open_container` does, ContainerError for an archive that
    `zip_members`, `tar_members` or `Unpacking` refuse, and DependencyError where
    zstandard is missing.
    """
    given = Path(path)
    form = archive_format(given)
    if form is None:
        yield open_container(given)
        return
    parent = scratch or Path(tempfile.gettempdir())
    with ended_by_signals(), ExitStack() as stack:
        with faults(str(parent)):
            folder = stack.enter_context(workshop(parent))
            folder.mkdir(mode=0o700)
        with faults(str(given)), interruptible():
            _unpack(given, form, folder, on_progress)
        yield _container(given, form, folder)


def _open(path: Path) -> BinaryIO:
    # Links are followed: it is the user who names the archive.
    descriptor = os.open(path, READ_FLAGS & ~getattr(os, "O_NOFOLLOW", 0))
    return open(descriptor, "rb", buffering=0)  # noqa: PTH123  # a descriptor


def _unpack(given: Path, form: str, folder: Path, on_progress: OnProgress | None) -> None:
    place = str(given)
    with _open(given) as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise changed_error((place,))
        allowance = Allowance(before.st_size, place)
        unpacking = Unpacking(folder, place)
        for member in _members(file, form, place, allowance):
            for _ in unpacking.put(member):
                if on_progress is not None:
                    on_progress(min(file.tell(), before.st_size), before.st_size)
        if stamp_of(os.fstat(file.fileno())) != stamp_of(before):
            raise changed_error((place,))


def _members(file: BinaryIO, form: str, place: str, allowance: Allowance) -> Iterator[Member]:
    """The members; every byte that they unpack to is counted."""
    if form == ZIP:
        for member in zip_members(file, place):
            allowance.take(member.size)
            yield member
        return
    read = _reader(file, form, place)

    def counted(size: int) -> bytes:
        data = read(size)
        allowance.take(len(data))
        return data

    yield from tar_members(counted, place)


def _reader(file: BinaryIO, form: str, place: str) -> Read:
    """What reads the tar within: at most so many bytes, b"" at the end."""
    if form == TAR:
        return file.read
    read, errors = _gzip_reader(file) if form == TAR_GZ else _zstd_reader(file)

    def guarded(size: int) -> bytes:
        try:
            return read(size)
        except errors as error:
            raise damaged(place, str(error)) from error

    return guarded


def _gzip_reader(file: BinaryIO) -> tuple[Read, tuple[type[Exception], ...]]:
    return gzip.GzipFile(fileobj=file).read, (EOFError, zlib.error, gzip.BadGzipFile)


def _zstd_reader(file: BinaryIO) -> tuple[Read, tuple[type[Exception], ...]]:
    if (module := _module("compression.zstd")) is not None:  # Python 3.14 and later
        options = {module.DecompressionParameter.window_log_max: _WINDOW_LOG}
        return cast("Read", module.ZstdFile(file, options=options).read), (
            EOFError,
            module.ZstdError,
        )
    if (module := _module("zstandard")) is None:
        raise DependencyError(
            "a .tar.zst needs the library zstandard, which is not installed",
            fix="Install it: pip install zstandard. Or unpack it and pass the folder.",
        )
    decompressor = module.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    stream = decompressor.stream_reader(file, read_across_frames=True)
    return cast("Read", stream.read), (module.ZstdError,)


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _container(given: Path, form: str, folder: Path) -> Container:
    """The Container of what was unpacked; a single folder at the top is entered."""
    root = Path(os.path.realpath(folder, strict=True))
    inside = list(root.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        root = inside[0]
    listing = scan(root, (root,))
    refuse_no_pack(listing, given)
    return Container(
        path=given,
        format=form,
        root=root,
        folders=tuple(listing.folders),
        notes=tuple(listing.notes),
        entries=MappingProxyType(listing.entries),
    )
