"""Listing: the files of a folder, found without leaving it.

Links are followed only to where the caller allows. What is found here is what
every later read is held to: a file that is not the same any more is refused.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from packimport.errors import ContainerError
from packimport.pack.faults import faults
from packimport.pack.journal import FOLDER
from packimport.pack.lock import LOCK_FILE
from packimport.pack.names import collision, refusal, unportable

# Real packs hold up to a few thousand files. The limits bound the work that a
# folder of links to folders can cause.
MAX_FILES = 100_000
MAX_DEPTH = 64

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


class Stamp(NamedTuple):
    """What tells that a file is still the one that was listed.

    inode: 0 on Windows, where the two ways to ask for it need not agree.
    """

    size: int
    mtime_ns: int
    inode: int


def stamp_of(info: os.stat_result) -> Stamp:
    """The Stamp in `info`."""
    return Stamp(info.st_size, info.st_mtime_ns, info.st_ino if os.name == "posix" else 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file: where it really lies, links followed, and its stamp."""

    path: Path
    stamp: Stamp


@dataclass(slots=True)
class Listing:
    """What `scan` found. Names are relative to the folder, with `/`.

    notes: what a user should know, one line each.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def scan(root: Path, areas: tuple[Path, ...]) -> Listing:
    """Every file and folder under `root`, sorted by name.

    root:  a real path: no link in it.
    areas: the real paths that links may lead into.

    Two things at the top are no part of a pack and left out: the journals of patches
    in place, and a `.git`, which holds every large file a second time.

    Raises ContainerError for a link that leaves `areas`, leads nowhere or
    loops, for what is neither file nor folder, for names that `names.refusal`
    refuses, and beyond MAX_FILES and MAX_DEPTH.
    """
    listing = Listing()
    todo: list[tuple[str, tuple[Path, ...]]] = [("", (root,))]
    while todo:
        prefix, way = todo.pop()
        for part in _parts(way[-1], prefix):
            name = prefix + part
            if name in (FOLDER, LOCK_FILE):
                continue
            if name == ".git":
                listing.notes.append(".git is no part of the pack and is left out")
                continue
            if why := unportable(part):
                listing.notes.append(f"{name}: Windows can't hold this name: it {why}")
            path, info = _followed(way[-1] / part, name, areas)
            if stat.S_ISDIR(info.st_mode):
                _refuse_loop(path, way, name)
                listing.folders.append(name)
                todo.append((f"{name}/", (*way, path)))
            else:
                listing.entries[name] = Entry(path, stamp_of(info))
            if len(listing.entries) + len(listing.folders) > MAX_FILES:
                raise ContainerError(
                    "the folder holds too many files",
                    place=str(root),
                    allowed=f"{MAX_FILES} files and folders",
                    fix="Pass the folder of one pack.",
                )
    listing.entries = dict(sorted(listing.entries.items()))
    listing.folders.sort()
    listing.notes.sort()
    return listing


def _parts(folder: Path, prefix: str) -> list[str]:
    """The names in `folder`, sorted, each one fit for a pack."""
    place = prefix.rstrip("/") or str(folder)
    with faults(place), os.scandir(folder) as found:
        parts = sorted(entry.name for entry in found)
    for part in parts:
        if why := refusal(part):
            raise ContainerError(
                f"the name {why}", place=_shown(prefix + part), fix="Rename or remove the file."
            )
    if pair := collision(parts):
        raise ContainerError(
            "two names differ only in case",
            place=place,
            found=" and ".join(pair),
            fix="Rename or remove one: many disks can't hold both.",
        )
    return parts


def _shown(name: str) -> str:
    """`name` fit to be printed: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _followed(path: Path, name: str, areas: tuple[Path, ...]) -> tuple[Path, os.stat_result]:
    """Where `path` really lies and what is there, or an error."""
    with faults(name):
        info = path.lstat()
        if stat.S_ISREG(info.st_mode):
            return path, info
        try:
            # Asked of folders too: a junction of Windows is no symlink to lstat.
            real = Path(os.path.realpath(path, strict=True))
        except FileNotFoundError as error:
            raise ContainerError(
                "the link leads nowhere",
                place=name,
                found=_target(path),
                fix="Download the pack again, to its end.",
            ) from error
        if not any(real.is_relative_to(area) for area in areas):
            raise ContainerError(
                "the link leaves the pack",
                place=name,
                found=_target(path),
                fix="Put the file itself in its place, if you trust it.",
            )
        info = real.stat()
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        kind = next((text for test, text in _KINDS if test(info.st_mode)), "no regular file")
        raise ContainerError(f"{kind} stands in place of a file", place=name, fix="Remove it.")
    return real, info


def _target(path: Path) -> str:
    """What a link says, for a message."""
    return _shown(str(path.readlink())) if path.is_symlink() else str(path)


def _refuse_loop(path: Path, way: tuple[Path, ...], name: str) -> None:
    if path in way:
        raise ContainerError(
            "the link leads back to a folder that holds it", place=name, fix="Remove the link."
        )
    if len(way) >= MAX_DEPTH:
        raise ContainerError(
            "folders are nested too deep", place=name, allowed=f"{MAX_DEPTH} levels"
        )
