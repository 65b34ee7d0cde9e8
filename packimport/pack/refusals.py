"""Refusals: what is given in place of a pack, and the cure."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from packimport.errors import ContainerError
from packimport.pack.listing import Listing

# What `archive.archive_format` does not know, or knows and this command does not unpack.
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".zst", ".tzst", ".xz", ".bz2", ".7z", ".rar")
_UNPACKED = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst")


def not_a_folder(given: Path) -> ContainerError:
    """The error for a file that was given in place of a pack's folder."""
    name = given.name.lower()
    if name.endswith(_ARCHIVES):
        fix = "Unpack it, and pass the folder."
        if name.endswith(_UNPACKED):
            fix = f"Run `packimport patch {given} -o OUT`, and pass OUT."
        return ContainerError(
            "an archive that is not unpacked here",
            place=str(given),
            allowed="check, show, verify and patch -o OUT of a .zip, .tar, .tar.gz or .tar.zst",
            fix=fix,
        )
    fix = f"Pass the folder that holds it: {given.parent}"
    return ContainerError("a pack is a folder, and this is a file", place=str(given), fix=fix)


def refuse_no_pack(listing: Listing, given: Path) -> None:
    """Raise ContainerError where a listed folder holds no pack, or more than one snapshot."""
    if not listing.entries:
        raise ContainerError(
            "the folder is empty", place=str(given), fix="Pass the folder of a pack."
        )
    if {"blobs", "snapshots"} <= set(listing.folders):
        revisions = [
            name for name in listing.folders if PurePosixPath(name).parent.name == "snapshots"
        ]
        raise ContainerError(
            "a whole hub cache, not one snapshot of it",
            place=str(given),
            found=", ".join(revisions),
            fix="Pass one of the snapshots.",
        )
    for name in listing.folders:
        if name == "genai_config.json" or name.endswith(".onnx"):
            raise ContainerError("a folder stands in place of a file", place=name)
    if "genai_config.json" not in listing.entries and not any(
        name.endswith(".onnx") for name in listing.entries
    ):
        raise ContainerError(
            "no pack: neither genai_config.json nor an .onnx file",
            place=str(given),
            found=", ".join(list(listing.entries)[:5]),
            fix="Pass the folder of a pack.",
        )
