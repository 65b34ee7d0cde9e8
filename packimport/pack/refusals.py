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
    """Raise ContainerError where a listed folder is no pack, or holds packs or snapshots."""
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
    _refuse_many(listing, given)
    if "genai_config.json" not in listing.entries and not any(
        name.endswith(".onnx") for name in listing.entries
    ):
        raise ContainerError(
            "no pack: neither genai_config.json nor an .onnx file",
            place=str(given),
            found=", ".join(list(listing.entries)[:5]),
            fix="Pass the folder of a pack.",
        )


def _refuse_many(listing: Listing, given: Path) -> None:
    """Raise ContainerError for a folder above packs, as a repository with one for each device."""
    files = [PurePosixPath(name) for name in listing.entries]
    top = [file.name for file in files if len(file.parts) == 1]
    packs = sorted(str(f.parent) for f in files if f.name == "genai_config.json")
    if packs and "genai_config.json" not in top and not any(n.endswith(".onnx") for n in top):
        others = f" and {len(packs) - 5} more" if len(packs) > 5 else ""
        raise ContainerError(
            "no pack, but a folder of packs: each has a genai_config.json of its own",
            place=str(given),
            found=", ".join(packs[:5]) + others,
            fix=f"Pass one of them, such as {given / packs[0]}"
            if given.is_dir()
            else f"Unpack it, and pass one of its folders, such as {packs[0]}",
        )
