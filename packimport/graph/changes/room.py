"""Room: new spans at the end of a pack's data files."""

from __future__ import annotations

from packimport.pack.additions import Addition
from packimport.pack.container import Container

# onnxruntime maps large spans into memory, which needs an offset that is a multiple of
# the system's granularity: 64 KiB on Windows, a page elsewhere. Small spans are aligned
# for vector instructions. Exporters that use onnx-ir keep the same rule.
_LARGE, _GRANULARITY, _VECTOR = 1 << 20, 64 << 10, 64


class Room:
    """Hands out spans behind the end of each file; the files themselves are not touched."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._ends: dict[str, int] = {}
        self._added: dict[tuple[str, bytes], Addition] = {}

    def add(self, file: str, values: bytes, reason: str) -> int:
        """The offset at which `values` will lie in `file`; the same values lie there once."""
        known = self._added.get((file, values))
        if known is None:
            size = self._container.size(file)
            step = _GRANULARITY if len(values) >= _LARGE else _VECTOR
            offset = -(-self._ends.get(file, size) // step) * step
            known = Addition(file=file, old_size=size, offset=offset, new=values, reason=reason)
            self._added[file, values] = known
            self._ends[file] = known.end
        return known.offset

    @property
    def additions(self) -> tuple[Addition, ...]:
        """Every span that was handed out."""
        return tuple(self._added.values())
