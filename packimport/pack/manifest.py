"""Manifest: `packimport.json`, what a written container holds and how it came to be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from packimport.pack.container import Container
from packimport.pack.digests import sha256_of_files
from packimport.pack.documents import Document, read_json
from packimport.pack.edits import Edit, merged
from packimport.pack.progress import OnProgress

MANIFEST = "packimport.json"
SCHEMA_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")

# A record of a file takes about 200 bytes; this is room for far more files
# than `listing.MAX_FILES`.
_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """One file: its name in the container, its bytes, their sha256 as lower-case hex."""

    name: str
    size: int
    sha256: str


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
class Manifest:
    """What `packimport.json` says.

    tool_version:     of the packimport that wrote it.
    container_format: of the container that it lies in: "folder".
    source:           what was patched, a JSON object; it has "path" and "format".
    files:            every file but `packimport.json`, sorted by name.
    edits:            every replaced span, sorted by file and offset.
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
            "files": [asdict(file) for file in self.files],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """How the files of a container differ from its manifest; names, sorted."""

    extra: tuple[str, ...]
    missing: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not (self.extra or self.missing or self.changed)


def edit_records(edits: Iterable[Edit]) -> tuple[EditRecord, ...]:
    """The edits as the manifest keeps them: without their bytes, merged and in order."""
    return tuple(
        EditRecord(
            file=edit.file,
            offset=edit.offset,
            length=edit.length,
            old_sha256=edit.old_sha256,
            new_sha256=edit.new_sha256,
            reason=edit.reason,
        )
        for edit in merged(edits)
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


def verify(
    container: Container, manifest: Manifest, on_progress: OnProgress | None = None
) -> Verification:
    """The files of `container` held against `manifest`; files of equal size are hashed."""
    recorded = {file.name: file for file in manifest.files}
    found = set(container.files) - {MANIFEST}
    same_size = [
        name
        for name in sorted(found & recorded.keys())
        if container.size(name) == recorded[name].size
    ]
    digests = sha256_of_files(container, same_size, on_progress)
    good = {name for name, digest in digests.items() if digest == recorded[name].sha256}
    return Verification(
        extra=tuple(sorted(found - recorded.keys())),
        missing=tuple(sorted(recorded.keys() - found)),
        changed=tuple(sorted((found & recorded.keys()) - good)),
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
    return Manifest(
        tool_version=tool.require("version").text(),
        container_format=document.require("container").require("format").text(),
        source=_object(document.require("source")),
        files=files,
        edits=tuple(_edit_record(item) for item in document.require("edits").items()),
        semantics=_object_or_none(document, "semantics"),
        declaration=_object_or_none(document, "declaration"),
    )


def _file_record(document: Document) -> FileRecord:
    return FileRecord(
        name=document.require("name").text(),
        size=document.require("size").integer(0),
        sha256=_digest(document.require("sha256")),
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
