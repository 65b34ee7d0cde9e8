"""Pointers: what Git leaves in place of a file that its LFS did not fetch."""

from __future__ import annotations

from packimport.pack.container import LFS_POINTER, LFS_POINTER_SIZE, Container

# Its second line is a sha256, its third a size.
_LEAST = 120


def pointers(container: Container) -> tuple[str, ...]:
    """The names of all files that are pointers of Git LFS. Reads the small files alone."""
    return tuple(
        name
        for name, entry in container.entries.items()
        if _LEAST <= entry.stamp.size <= LFS_POINTER_SIZE and _is_pointer(container, name)
    )


def _is_pointer(container: Container, name: str) -> bool:
    with container.open(name) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER
