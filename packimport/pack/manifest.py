"""Manifest: `packimport.json`, what a written container holds and how it came to be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from packimport.pack.additions import Addition, Change, Replacement, of_kind
from packimport.pack.container import Container
from packimport.pack.documents import Document, read_json
from packimport.pack.edits import Edit, merged

MANIFEST = "packimport.json"
# 1 had no additions, replacements, graph changes and undo, and hashed every file.
SCHEMA_VERSION = 2
_SHA256 = re.compile(r"[0-9a-f]{64}")

# A record of a file takes about 200 bytes; this is room for far more files
# than `listing.MAX_FILES`.
_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """One file: its name in the container, its bytes, their sha256 as lower-case hex.

    sha256: None for a file that a patch in place changed or did not read.
    """

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EditRecord:
    """One replaced span: where, why, and sha256 of the bytes before and after."""

    file: str
    offset: int
    length: int
    old_sha256: str
    new_sha256: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdditionRecord:
    """One span added behind the end of a file of `old_size` bytes: where, what and why."""

    file: str
    old_size: int
    offset: int
    length: int
    sha256: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplacementRecord:
    """One file made anew: what it was; `files` has what it is."""

    file: str
    old_size: int
    old_sha256: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphChangeRecord:
    """One change of a graph: where (a node or tensor of `graph`), what, why."""

    graph: str
    where: str
    change: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What `packimport.json` says.

    tool_version:     of the packimport that wrote it.
    container_format: of the container that it lies in: "folder".
    source:           what was patched, a JSON object; it has "path" and "format".
    files:            every file but `packimport.json`, sorted by name.
    edits:            every replaced span, sorted by file and offset.
    additions:        every span added behind the end of a file, sorted likewise.
    replacements:     every file made anew, sorted by name.
    graph_changes:    what else than table bytes was changed in graphs.
    undo:             the journal that takes a patch in place back; None where the
                      container was written anew.
    semantics:        what the model is, a JSON object, or None where nothing says.
    declaration:      the RoPE block that counts, a JSON object with "file", "origin"
                      and "config", or None.
    """

    tool_version: str
    container_format: str
    source: Mapping[str, object]
    files: tuple[FileRecord, ...]
    edits: tuple[EditRecord, ...]
    semantics: Mapping[str, object] | None
    declaration: Mapping[str, object] | None
    additions: tuple[AdditionRecord, ...] = ()
    replacements: tuple[ReplacementRecord, ...] = ()
    graph_changes: tuple[GraphChangeRecord, ...] = ()
    undo: str | None = None

    def to_dict(self) -> dict[str, object]:
        """The JSON object, in the order in which it is written."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "packimport", "version": self.tool_version},
            "container": {"format": self.container_format},
            "source": dict(self.source),
            "declaration": None if self.declaration is None else dict(self.declaration),
            "semantics": None if self.semantics is None else dict(self.semantics),
            "edits": [asdict(edit) for edit in self.edits],
            "additions": [asdict(addition) for addition in self.additions],
            "replacements": [asdict(replacement) for replacement in self.replacements],
            "graph_changes": [asdict(change) for change in self.graph_changes],
            "undo": self.undo,
            "files": [asdict(file) for file in self.files],
        }


def addition_records(changes: Iterable[Change]) -> tuple[AdditionRecord, ...]:
    """The additions among `changes` as the manifest keeps them, in order."""
    return tuple(
        AdditionRecord(
            file=addition.file,
            old_size=addition.old_size,
            offset=addition.offset,
            length=len(addition.new),
            sha256=addition.new_sha256,
            reason=addition.reason,
        )
        for addition in sorted(
            of_kind(changes, Addition), key=lambda addition: (addition.file, addition.offset)
        )
    )


def replacement_records(changes: Iterable[Change]) -> tuple[ReplacementRecord, ...]:
    """The replacements among `changes` as the manifest keeps them, in order."""
    return tuple(
        ReplacementRecord(
            file=replacement.file,
            old_size=replacement.old_size,
            old_sha256=replacement.old_sha256,
            reason=replacement.reason,
        )
        for replacement in sorted(of_kind(changes, Replacement), key=lambda item: item.file)
    )


def edit_records(edits: Iterable[Change]) -> tuple[EditRecord, ...]:
    """The edits among `edits` as the manifest keeps them: without their bytes, in order."""
    return tuple(
        EditRecord(
            file=edit.file,
            offset=edit.offset,
            length=edit.length,
            old_sha256=edit.old_sha256,
            new_sha256=edit.new_sha256,
            reason=edit.reason,
        )
        for edit in merged(of_kind(edits, Edit))
    )


def read_manifest(container: Container) -> Manifest | None:
    """The manifest of a container that packimport wrote; None where there is none.

    Raises DocumentError, with a JSON pointer, where it is no valid manifest or
    is of a later version.
    """
    if not container.has(MANIFEST):
        return None
    return _manifest(
        Document(MANIFEST, read_json(container.read_bytes(MANIFEST, _LIMIT), MANIFEST))
    )


def _manifest(document: Document) -> Manifest:
    version = document.require("schema_version").integer(1)
    if version > SCHEMA_VERSION:
        raise document.require("schema_version").error(
            "the manifest was written by a later packimport",
            allowed=f"up to {SCHEMA_VERSION}",
            fix="Update packimport.",
        )
    tool = document.require("tool")
    tool.require("name").text(("packimport",))
    files = tuple(_file_record(item) for item in document.require("files").items())
    if len({file.name for file in files}) != len(files):
        raise document.require("files").error("a file is named twice", allowed="each file once")
    manifest = Manifest(
        tool_version=tool.require("version").text(),
        container_format=document.require("container").require("format").text(),
        source=_object(document.require("source")),
        files=files,
        edits=tuple(_edit_record(item) for item in document.require("edits").items()),
        semantics=_object_or_none(document, "semantics"),
        declaration=_object_or_none(document, "declaration"),
    )
    if version == 1:
        return manifest
    document.require("undo")
    undo = document.get("undo")
    return replace(
        manifest,
        additions=tuple(map(_addition_record, document.require("additions").items())),
        replacements=tuple(map(_replacement_record, document.require("replacements").items())),
        graph_changes=tuple(map(_graph_change_record, document.require("graph_changes").items())),
        undo=None if undo is None else undo.text(),
    )


def _file_record(document: Document) -> FileRecord:
    document.require("sha256")
    sha256 = document.get("sha256")
    return FileRecord(
        name=document.require("name").text(),
        size=document.require("size").integer(0),
        sha256=None if sha256 is None else _digest(sha256),
    )


def _edit_record(document: Document) -> EditRecord:
    return EditRecord(
        file=document.require("file").text(),
        offset=document.require("offset").integer(0),
        length=document.require("length").integer(1),
        old_sha256=_digest(document.require("old_sha256")),
        new_sha256=_digest(document.require("new_sha256")),
        reason=document.require("reason").text(),
    )


def _addition_record(document: Document) -> AdditionRecord:
    return AdditionRecord(
        file=document.require("file").text(),
        old_size=document.require("old_size").integer(0),
        offset=document.require("offset").integer(0),
        length=document.require("length").integer(1),
        sha256=_digest(document.require("sha256")),
        reason=document.require("reason").text(),
    )


def _replacement_record(document: Document) -> ReplacementRecord:
    return ReplacementRecord(
        file=document.require("file").text(),
        old_size=document.require("old_size").integer(0),
        old_sha256=_digest(document.require("old_sha256")),
        reason=document.require("reason").text(),
    )


def _graph_change_record(document: Document) -> GraphChangeRecord:
    return GraphChangeRecord(
        graph=document.require("graph").text(),
        where=document.require("where").text(),
        change=document.require("change").text(),
        reason=document.require("reason").text(),
    )


def _digest(document: Document) -> str:
    text = document.text()
    if not _SHA256.fullmatch(text):
        raise document.error("no sha256", allowed="64 digits of 0 to 9 and a to f")
    return text


def _object(document: Document) -> dict[str, object]:
    return {key: field.value for key, field in document.fields().items()}


def _object_or_none(document: Document, key: str) -> dict[str, object] | None:
    document.require(key)
    found = document.get(key)
    return None if found is None else _object(found)
