"""Lock: one program at a time changes a pack in place.

The lock ends with its owner, however that ends, and leaves nothing behind:
POSIX locks the folder itself; Windows, which can't, a file that it removes
when the last handle closes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packimport.errors import ContainerError
from packimport.pack.faults import faults

LOCK_FILE = ".packimport.lock"

# What `take` raises where another process has the lock: flock, and locking on Windows.
HELD = (BlockingIOError, PermissionError)


@contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Hold the lock of the folder `path` for the time of the block; its real path.

    Raises ContainerError where there is no such folder, where another process
    holds the lock, and where the disk knows no locks.
    """
    place = str(path)
    with faults(place):
        root = Path(os.path.realpath(path))
        if root.is_file():
            raise ContainerError(
                "a file is not changed in place",
                place=place,
                allowed="the folder of a pack",
                fix="Write to another folder with -o.",
            )
        descriptor = _opened(root)
    try:
        try:
            take(descriptor)
        except HELD as error:
            raise ContainerError(
                "another packimport is at work on this pack",
                place=place,
                fix="Wait until it has ended, then run again.",
            ) from error
        except OSError as error:
            raise ContainerError(
                "this disk knows no locks",
                place=place,
                found=error.strerror,
                fix="Write to another folder with -o.",
            ) from error
        yield root
    finally:
        os.close(descriptor)


def take(descriptor: int) -> None:
    """Lock an open file without waiting. Raises OSError where that can't be done."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _opened(root: Path) -> int:
    if sys.platform == "win32":
        path, flags = root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_TEMPORARY
    else:
        path, flags = root, os.O_RDONLY | os.O_DIRECTORY
    return os.open(path, flags)
