"""FileView: a file of a container as one long run of bytes that are read when asked for."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.pack.container import Container


class FileView:
    """The bytes of a file; every slice is read anew and held to the listing.

    Raises ContainerError, when sliced, where the file is missing or changed.
    """

    def __init__(self, container: Container, name: str) -> None:
        self._container = container
        self._name = name
        self._size = container.size(name)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> memoryview:
        start, stop, step = where.indices(self._size)
        assert step == 1
        return self._container.span(self._name, start, max(0, stop - start))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes start .. stop of a file, read when asked for."""

    view: FileView
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self) -> memoryview:
        """The bytes. Raises ContainerError where the file changed."""
        return self.view[self.start : self.stop]
