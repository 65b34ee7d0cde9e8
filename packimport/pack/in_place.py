"""In place: the changes of a pack, made in its own files.

The order of the steps, each on the disk (fsync) before the next:

1. `.packimport/NNNN.bin`, the old bytes, and `NNNN.new.K`, every new file;
2. `journal.json`, complete under another name, then by a rename: from here on the
   pack is unfinished;
3. the spans, in their files;
4. every old file into `.packimport/`, every new one to its name, by renames;
5. `inspect`, which looks at the result;
6. `journal.json` becomes `NNNN.json`: the patch is complete, and can be undone.

Room on the disk is taken in steps 1 and 2, while the pack is untouched. A failure in
steps 3 to 5 restores the pack; a crash there leaves `journal.json`, and the next
patch or undo restores it. What lies in `.packimport/` is said in module `journal`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from packimport.errors import ContainerError
from packimport.pack.additions import (
    Addition,
    Change,
)
from packimport.pack.container import FOLDER as FOLDER_FORMAT
from packimport.pack.container import Container, changed_error
from packimport.pack.documents import json_text
from packimport.pack.durable import sync_folder, write_at
from packimport.pack.edits import Edit
from packimport.pack.faults import faults
from packimport.pack.journal import (
    FOLDER,
    UNFINISHED,
    Journal,
    next_number,
    record_name,
    regular,
)
from packimport.pack.listing import stamp_of
from packimport.pack.manifest import MANIFEST, FileRecord, Manifest
from packimport.pack.saving import begin
from packimport.pack.signals import ended_by_signals, interruptible
from packimport.pack.undo import restore
from packimport.pack.work import Work, records_of, work_of
from packimport.pack.writer import refuse_extra

_READ_WRITE = (
    os.O_RDWR
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)

MakeManifest = Callable[[tuple[FileRecord, ...], str], Manifest]


def write_in_place(
    container: Container,
    changes: Iterable[Change],
    extra_files: Mapping[str, bytes],
    make_manifest: MakeManifest,
    *,
    inspect: Callable[[], None],
) -> int:
    """Make `changes` in the files of `container` itself; returns the bytes written.

    extra_files:   files that the container lacks, by name.
    make_manifest: given a record of every file but `packimport.json`, sorted by name,
                   and the journal that takes the patch back, returns the manifest to
                   be written.
    inspect:       called when everything stands; where it raises, the pack is restored.

    The caller holds the lock of the pack and has recovered it. Raises
    ContainerError, with the pack as it was: for a pack that is no folder of its own
    files; for changes that overlap, lie outside their file or were made for other
    bytes; where a file changed since the container was opened; and where the disk
    is full or refuses.
    """
    refuse_extra(container, extra_files)
    number = next_number(container.root)
    work = work_of(container, tuple(changes), extra_files)
    manifest = make_manifest(records_of(container, work), f"{FOLDER}/{record_name(number)}")
    text = json_text(manifest.to_dict()).encode("utf-8")
    work = replace(work, files={**work.files, MANIFEST: (text,)})
    refuse_links(container, [*work.edited, *work.files])
    with ended_by_signals(), ExitStack() as stack:
        # Opened before anything is written: a file that can't be is refused in time.
        opened = {name: stack.enter_context(_writable(container, name)) for name in work.edited}
        journal, written = begin(container, work, number, manifest.tool_version)
        try:
            with interruptible():
                written += _write_spans(opened, work)
                # Windows may set the time of a file when its last handle closes.
                stack.close()
                _move_files(container, journal)
                inspect()
            _commit(container, journal)
        except BaseException as failure:
            stack.close()
            _take_back(container, journal, failure)
            raise
    return written


def refuse_links(container: Container, names: Sequence[str]) -> None:
    """Raise ContainerError where one of the files that are there is no file of the pack's own."""
    if container.format != FOLDER_FORMAT:
        raise ContainerError(
            f"a {container.format} is not changed in place",
            place=str(container.path),
            allowed="a folder with files of its own",
            fix="Write to another folder with -o.",
        )
    for name in names:
        if not container.has(name):
            continue
        if container.entries[name].path != container.root / name:
            raise ContainerError(
                "the file is reached by a link, and is not changed in place",
                place=name,
                fix="Write to another folder with -o.",
            )
        regular(container.root / name, name)


@contextmanager
def _writable(container: Container, name: str) -> Iterator[int]:
    with faults(name):
        descriptor = os.open(container.root / name, _READ_WRITE)
    try:
        if stamp_of(os.fstat(descriptor)) != container.entries[name].stamp:
            raise changed_error((name,))
        yield descriptor
    finally:
        os.close(descriptor)


def _write_spans(opened: Mapping[str, int], work: Work) -> int:
    """Step 3; the bytes written."""
    written = 0
    for name, descriptor in opened.items():
        with faults(name):
            changes: tuple[Edit | Addition, ...] = (
                *work.spans.get(name, ()),
                *work.added.get(name, ()),
            )
            for change in changes:
                write_at(descriptor, change.offset, change.new)
                written += len(change.new)
            os.fsync(descriptor)
    return written


def _move_files(container: Container, journal: Journal) -> None:
    """Step 4. The old file is away, on the disk, before the new one comes."""
    root, folder = container.root, container.root / FOLDER
    for index, whole in enumerate(journal.files):
        target = root / whole.name
        with faults(whole.name):
            if whole.old_sha256 is not None:
                target.rename(folder / journal.old(index))
                sync_folder(folder)
            # On Windows this refuses to replace a file; elsewhere look first.
            if os.path.lexists(target):
                raise changed_error((whole.name,))
            (folder / journal.new(index)).rename(target)
            sync_folder(target.parent)


def _commit(container: Container, journal: Journal) -> None:
    """Step 6."""
    folder = container.root / FOLDER
    with faults(FOLDER):
        (folder / UNFINISHED).rename(folder / journal.record)
        sync_folder(folder)


def _take_back(container: Container, journal: Journal, failure: BaseException) -> None:
    """Restore the pack after a failure. Where that fails too, the error says what to do."""
    root, folder = container.root, container.root / FOLDER
    try:
        if os.path.lexists(folder / UNFINISHED):
            restore(root, folder, journal)
    except ContainerError as error:
        raise ContainerError(
            f"the patch failed ({failure}), and so did putting the pack back: {error.message}",
            place=error.place,
            found=error.found,
            fix="Cure the cause, then run `packimport undo` on the pack before anything else.",
        ) from failure
