"""Member: a file or folder of an archive, before anything is believed of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from packimport.errors import ContainerError

CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Member:
    """One file or folder, as the archive has it.

    name:   unchecked: whatever the archive says.
    size:   bytes of the file that `chunks` yields, in pieces of at most CHUNK.
            They must be taken before the next member is asked for.
    """

    name: str
    is_folder: bool
    size: int
    chunks: Iterator[bytes] = field(repr=False)


def damaged(place: str, found: object) -> ContainerError:
    """The error for an archive that can't be followed any further."""
    return ContainerError(
        "no archive, or a damaged one", place=place, found=found, fix="Get the file again."
    )


def unsupported(place: str, what: str, fix: str | None = None) -> ContainerError:
    """The error for a member that no pack needs and that is not unpacked."""
    return ContainerError(
        f"{what} in an archive",
        place=place,
        allowed="plain files and folders",
        fix=fix or "Unpack it yourself, if you trust it, and pass the folder.",
    )
