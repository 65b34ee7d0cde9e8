"""Saving: what a patch in place keeps of the old pack, before it writes to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from packimport.errors import ContainerError
from packimport.pack.additions import (
    Piece,
    data_of,
)
from packimport.pack.container import Container
from packimport.pack.durable import sync_folder, write_new
from packimport.pack.edits import Edit
from packimport.pack.faults import faults
from packimport.pack.journal import (
    DRAFT,
    FOLDER,
    UNFINISHED,
    EditedFile,
    Journal,
    Span,
    WholeFile,
)
from packimport.pack.undo import recover
from packimport.pack.work import Work, new_sha256, old_sha256


def begin(container: Container, work: Work, number: int, tool_version: str) -> tuple[Journal, int]:
    """Steps 1 and 2 of `in_place`; the journal and the bytes written.

    Raises ContainerError, and leaves nothing, where the disk refuses, and where bytes
    to be replaced are not those that were checked.
    """
    root = container.root
    folder = root / FOLDER
    with faults(FOLDER):
        mtime_ns = root.stat().st_mtime_ns
        folder.mkdir(exist_ok=True)
        try:
            journal = _saved(container, work, number, mtime_ns, tool_version)
            text = journal.text().encode("utf-8")
            write_new(folder / DRAFT, (text,))
            sync_folder(folder)
            sync_folder(root)
            (folder / DRAFT).rename(folder / UNFINISHED)
            sync_folder(folder)
        except BaseException:
            with suppress(ContainerError, OSError):
                recover(root)
                os.utime(root, ns=(root.stat().st_atime_ns, mtime_ns))
            raise
    saved = sum(span.length for span in journal.spans)
    staged = sum(len(piece) for pieces in work.files.values() for piece in pieces)
    return journal, saved + staged + len(text)


def _saved(
    container: Container, work: Work, number: int, mtime_ns: int, tool_version: str
) -> Journal:
    """Step 1: the old bytes and the new files, and the journal of them."""
    root = container.root
    edits = [edit for name in work.edited for edit in work.spans.get(name, ())]
    data_sha256 = hashlib.sha256()

    def old_bytes() -> Iterator[memoryview]:
        for edit in edits:
            old = container.span(edit.file, edit.offset, edit.length)
            if (found := hashlib.sha256(old).hexdigest()) != edit.old_sha256:
                raise ContainerError(
                    "the bytes to be replaced are not those that were checked",
                    place=edit.file,
                    found=f"sha256 {found} of {edit.length} bytes at offset {edit.offset}",
                    allowed=f"sha256 {edit.old_sha256}",
                    fix="The file changed: check the pack again.",
                )
            data_sha256.update(old)
            yield old

    write_new(root / FOLDER / f"{number:04}.bin", old_bytes())
    journal = Journal(
        tool_version=tool_version,
        number=number,
        mtime_ns=mtime_ns,
        data_sha256=data_sha256.hexdigest(),
        spans=tuple(_span(edit) for edit in edits),
        edited=tuple(
            EditedFile(
                name=name,
                size=container.size(name),
                new_size=work.new_size(name, container.size(name)),
                mtime_ns=container.entries[name].stamp.mtime_ns,
            )
            for name in work.edited
        ),
        files=tuple(_whole_file(container, name, work.files[name]) for name in sorted(work.files)),
    )
    for index, whole in enumerate(journal.files):
        path = root / FOLDER / journal.new(index)
        write_new(path, map(data_of, work.files[whole.name]))
        if whole.old_sha256 is not None:
            path.chmod((root / whole.name).stat().st_mode & 0o777)
    return journal


def _span(edit: Edit) -> Span:
    return Span(
        file=edit.file,
        offset=edit.offset,
        length=edit.length,
        old_sha256=edit.old_sha256,
        new_sha256=edit.new_sha256,
    )


def _whole_file(container: Container, name: str, pieces: Sequence[Piece]) -> WholeFile:
    old = old_sha256(container, name) if container.has(name) else None
    return WholeFile(name=name, old_sha256=old, new_sha256=new_sha256(pieces))
