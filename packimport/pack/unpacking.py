"""Unpacking: the members of an archive become files, if every rule is kept.

The names of an archive are held to stricter rules than those of a folder: it may be
made on any system, and is unpacked on this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from packimport.errors import ContainerError
from packimport.pack.faults import faults
from packimport.pack.listing import MAX_DEPTH, MAX_FILES
from packimport.pack.member import Member
from packimport.pack.names import folded, location_refusal

# Weights hardly shrink: packs of fp16 and int4 come to less than 2. What an archive
# may unpack to at any ratio is little enough to be written in a second.
MAX_RATIO = 200
SMALL = 256 * 2**20
MAX_BYTES = 2**40
MAX_NAME = 1024
_NEW_FILE = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)


class Allowance:
    """How many bytes an archive may unpack to.

    size: bytes of the archive. place: its name, for errors.
    """

    def __init__(self, size: int, place: str) -> None:
        self.limit = min(MAX_BYTES, max(SMALL, MAX_RATIO * size))
        self.used = 0
        self._place = place

    def take(self, count: int) -> None:
        """Count `count` bytes more. Raises ContainerError where they are too many."""
        self.used += count
        if self.used > self.limit:
            raise ContainerError(
                "the archive unpacks to more than any pack would",
                place=self._place,
                found=f"more than {self.limit} bytes",
                allowed=f"{MAX_RATIO} times its own size, or {SMALL} bytes",
                fix="Unpack it yourself, if you trust it, and pass the folder.",
            )


class Unpacking:
    """An empty folder that members are put into.

    folder: real and private: nobody else writes there. place: the archive, for errors.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self._folder = folder
        self._place = place
        self._members = 0
        # How a disk without case would see a name ─▶ the name, and whether it is a folder.
        self._taken: dict[str, tuple[str, bool]] = {}

    def put(self, member: Member) -> Iterator[int]:
        """Write a member; yields the bytes of each piece once it is there.

        Raises ContainerError for a name that is absolute, leaves the folder, has
        control characters or what Windows can't hold, differs from another in
        case only, or stands twice; for too many or too deep ones; and where the
        disk refuses.
        """
        # A folder may be named again, but not without end.
        self._members += 1
        self._refuse_many(self._members)
        parts = self._parts(member)
        for depth in range(1, len(parts)):
            self._claim("/".join(parts[:depth]), is_folder=True)
        if not parts:
            return
        name = "/".join(parts)
        self._claim(name, is_folder=member.is_folder)
        if not member.is_folder:
            yield from self._write(name, member)
        else:
            yield from map(len, member.chunks)

    def _parts(self, member: Member) -> list[str]:
        """The checked steps of a name; [] for the top folder itself."""
        name = member.name.rstrip("/") if member.is_folder else member.name
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if member.is_folder and not parts and not name.startswith("/"):
            return []
        why = location_refusal(name)
        if why is None and len(name) > MAX_NAME:
            why = f"has more than {MAX_NAME} characters"
        if why is None and len(parts) > MAX_DEPTH:
            why = f"has more than {MAX_DEPTH} levels"
        if why is None and name.endswith("/"):
            why = "is that of a folder"
        if why is not None:
            raise ContainerError(
                f"the name of a file in the archive {why}",
                place=self._place,
                found=member.name.encode("utf-8", "backslashreplace").decode(),
                allowed="relative names that every system can hold, with `/`",
                fix="Make the archive again without it.",
            )
        return parts

    def _claim(self, name: str, *, is_folder: bool) -> None:
        """Take a name; a folder may be named again."""
        other, was_folder = self._taken.get(folded(name), (None, False))
        if other is None:
            self._taken[folded(name)] = (name, is_folder)
            self._refuse_many(len(self._taken))
            if is_folder:
                with faults(name):
                    (self._folder / name).mkdir()
        elif other != name or not (is_folder and was_folder):
            raise ContainerError(
                "a name stands twice" if other == name else "two names differ only in case",
                place=self._place,
                found=name if other == name else f"{other} and {name}",
                fix="Make the archive again with one of them.",
            )

    def _refuse_many(self, count: int) -> None:
        if count > MAX_FILES:
            raise ContainerError(
                "the archive holds too many files",
                place=self._place,
                allowed=f"{MAX_FILES} files and folders",
            )

    def _write(self, name: str, member: Member) -> Iterator[int]:
        written = 0
        with faults(name):
            descriptor = os.open(self._folder / name, _NEW_FILE, 0o666)
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  # a descriptor
            for chunk in member.chunks:
                rest = memoryview(chunk)
                while rest:
                    with faults(name):
                        rest = rest[file.write(rest) :]
                written += len(chunk)
                yield len(chunk)
        if written != member.size:
            raise ContainerError(
                "a file of the archive is not as long as it says",
                place=f"{self._place}: {name}",
                found=f"{written} bytes",
                allowed=f"{member.size} bytes",
                fix="Get the archive again.",
            )
