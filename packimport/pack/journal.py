"""Journal: what puts a pack back that is patched in place.

All of it lies in the hidden folder `.packimport/` of the pack, which is no part
of the pack. For the patch of number 1:

    0001.bin      the old bytes of every span, one after the other
    0001.old.K    the old file K, where a whole file is replaced; moved here by a rename
    0001.new.K    the new file K, until it is moved to its name
    journal.json  the journal, as long as the patch, or its undoing, is under way
    0001.json     the same file under this name, once the patch is complete

So the name says how things stand: with `journal.json` the pack may be a mixture,
and nothing but its restoring may be done to it; with `0001.json` alone it is
patched, and can be taken back. A later patch adds number 2, and so on.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from packimport.errors import ContainerError, DocumentError
from packimport.pack.documents import Document, json_text, load_json
from packimport.pack.faults import faults
from packimport.pack.names import location_refusal

FOLDER = ".packimport"
UNFINISHED = "journal.json"
DRAFT = "journal.tmp"
SCHEMA_VERSION = 1
MAX_NUMBER = 9999

_RECORD = re.compile(r"([0-9]{4})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Nanoseconds since 1970 as the disk keeps them, before 1970 as well.
_TIMES = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Replaced bytes of a file; the old ones follow in `NNNN.bin` those of the span before."""

    file: str
    offset: int
    length: int
    old_sha256: str
    new_sha256: str

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


@dataclass(frozen=True, kw_only=True, slots=True)
class EditedFile:
    """A file that has spans: its size before and after, and its time before."""

    name: str
    size: int
    new_size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeFile:
    """A file that was added, or replaced as a whole.

    old_sha256: None where there was no such file.
    """

    name: str
    old_sha256: str | None
    new_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """What one patch in place changes.

    number:      counts the patches of this pack, from 1.
    mtime_ns:    of the pack's folder.
    data_sha256: of `NNNN.bin`.
    """

    tool_version: str
    number: int
    mtime_ns: int
    data_sha256: str
    spans: tuple[Span, ...]
    edited: tuple[EditedFile, ...]
    files: tuple[WholeFile, ...]

    @property
    def record(self) -> str:
        """The name of the journal once the patch is complete."""
        return record_name(self.number)

    @property
    def data(self) -> str:
        """The name of the file of old bytes."""
        return f"{self.number:04}.bin"

    def old(self, index: int) -> str:
        """The name under which the old one of `files[index]` is kept."""
        return f"{self.number:04}.old.{index}"

    def new(self, index: int) -> str:
        """The name under which the new one of `files[index]` waits."""
        return f"{self.number:04}.new.{index}"

    def text(self) -> str:
        """The JSON of schemas/journal.schema.json; "checksum" is of all that precedes it."""
        body = {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "packimport", "version": self.tool_version},
            "number": self.number,
            "mtime_ns": self.mtime_ns,
            "data_sha256": self.data_sha256,
            "spans": [asdict(span) for span in self.spans],
            "edited": [asdict(file) for file in self.edited],
            "files": [asdict(file) for file in self.files],
        }
        return json_text({**body, "checksum": _checksum(body)})


def undo_folder(root: Path) -> Path | None:
    """The folder of the journals of the pack in `root`; None where there is none.

    Raises ContainerError where something else has its name: it may come from a stranger.
    """
    folder = root / FOLDER
    with faults(FOLDER):
        try:
            info = folder.lstat()
        except FileNotFoundError:
            return None
    if not stat.S_ISDIR(info.st_mode) or os.path.realpath(folder) != str(folder):
        raise ContainerError("no folder of packimport's own", place=FOLDER, fix="Remove it.")
    return folder


def refuse_unfinished(root: Path) -> None:
    """Raise ContainerError where a patch in place of the pack, or an undo, did not end."""
    folder = undo_folder(root)
    if folder is not None and os.path.lexists(folder / UNFINISHED):
        raise ContainerError(
            "a patch in place did not end, and the pack may be half patched",
            place=f"{FOLDER}/{UNFINISHED}",
            fix="Unless packimport is at work on it now, run `packimport undo` on the pack.",
        )


def numbers(folder: Path) -> list[int]:
    """The numbers of the complete patches, in order."""
    found = (_RECORD.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def next_number(root: Path) -> int:
    """The number of the next patch. Raises ContainerError where there were too many."""
    folder = undo_folder(root)
    done = [] if folder is None else numbers(folder)
    number = done[-1] + 1 if done else 1
    if number > MAX_NUMBER:
        raise ContainerError("too many patches in place", place=FOLDER, fix="Write with -o.")
    return number


def record_name(number: int) -> str:
    """The name of the journal of a complete patch."""
    return f"{number:04}.json"


def read_journal(folder: Path, name: str) -> Journal:
    """The journal of that file name.

    Raises DocumentError where it is damaged or not valid, ContainerError where it
    names what no journal may.
    """
    place = f"{FOLDER}/{name}"
    regular(folder / name, place)
    document = Document(place, load_json(folder / name, place))
    version = document.require("schema_version").integer(1)
    if version > SCHEMA_VERSION:
        raise document.require("schema_version").error(
            "the journal was written by a later packimport",
            allowed=f"up to {SCHEMA_VERSION}",
            fix="Update packimport.",
        )
    body = {key: field.value for key, field in document.fields().items()}
    if body.pop("checksum", None) != _checksum(body):
        raise DocumentError(
            "the journal is damaged: its checksum does not fit",
            place=place,
            fix="Get the pack again.",
        )
    journal = _journal(document)
    _refuse_inconsistent(journal, document)
    return journal


def regular(path: Path, place: str) -> os.stat_result:
    """What `path` is. Raises ContainerError unless it is a real file with one link."""
    with faults(place):
        info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        raise ContainerError(
            "a link or no file at all, which is not changed in place",
            place=place,
            fix="Write to another folder with -o.",
        )
    if info.st_nlink > 1:
        raise ContainerError(
            "the file has other names, and what they name would change as well",
            place=place,
            found=f"{info.st_nlink} hard links",
            allowed="1",
            fix="Write to another folder with -o.",
        )
    return info


def _journal(document: Document) -> Journal:
    return Journal(
        tool_version=document.require("tool").require("version").text(),
        number=document.require("number").integer(1, MAX_NUMBER),
        mtime_ns=document.require("mtime_ns").integer(*_TIMES),
        data_sha256=_digest(document.require("data_sha256")),
        spans=tuple(
            Span(
                file=_name(item.require("file")),
                offset=item.require("offset").integer(0),
                length=item.require("length").integer(1),
                old_sha256=_digest(item.require("old_sha256")),
                new_sha256=_digest(item.require("new_sha256")),
            )
            for item in document.require("spans").items()
        ),
        edited=tuple(
            EditedFile(
                name=_name(item.require("name")),
                size=item.require("size").integer(0),
                new_size=item.require("new_size").integer(0),
                mtime_ns=item.require("mtime_ns").integer(*_TIMES),
            )
            for item in document.require("edited").items()
        ),
        files=tuple(_whole_file(item) for item in document.require("files").items()),
    )


def _whole_file(item: Document) -> WholeFile:
    item.require("old_sha256")
    old = item.get("old_sha256")
    return WholeFile(
        name=_name(item.require("name")),
        old_sha256=None if old is None else _digest(old),
        new_sha256=_digest(item.require("new_sha256")),
    )


def _refuse_inconsistent(journal: Journal, document: Document) -> None:
    """No file twice, none that shrank, and every span inside a file that is listed."""
    sizes = {file.name: file.size for file in journal.edited}
    names = [*sizes, *(file.name for file in journal.files)]
    if len(set(names)) != len(journal.edited) + len(journal.files):
        raise document.require("files").error("a file is named twice", allowed="each file once")
    for item, file in zip(document.require("edited").items(), journal.edited, strict=True):
        if file.size > file.new_size:
            raise item.error("the file was longer before: a patch shortens none")
    for item, span in zip(document.require("spans").items(), journal.spans, strict=True):
        if span.end > sizes.get(span.file, 0):
            raise item.error("the span is not inside a file that is listed")


def _name(document: Document) -> str:
    name = document.text()
    if (why := location_refusal(name)) or name.split("/")[0] == FOLDER:
        raise document.error(f"the name of a file {why or 'is taken'}")
    return name


def _digest(document: Document) -> str:
    text = document.text()
    if not _SHA256.fullmatch(text):
        raise document.error("no sha256", allowed="64 digits of 0 to 9 and a to f")
    return text


def _checksum(body: dict[str, object]) -> str:
    return hashlib.sha256(json_text(body).encode("utf-8")).hexdigest()
