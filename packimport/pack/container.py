"""Container: a pack on disk, listed once, read by spans, never by whole files.

A pack comes from a stranger. Nothing outside its folder is read, nothing that
is no regular file is opened, and a file that changed since the listing is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NoReturn

from packimport.errors import ContainerError
from packimport.pack.faults import faults
from packimport.pack.journal import refuse_unfinished
from packimport.pack.listing import Entry, Listing, scan, stamp_of
from packimport.pack.names import folded, location_refusal
from packimport.pack.refusals import not_a_folder, refuse_no_pack

FOLDER = "folder"
SNAPSHOT = "hub snapshot"

# O_NONBLOCK: a FIFO put in place of a file must not make us wait.
READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
# Linux reads no more than 2 GiB at once.
_READ_CHUNK = 1 << 30
LFS_POINTER = b"version https://git-lfs"
LFS_POINTER_SIZE = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Container:
    """A pack: its files as they were when it was opened.

    path:    as the user gave it.
    format:  "folder" or "hub snapshot".
    root:    the real path of the folder, links followed.
    folders: names of every folder in it, sorted; empty folders too.
    notes:   what a user should know about the files, one line each.
    entries: the regular files by name, sorted. Names are relative to the folder, with `/`.
    """

    path: Path
    format: str
    root: Path
    folders: tuple[str, ...]
    notes: tuple[str, ...]
    entries: Mapping[str, Entry] = field(repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files, sorted."""
        return tuple(self.entries)

    @property
    def graphs(self) -> tuple[str, ...]:
        """The names of all ONNX files, sorted."""
        return tuple(name for name in self.entries if name.endswith(".onnx"))

    def has(self, name: str) -> bool:
        """Whether there is a file of exactly this name."""
        return name in self.entries

    def size(self, name: str) -> int:
        """Bytes of a file. Raises ContainerError where it is missing."""
        return self._entry(name).stamp.size

    def resolve(self, name: str) -> Path:
        """Where a file really lies. In a hub snapshot that is a blob, named by its hash:
        a reader that looks for neighbours of the file needs `path / name` instead.

        Raises ContainerError where it is missing or a pointer of Git LFS.
        """
        entry = self._entry(name)
        if entry.stamp.size <= LFS_POINTER_SIZE:
            self.read_bytes(name, LFS_POINTER_SIZE)
        return entry.path

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """A descriptor of a file, for reading, closed at the end of the block.

        Raises ContainerError where the file is missing or not the one that was listed,
        and at the end of the block where it changed meanwhile.
        """
        entry = self._entry(name)
        with faults(name):
            descriptor = os.open(entry.path, READ_FLAGS)
        try:
            if stamp_of(os.fstat(descriptor)) != entry.stamp:
                raise changed_error((name,))
            yield descriptor
            if stamp_of(os.fstat(descriptor)) != entry.stamp:
                raise changed_error((name,))
        finally:
            os.close(descriptor)

    def read_bytes(self, name: str, limit: int) -> bytes:
        """A whole file of at most `limit` bytes.

        Raises ContainerError where it is missing, larger, changed, or a pointer of Git LFS.
        """
        size = self.size(name)
        if size > limit:
            raise ContainerError(
                "the file is too large", place=name, found=f"{size} bytes", allowed=f"{limit} bytes"
            )
        data = bytes(self._read(name, 0, size))
        if size <= LFS_POINTER_SIZE and data.startswith(LFS_POINTER):
            raise ContainerError(
                "a pointer of Git LFS stands in place of the file",
                place=name,
                fix="Run `git lfs pull` in the folder.",
            )
        return data

    def span(self, name: str, offset: int, length: int) -> memoryview:
        """The bytes of a span, read-only, read into memory.

        Not mapped: where a mapped file is cut short, the next look at it ends the
        process. Raises ContainerError where the span is not wholly inside the file,
        and as `read_bytes` does.
        """
        self.resolve(name)
        size = self.size(name)
        if offset < 0 or length < 0 or offset + length > size:
            raise ContainerError(
                "the span is not inside the file",
                place=name,
                found=f"{length} bytes at offset {offset}",
                allowed=f"0 to {size}",
                fix="The file is cut short or belongs to another graph: get the pack again.",
            )
        return memoryview(self._read(name, offset, length)).toreadonly()

    def _read(self, name: str, offset: int, length: int) -> bytes | bytearray:
        with (
            self.open(name) as descriptor,
            faults(name),
            open(descriptor, "rb", buffering=0, closefd=False) as file,
        ):
            file.seek(offset)
            first = file.read(min(length, _READ_CHUNK))
            if len(first) == length:
                return first
            data = bytearray(length)
            data[: len(first)] = first
            rest = memoryview(data)[len(first) :]
            while rest and (count := file.readinto(rest[:_READ_CHUNK])):
                rest = rest[count:]
        if rest:
            raise changed_error((name,))
        return data

    def safe_name(self, location: str, base: str) -> str:
        """The file that `location` means, where it stands in the file `base`.

        location: relative to the folder of `base`, with `/`: external data of a graph,
        or a file name in a config. Raises ContainerError where it is absolute, has
        `..`, backslashes, drive letters or names no disk should hold, or is missing.
        """
        if why := location_refusal(location):
            raise ContainerError(
                f"the path of a file {why}",
                place=base,
                found=location,
                allowed="a path below the folder of this file, with `/`",
            )
        name = (PurePosixPath(base).parent / location).as_posix()
        if name not in self.entries:
            self._refuse_missing(name, named_in=base)
        return name

    def changed(self) -> tuple[str, ...]:
        """Names of files that were changed, added or removed since the container was opened."""
        now = _listed(self.root, self.format).entries
        names = sorted(self.entries.keys() | now.keys())
        return tuple(name for name in names if self.entries.get(name) != now.get(name))

    def _entry(self, name: str) -> Entry:
        entry = self.entries.get(name)
        return self._refuse_missing(name) if entry is None else entry

    def _refuse_missing(self, name: str, named_in: str | None = None) -> NoReturn:
        if name in self.folders:
            raise ContainerError("a folder stands in place of a file", place=name)
        alike = [other for other in self.files if folded(other) == folded(name)]
        raise ContainerError(
            "the file is missing" + (f"; {named_in} names it" if named_in else ""),
            place=name,
            found=alike[0] if alike else None,
            fix="Rename the file." if alike else "Download the pack again, to its end.",
        )


def changed_error(names: tuple[str, ...]) -> ContainerError:
    """The error for files that are not as they were when the container was opened."""
    return ContainerError(
        "the file changed since the pack was opened",
        place=names[0],
        found=f"{len(names)} changed files" if len(names) > 1 else None,
        fix="Wait until nothing writes to the pack, then run again.",
    )


def open_container(path: str | os.PathLike[str], *, unfinished: bool = False) -> Container:
    """The pack in the folder `path`, listed and not read.

    A snapshot of a hub cache, `snapshots/REV/`, may link into the cache's `blobs/`.
    Raises ContainerError where the folder is missing, is a file, holds no pack,
    or holds what `listing.scan` refuses; and, unless `unfinished`, where a patch in
    place did not end.
    """
    given = Path(path)
    with faults(str(given)):
        try:
            root = Path(os.path.realpath(given, strict=True))
        except FileNotFoundError:
            raise ContainerError(
                "there is no such folder", place=str(given), fix="Check the path."
            ) from None
        if not root.is_dir():
            raise not_a_folder(given)
    if not unfinished:
        refuse_unfinished(root)
    is_snapshot = root.parent.name == "snapshots" and (root.parent.parent / "blobs").is_dir()
    form = SNAPSHOT if is_snapshot else FOLDER
    listing = _listed(root, form)
    refuse_no_pack(listing, given)
    return Container(
        path=given,
        format=form,
        root=root,
        folders=tuple(listing.folders),
        notes=tuple(listing.notes),
        entries=MappingProxyType(listing.entries),
    )


def _listed(root: Path, form: str) -> Listing:
    # `blobs` stands here unresolved, so a link in its place leads nowhere allowed.
    return scan(root, (root, root.parent.parent / "blobs") if form == SNAPSHOT else (root,))
