"""Work: what a patch in place writes, by file, and what the manifest then says of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packimport.pack.additions import (
    Addition,
    Change,
    Piece,
    Replacement,
    additions_by_file,
    data_of,
    of_kind,
    replacements_by_file,
)
from packimport.pack.container import Container, changed_error
from packimport.pack.digests import sha256_of_files
from packimport.pack.edits import Edit, by_file
from packimport.pack.manifest import MANIFEST, FileRecord, read_manifest


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be written: by file, in the order of the offsets."""

    spans: Mapping[str, tuple[Edit, ...]]
    added: Mapping[str, tuple[Addition, ...]]
    files: Mapping[str, tuple[Piece, ...]]

    @property
    def edited(self) -> list[str]:
        """The files that keep their place on the disk, sorted."""
        return sorted({*self.spans, *self.added})

    def new_size(self, name: str, size: int) -> int:
        """Bytes of an edited file of `size` bytes once its additions stand."""
        added = self.added.get(name, ())
        return added[-1].end if added else size


def work_of(container: Container, changes: tuple[Change, ...], files: Mapping[str, bytes]) -> Work:
    """The work that `changes` and the whole `files` are.

    Raises ContainerError for changes that overlap, lie outside their file, are of a
    file in two ways, or replace another file than they were made for.
    """
    sizes = {name: container.size(name) for name in container.files}
    spans = by_file(of_kind(changes, Edit), sizes)
    added = additions_by_file(of_kind(changes, Addition), sizes)
    remade = replacements_by_file(of_kind(changes, Replacement), sizes, {*spans, *added, *files})
    for name, replacement in remade.items():
        if old_sha256(container, name) != replacement.old_sha256:
            raise changed_error((name,))
    return Work(
        spans=spans,
        added=added,
        files={
            **{name: (data,) for name, data in files.items()},
            **{name: replacement.pieces for name, replacement in remade.items()},
        },
    )


def records_of(container: Container, work: Work) -> tuple[FileRecord, ...]:
    """A record of each file, without a hash where that would take reading the weights.

    What an earlier manifest says of a file that is not changed now still counts.
    """
    earlier = read_manifest(container)
    known = {file.name: file for file in earlier.files} if earlier else {}
    records = [_record(name, pieces) for name, pieces in work.files.items()]
    for name in container.files:
        if name in work.files or name == MANIFEST:
            continue
        size = work.new_size(name, container.size(name))
        record = FileRecord(name=name, size=size, sha256=None)
        if name not in work.edited and name in known and known[name].size == size:
            record = known[name]
        records.append(record)
    return tuple(sorted(records, key=lambda record: record.name))


def _record(name: str, pieces: Sequence[Piece]) -> FileRecord:
    return FileRecord(name=name, size=sum(map(len, pieces)), sha256=new_sha256(pieces))


def new_sha256(pieces: Sequence[Piece]) -> str:
    """sha256 of a file made of `pieces`, as lower-case hex."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(data_of(piece))
    return digest.hexdigest()


def old_sha256(container: Container, name: str) -> str:
    """sha256 of a file as it is, as lower-case hex."""
    return sha256_of_files(container, (name,))[name]
