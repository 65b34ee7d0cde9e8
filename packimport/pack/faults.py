"""Faults: what the operating system refuses, as errors that name the cure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from packimport.errors import ContainerError

_CURES = {
    errno.ENOSPC: ("the disk is full", "Free some space, or write to another disk."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space, or write to another disk."),
    errno.EFBIG: ("the file is larger than this disk or user may hold", "Write to another disk."),
    errno.EACCES: ("permission is denied", "Check the permissions of the file and its folder."),
    errno.EPERM: ("permission is denied", "Check the permissions of the file and its folder."),
    errno.EROFS: ("the disk is read-only", "Write to another disk."),
    errno.ENOENT: ("the file is missing", "Check the path; if it was just there, run again."),
    errno.EEXIST: ("the name is taken", "Remove what is there, or write to another path."),
    errno.ENOTEMPTY: ("the name is taken", "Remove what is there, or write to another path."),
    errno.ENAMETOOLONG: ("the name is too long for this disk", "Use a shorter path."),
    errno.EMFILE: ("too many files are open", "Raise the limit (`ulimit -n`) and run again."),
    errno.EIO: ("the disk reports a fault", "Check the disk, and get the pack again."),
}


def container_error(error: OSError, place: str) -> ContainerError:
    """`error` as a ContainerError about `place`, with the cure where one is known."""
    reason = error.strerror or str(error)
    message, fix = _CURES.get(error.errno or 0, ("the operating system refuses", None))
    return ContainerError(message, place=place, found=reason, fix=fix)


@contextmanager
def faults(place: str) -> Iterator[None]:
    """Any OSError of the block is raised as a ContainerError about `place`."""
    try:
        yield
    except OSError as error:
        raise container_error(error, place) from error
