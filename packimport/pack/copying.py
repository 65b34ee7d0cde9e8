"""Copying: one file of a container into a new one, edited and hashed on the way.

The copy is made by the disk or the kernel where they can. A large file is
hashed by another thread while it is copied, from the copy itself: what the
manifest says is what was read back.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packimport.errors import ContainerError
from packimport.pack.additions import Addition, Replacement, data_of
from packimport.pack.container import Container, changed_error
from packimport.pack.digests import CHUNK, sha256_of
from packimport.pack.durable import write_all
from packimport.pack.edits import Edit
from packimport.pack.faults import faults
from packimport.pack.manifest import FileRecord
from packimport.pack.progress import Progress

_COPY_CHUNK = 8 << 20
_FICLONE = 0x40049409  # linux/fs.h
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class _Watermark:
    """How many leading bytes of a file stand as they will stay; threads wait for more."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._ready = -1
        self._failure: BaseException | None = None

    def advance(self, ready: int) -> None:
        with self._condition:
            self._ready = ready
            self._condition.notify_all()

    def fail(self, failure: BaseException) -> None:
        with self._condition:
            self._failure = failure
            self._condition.notify_all()

    def wait(self, beyond: int) -> int:
        """The mark, once it is above `beyond`; raises the failure of the other thread."""
        with self._condition:
            self._condition.wait_for(lambda: self._ready > beyond or self._failure)
            self.check()
            return self._ready

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure


def copy_file(
    container: Container,
    name: str,
    target: Path,
    edits: Sequence[Edit],
    progress: Progress,
    *,
    additions: Sequence[Addition] = (),
) -> FileRecord:
    """A new file `target`: `name` with `edits` applied, on the disk, and its record.

    edits:     sorted, without overlaps, inside the file.
    additions: sorted, without overlaps, behind its end; zeros fill the gaps.

    Raises ContainerError where the bytes to be replaced are not those of the edit,
    where the file changed, and where the disk refuses.
    """
    size = container.size(name)
    whole = additions[-1].end if additions else size
    mark = _Watermark()

    def fill() -> None:
        try:
            with container.open(name) as source, _new_file(name, target) as copy:
                _fill(copy, _copied(source, copy, size, name), edits, mark, progress)
                _append(copy, additions)
                os.fsync(copy)
                mark.advance(whole)
        except BaseException as failure:
            mark.fail(failure)

    thread = threading.Thread(target=fill)
    if whole > CHUNK:
        thread.start()
    else:
        # A thread would cost more than it saves.
        fill()
    try:
        mark.wait(-1)
        with faults(name), target.open("rb", buffering=0) as file:
            digest = sha256_of(file.fileno(), whole, name, mark.wait, progress)
    except BaseException:
        progress.stop()
        raise
    finally:
        if thread.is_alive():
            thread.join()
    mark.check()
    return FileRecord(name=name, size=whole, sha256=digest)


def replace_file(
    container: Container, replacement: Replacement, target: Path, progress: Progress
) -> FileRecord:
    """A new file `target` made of the pieces of `replacement`, on the disk, and its record.

    Raises ContainerError where the file it replaces is another than it was made for,
    and where the disk refuses.
    """
    name = replacement.file
    size = container.size(name)
    with container.open(name) as source, faults(name):
        old = sha256_of(source, size, name, lambda _: size, progress)
    if old != replacement.old_sha256:
        raise ContainerError(
            "the file to be replaced is not the one that was checked",
            place=name,
            found=f"sha256 {old}",
            allowed=f"sha256 {replacement.old_sha256}",
            fix="The file changed: check the pack again.",
        )
    digest = hashlib.sha256()
    with _new_file(name, target) as descriptor:
        for part in map(data_of, replacement.pieces):
            digest.update(part)
            write_all(descriptor, part)
            progress.add(len(part))
        os.fsync(descriptor)
    return FileRecord(name=name, size=replacement.size, sha256=digest.hexdigest())


def write_file(name: str, target: Path, data: bytes) -> FileRecord:
    """A new file `target` with `data`, on the disk, and its record; others may read it by umask."""
    with _new_file(name, target, 0o666) as descriptor:
        write_all(descriptor, data)
        os.fsync(descriptor)
    return FileRecord(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


@contextmanager
def _new_file(name: str, target: Path, mode: int = 0o600) -> Iterator[int]:
    with faults(name):
        descriptor = os.open(target, _NEW_FILE, mode)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _fill(
    copy: int, copied: Iterator[int], edits: Sequence[Edit], mark: _Watermark, progress: Progress
) -> None:
    """Let the file be copied, edit each span as soon as it is there, and say how far it stands."""
    pending = list(reversed(edits))
    for end in copied:
        progress.check()
        while pending and pending[-1].end <= end:
            _apply(copy, pending.pop())
        os.lseek(copy, end, os.SEEK_SET)
        mark.advance(min(end, pending[-1].offset) if pending else end)


def _append(copy: int, additions: Sequence[Addition]) -> None:
    """Write each addition at its offset; the disk reads what lies between as zeros."""
    for addition in additions:
        os.lseek(copy, addition.offset, os.SEEK_SET)
        write_all(copy, addition.new)


def _apply(copy: int, edit: Edit) -> None:
    """Replace the bytes of `edit` in an open file, if they are those it was made for."""
    os.lseek(copy, edit.offset, os.SEEK_SET)
    digest = hashlib.sha256()
    left = edit.length
    while left and (data := os.read(copy, min(left, CHUNK))):
        digest.update(data)
        left -= len(data)
    if digest.hexdigest() != edit.old_sha256:
        raise ContainerError(
            "the bytes to be replaced are not those that were checked",
            place=edit.file,
            found=f"sha256 {digest.hexdigest()} of {edit.length} bytes at offset {edit.offset}",
            allowed=f"sha256 {edit.old_sha256}",
            fix="The file changed: check the pack again.",
        )
    os.lseek(copy, edit.offset, os.SEEK_SET)
    write_all(copy, edit.new)


def _copied(source: int, copy: int, size: int, name: str) -> Iterator[int]:
    """Copy `size` bytes by the best way there is; yields how many are there so far.

    A way that fails leaves the rest to the next one; the last one raises the
    error of the disk, if it is one.
    """
    if size == 0 or _clone(source, copy):
        yield size
        return
    done = 0
    for way in (_by_range, _by_sendfile, _by_buffer):
        while done < size:
            count = way(source, copy, min(_COPY_CHUNK, size - done))
            if not count:
                break
            done += count
            yield done
    if done != size:
        raise changed_error((name,))


def _clone(source: int, copy: int) -> bool:
    """Let both files share their blocks until one of them is written to."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.ioctl(copy, _FICLONE, source)
            return True
    return False


def _by_range(source: int, copy: int, count: int) -> int:
    if sys.platform == "linux":
        with suppress(OSError):
            return os.copy_file_range(source, copy, count)
    return 0


def _by_sendfile(source: int, copy: int, count: int) -> int:
    if sys.platform == "linux":
        with suppress(OSError):
            return os.sendfile(copy, source, None, count)
    return 0


def _by_buffer(source: int, copy: int, count: int) -> int:
    data = os.read(source, min(count, CHUNK))
    write_all(copy, data)
    return len(data)
