"""Durable: bring names and bytes onto the disk before the next step is taken."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` onto the disk, where the system can do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network disks refuse this for folders; their names are safe by themselves.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_removable(path: Path) -> None:
    """Take the mark off a file by which Windows refuses to remove or replace it."""
    if sys.platform == "win32":
        with suppress(OSError):
            path.chmod(stat.S_IWRITE)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    make_removable(path)
    path.unlink(missing_ok=True)


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """A new file made of `pieces`, on the disk. Raises OSError where it exists or has no room."""
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        for piece in pieces:
            write_all(descriptor, piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, offset: int, data: bytes) -> None:
    """Write all of `data` at `offset` of an open file."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    write_all(descriptor, data)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data` where an open file stands: one call may write less."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
