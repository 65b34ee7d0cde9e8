"""Undo: put a pack back that was patched in place, or that such a patch left half done.

Restoring makes the same steps however far the patch, or an earlier restoring, came:
it writes the old bytes of every span, whatever stands there, moves the old files
back and removes those that were added. So it may be killed and run again. It ends
when `journal.json` is removed; what else lies in the folder then has no meaning.

The caller holds the lock of the pack.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packimport.errors import ContainerError
from packimport.pack.durable import make_removable, remove, sync_folder, write_at
from packimport.pack.faults import faults
from packimport.pack.journal import (
    DRAFT,
    FOLDER,
    UNFINISHED,
    EditedFile,
    Journal,
    numbers,
    read_journal,
    record_name,
    regular,
    undo_folder,
)

CHUNK = 1 << 20
_NO_LINK = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

# What only a run that was killed leaves without a journal: nothing of it is needed.
_STRAY = re.compile(r"([0-9]{4})\.(?:bin|new\.[0-9]+)")

RESTORED = "a run that did not end was found: the pack is as it was before that patch"
SWEPT = "what a run left that did not end was removed; it had changed nothing"


def undo(root: Path) -> str:
    """Take back the last patch in place of the pack in `root`; what was done, for a person.

    Where a patch or an undo did not end, that one is taken back and no other.
    Raises ContainerError, and changes nothing, where there is nothing to take
    back, or where a file that it changed is not as it left it.
    """
    if recovered := recover(root):
        return recovered
    folder = undo_folder(root)
    done = [] if folder is None else numbers(folder)
    if folder is None or not done:
        raise ContainerError(
            "there is nothing to undo",
            place=str(root),
            fix="Only a patch made with --in-place can be taken back.",
        )
    journal = read_journal(folder, record_name(done[-1]))
    _refuse_other_number(journal, done[-1])
    _refuse_changed(root, folder, journal)
    with faults(FOLDER):
        (folder / journal.record).rename(folder / UNFINISHED)
        sync_folder(folder)
    _put_back(root, folder, journal)
    files = {file.name for file in journal.edited} | {file.name for file in journal.files}
    return f"the patch is taken back; {len(files)} files are as they were"


def recover(root: Path) -> str | None:
    """Put back what a patch or an undo left that did not end; what was done, for a person.

    None where there was nothing to do.
    """
    folder = undo_folder(root)
    if folder is None:
        return None
    if os.path.lexists(folder / UNFINISHED):
        restore(root, folder, read_journal(folder, UNFINISHED))
        return RESTORED
    return SWEPT if _sweep(root, folder) else None


def restore(root: Path, folder: Path, journal: Journal) -> None:
    """The pack as it was before the patch of `journal`, whose file is `journal.json`.

    Raises ContainerError where the old bytes are damaged or missing, or a file is
    not one that the patch can have left; nothing is written then.
    """
    _refuse_damaged(folder, journal)
    _refuse_foreign(root, folder, journal)
    _put_back(root, folder, journal)


def _put_back(root: Path, folder: Path, journal: Journal) -> None:
    with faults(f"{FOLDER}/{journal.data}"), _opened(folder / journal.data, os.O_RDONLY) as data:
        for file in journal.edited:
            _restore_spans(root / file.name, file, data, journal)
    for index, whole in enumerate(journal.files):
        with faults(whole.name):
            if whole.old_sha256 is None:
                remove(root / whole.name)
            elif os.path.lexists(folder / journal.old(index)):
                make_removable(root / whole.name)
                (folder / journal.old(index)).replace(root / whole.name)
            sync_folder((root / whole.name).parent)
    with faults(FOLDER):
        sync_folder(folder)
        (folder / UNFINISHED).unlink()
        sync_folder(folder)
    _sweep(root, folder)
    with suppress(OSError):
        os.utime(root, ns=(root.stat().st_atime_ns, journal.mtime_ns))


def sha256_of_span(path: Path, offset: int, length: int) -> str:
    """sha256 of a span of a file, as lower-case hex; of what there is of it."""
    with _opened(path, os.O_RDONLY) as descriptor:
        digest = hashlib.sha256()
        for part in _parts(descriptor, offset, length):
            digest.update(part)
    return digest.hexdigest()


def _restore_spans(path: Path, file: EditedFile, data: int, journal: Journal) -> None:
    with faults(file.name):
        with _opened(path, os.O_RDWR) as descriptor:
            at = 0
            for span in journal.spans:
                if span.file == file.name:
                    offset = span.offset
                    for part in _parts(data, at, span.length):
                        write_at(descriptor, offset, part)
                        offset += len(part)
                at += span.length
            os.ftruncate(descriptor, file.size)
            os.fsync(descriptor)
        os.utime(path, ns=(path.stat().st_atime_ns, file.mtime_ns))


def _refuse_damaged(folder: Path, journal: Journal) -> None:
    """The old bytes are all there, and those that were saved."""
    place = f"{FOLDER}/{journal.data}"
    size = regular(folder / journal.data, place).st_size
    with faults(place):
        found = sha256_of_span(folder / journal.data, 0, size)
    if size != sum(span.length for span in journal.spans) or found != journal.data_sha256:
        raise ContainerError(
            "the saved bytes are damaged",
            place=place,
            found=f"{size} bytes with sha256 {found}",
            allowed=f"sha256 {journal.data_sha256}",
            fix="Get the pack again.",
        )


def _refuse_foreign(root: Path, folder: Path, journal: Journal) -> None:
    """Every file is one that the patch can have left, at whatever step it stood."""
    for file in journal.edited:
        _refuse_way(root, file.name)
        info = regular(root / file.name, file.name)
        if not file.size <= info.st_size <= file.new_size:
            allowed = f"{file.size} to {file.new_size} bytes"
            raise _changed(file.name, f"{info.st_size} bytes", allowed)
    for index, whole in enumerate(journal.files):
        _refuse_way(root, whole.name)
        kept = folder / journal.old(index)
        if os.path.lexists(kept):
            _refuse_other(kept, f"{FOLDER}/{kept.name}", whole.old_sha256)
            right = whole.new_sha256
        else:
            right = whole.new_sha256 if whole.old_sha256 is None else whole.old_sha256
        if os.path.lexists(root / whole.name):
            _refuse_other(root / whole.name, whole.name, right)
        elif whole.old_sha256 is not None and not os.path.lexists(kept):
            raise _changed(whole.name, "no such file", f"sha256 {right}")


def _refuse_changed(root: Path, folder: Path, journal: Journal) -> None:
    """Every file is as the complete patch left it, so that undoing loses nothing else."""
    _refuse_damaged(folder, journal)
    for file in journal.edited:
        _refuse_way(root, file.name)
        size = regular(root / file.name, file.name).st_size
        if size != file.new_size:
            raise _changed(file.name, f"{size} bytes", f"{file.new_size} bytes")
    for span in journal.spans:
        with faults(span.file):
            found = sha256_of_span(root / span.file, span.offset, span.length)
        if found != span.new_sha256:
            place = f"{span.length} bytes at offset {span.offset}"
            raise _changed(span.file, f"sha256 {found} of {place}", f"sha256 {span.new_sha256}")
    for index, whole in enumerate(journal.files):
        _refuse_way(root, whole.name)
        _refuse_other(root / whole.name, whole.name, whole.new_sha256)
        if whole.old_sha256 is not None:
            kept = folder / journal.old(index)
            _refuse_other(kept, f"{FOLDER}/{kept.name}", whole.old_sha256)


def _refuse_other_number(journal: Journal, number: int) -> None:
    if journal.number != number:
        raise ContainerError(
            "the journal is of another patch",
            place=f"{FOLDER}/{record_name(number)}",
            found=f"number {journal.number}",
            fix="Get the pack again.",
        )


def _refuse_way(root: Path, name: str) -> None:
    """No folder on the way to the file is a link: it may come from a stranger."""
    parent = (root / name).parent
    if os.path.realpath(parent) != str(parent):
        raise ContainerError("a folder on its way is a link", place=name, fix="Get the pack again.")


def _refuse_other(path: Path, place: str, sha256: str | None) -> None:
    size = regular(path, place).st_size
    with faults(place):
        found = sha256_of_span(path, 0, size)
    if found != sha256:
        raise _changed(place, f"sha256 {found}", f"sha256 {sha256}")


def _changed(place: str, found: str, allowed: str) -> ContainerError:
    return ContainerError(
        "the file changed since it was patched, and undoing would lose that",
        place=place,
        found=found,
        allowed=allowed,
        fix="Put the patched file back, or get the pack again.",
    )


def _sweep(root: Path, folder: Path) -> bool:
    """Remove what a killed run left without a journal; whether there was anything."""
    with faults(FOLDER):
        names = {path.name for path in folder.iterdir()}
        found = False
        for name in names:
            stray = _STRAY.fullmatch(name)
            if name == DRAFT or (stray and f"{stray[1]}.json" not in names):
                remove(folder / name)
                found = True
        # Not empty: earlier patches can still be undone.
        with suppress(OSError):
            folder.rmdir()
            sync_folder(root)
            found = True
    return found


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | _NO_LINK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _parts(descriptor: int, offset: int, length: int) -> Iterator[bytes]:
    """The bytes of a span, in chunks; fewer where the file ends."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    while length and (part := os.read(descriptor, min(length, CHUNK))):
        yield part
        length -= len(part)
