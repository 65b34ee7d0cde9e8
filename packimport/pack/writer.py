"""Writer: a container and its edits become a new container.

Everything is made in a workshop beside the output, brought onto the disk, and
renamed: a crash at any moment leaves no output or the whole of it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from packimport.errors import ContainerError
from packimport.pack.additions import (
    Addition,
    Change,
    Replacement,
    additions_by_file,
    of_kind,
    replacements_by_file,
)
from packimport.pack.container import SNAPSHOT, Container, changed_error
from packimport.pack.copying import copy_file, replace_file, write_file
from packimport.pack.documents import json_text
from packimport.pack.durable import sync_folder
from packimport.pack.edits import Edit, by_file
from packimport.pack.faults import faults
from packimport.pack.manifest import MANIFEST, FileRecord, Manifest
from packimport.pack.names import folded, location_refusal
from packimport.pack.progress import OnProgress, Progress, run
from packimport.pack.signals import ended_by_signals, interruptible
from packimport.pack.workshop import workshop

# On Windows a virus scanner may have one of the new files open for a moment:
# ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION.
_IN_USE = frozenset({5, 32})
_RENAME_TRIES = 20
_RENAME_SECONDS = 0.25

MakeManifest = Callable[[tuple[FileRecord, ...]], Manifest]


def write_container(
    container: Container,
    out: str | os.PathLike[str],
    edits: Iterable[Change],
    extra_files: Mapping[str, bytes],
    make_manifest: MakeManifest,
    *,
    inspect: Callable[[Path], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """A new folder `out`: the files of `container`, edited, and its manifest.

    Only what `edits` name differs: spans replaced in place, spans added behind the end
    of a file, and files replaced whole. Every file is a real file with one link;
    times and permission bits are kept; a `packimport.json` of the source is
    replaced. Nothing is written into `container`.

    extra_files:   files that the container lacks, by name.
    make_manifest: given a record of every file but `packimport.json`, sorted by
                   name, returns the manifest to be written.
    inspect:       called with the folder once it is complete and before it gets its
                   name; where it raises, no `out` appears.
    on_progress:   called in this thread with bytes done and bytes in all.

    Raises ContainerError, and leaves no `out`, where `out` exists, lies inside
    the container or has no parent folder; for edits that overlap, lie outside
    their file or were made for other bytes; for a file that is changed in two ways;
    where a file changed since the container was opened; and where the disk is full or
    refuses.
    """
    target = Path(out)
    kept = tuple(name for name in container.files if name != MANIFEST)
    copies = _Copies(container, kept, tuple(edits))
    refuse_extra(container, extra_files)
    refuse_out(container, target)
    _refuse_changed(container)
    with ended_by_signals(), faults(str(target)), workshop(target.parent) as pack:
        with interruptible():
            folders = _make_folders(pack, container, extra_files)
            records = copies.write(pack, on_progress)
            records += [write_file(name, pack / name, data) for name, data in extra_files.items()]
            manifest = make_manifest(tuple(sorted(records, key=lambda record: record.name)))
            text = json_text(manifest.to_dict())
            write_file(MANIFEST, pack / MANIFEST, text.encode("utf-8"))
            _keep_modes(container, pack, kept)
            _refuse_changed(container)
            for folder in reversed(folders):
                sync_folder(folder)
            if inspect is not None:
                inspect(pack)
        _publish(pack, target)
    return manifest


class _Copies:
    """The files of a container, edited, for another folder.

    Raises ContainerError for changes that do not fit the files or each other.
    """

    def __init__(
        self, container: Container, names: Sequence[str], changes: Sequence[Change]
    ) -> None:
        self._container = container
        sizes = {name: container.size(name) for name in names}
        self._edits = by_file(of_kind(changes, Edit), sizes)
        self._added = additions_by_file(of_kind(changes, Addition), sizes)
        others = {*self._edits, *self._added}
        self._remade = replacements_by_file(of_kind(changes, Replacement), sizes, others)
        self._total = (
            sum(sizes.values())
            + sum(added[-1].end - added[-1].old_size for added in self._added.values())
            + sum(new.size for new in self._remade.values())
        )
        # The largest first, so that no thread is left alone with it at the end.
        self._order = sorted(names, key=container.size, reverse=True)

    def write(self, pack: Path, on_progress: OnProgress | None) -> list[FileRecord]:
        """Write them into `pack`, whose folders are there."""
        progress = Progress(self._total)

        def copy(name: str) -> FileRecord:
            source, target = self._container, pack / name
            if name in self._remade:
                return replace_file(source, self._remade[name], target, progress)
            edits, added = self._edits.get(name, ()), self._added.get(name, ())
            return copy_file(source, name, target, edits, progress, additions=added)

        return run(copy, self._order, progress, on_progress)


def refuse_extra(container: Container, extra_files: Mapping[str, bytes]) -> None:
    """Raise ContainerError where a file to be added has no fit name, or one that is taken."""
    taken = {folded(name) for name in (*container.files, *container.folders, MANIFEST)}
    for name in extra_files:
        why = location_refusal(name)
        if why is None and folded(name) in taken:
            why = "is taken in the pack"
        if why is not None:
            raise ContainerError(f"the name of a file to be added {why}", place=name)


def refuse_out(container: Container, out: Path) -> None:
    """Raise ContainerError where `out` lies in the container, and as `refuse_taken` does."""
    refuse_taken(out)
    place = str(out)
    with faults(place):
        parent = Path(os.path.realpath(out.parent))
    cache = container.root.parent.parent if container.format == SNAPSHOT else container.root
    if parent.is_relative_to(cache):
        raise ContainerError(
            "the output lies inside the pack", place=place, fix="Write to another path."
        )


def refuse_taken(out: Path) -> None:
    """Raise ContainerError where `out` exists or has no parent folder."""
    place = str(out)
    if os.path.lexists(out):
        raise ContainerError(
            "the output exists", place=place, fix="Remove it, or write to another path."
        )
    with faults(place):
        if not out.name or not out.parent.is_dir():
            raise ContainerError(
                "the folder for the output does not exist", place=str(out.parent), fix="Make it."
            )


def _refuse_changed(container: Container) -> None:
    if changed := container.changed():
        raise changed_error(changed)


def _make_folders(
    pack: Path, container: Container, extra_files: Mapping[str, bytes]
) -> tuple[Path, ...]:
    """Make every folder of the new container; returns them, each after its parent."""
    names = set(container.folders)
    for name in extra_files:
        names.update(parent.as_posix() for parent in PurePosixPath(name).parents)
    folders = (pack, *(pack / name for name in sorted(names - {"."})))
    for folder in folders:
        folder.mkdir()
    return folders


def _keep_modes(container: Container, pack: Path, names: Iterable[str]) -> None:
    """Give each copy the times and the permission bits of its source.

    The copy is the user's own, who must be able to read it; bits that let a
    program run as another user are dropped.
    """
    for name in names:
        info = container.entries[name].path.stat()
        path = pack / name
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        path.chmod(stat.S_IMODE(info.st_mode) & 0o777 | stat.S_IRUSR)


def _publish(pack: Path, out: Path) -> None:
    """Give the complete folder its name."""
    _refuse_another(out)
    for left in reversed(range(_RENAME_TRIES)):
        try:
            pack.rename(out)
            break
        except OSError as error:
            _refuse_another(out)
            if not left or getattr(error, "winerror", None) not in _IN_USE:
                raise
            time.sleep(_RENAME_SECONDS)
    sync_folder(out.parent)


def _refuse_another(out: Path) -> None:
    if os.path.lexists(out):
        raise ContainerError(
            "the output was made by another program meanwhile",
            place=str(out),
            fix="Write to another path.",
        )
