"""Stretch: positions that follow each other in two dumps, and their figures."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from forward.dump import Dump, Logits, Rows, Tokens
from forward.moments import Moments
from forward.npy import NpyRows
from forward.scores import blocks
from forward.statistics import ARRAYS, RowFigures, joined, row_figures

# Entries of a block, which are the same on every machine, and so are the figures; and of a
# stretch: so many that what it costs to hand it on is a small part.
_BLOCK = 1 << 20
_ENTRIES = 1 << 22
_LARGER = 31 << 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stretch:
    """What the figures of some positions need.

    reference, run: the logits of both dumps, [positions, vocab].
    row_x, row_y:   the rows of the first position there.
    first:          the first position.
    targets:        int64 [positions], the token that follows each, −1 where none does.
    alike:          whether both hold logits, or both log p.
    """

    reference: Rows
    run: Rows
    row_x: int
    row_y: int
    first: int
    targets: Tokens
    alike: bool

    def figures(self) -> RowFigures:
        """The figures, block by block. Raises DumpError where logits have no softmax."""
        # glibc maps arrays of a block's size anew each time, and the pages with them, until a
        # larger one was freed: a quarter of the whole time. Its memory is never touched.
        np.empty(_LARGER, np.uint8)
        height = max(1, _BLOCK // self.run.shape[1])
        found = joined([self._block(low, height) for low in range(0, len(self.targets), height)])
        return found if self.alike else found.apart()

    def _block(self, low: int, height: int) -> RowFigures:
        targets = self.targets[low : low + height]

        def rows(logits: Rows, first: int) -> Logits:
            return logits[first + low : first + low + len(targets)]

        x, y = rows(self.reference, self.row_x), rows(self.run, self.row_y)
        return row_figures(x, y, self.first + low, targets)

    def request(self) -> Mapping[str, object] | None:
        """As JSON, for another process; None where the logits lie in this one's memory."""
        if not isinstance(self.reference, NpyRows) or not isinstance(self.run, NpyRows):
            return None
        return {
            **{name: getattr(self, name) for name in ("row_x", "row_y", "first", "alike")},
            "targets": self.targets.tolist(),
            "reference": _place(self.reference),
            "run": _place(self.run),
        }


def stretches(reference: Dump, run: Dump, at: Tokens) -> Iterator[Stretch]:
    """The positions `at`, int64 ascending, that both dumps have with all their logits."""
    for positions in blocks(at, max(1, _ENTRIES // run.vocab)):
        first = positions[0]
        yield Stretch(
            reference=reference.logits,
            run=run.logits,
            row_x=int(np.searchsorted(reference.where(), first)),
            row_y=int(np.searchsorted(run.where(), first)),
            first=int(first),
            targets=run.following(positions),
            alike=reference.normal == run.normal,
        )


def requested(request: Mapping[str, Any]) -> Stretch:
    """The stretch of a request."""
    given = dict(request)
    for name in ("reference", "run"):
        path, shape, offset, dtype = given[name]
        given[name] = NpyRows(Path(path), tuple(shape), offset, dtype)
    return Stretch(**{**given, "targets": np.array(given["targets"], np.int64)})


def _place(rows: NpyRows) -> list[object]:
    return [str(rows.path.absolute()), rows.shape, rows.offset, rows.dtype]


_MOMENTS = tuple(field.name for field in fields(Moments))


def to_bytes(figures: RowFigures) -> bytes:
    """Figures as .npy files that follow each other; the last one holds the moments."""
    file = io.BytesIO()
    for name in ARRAYS:
        np.save(file, getattr(figures, name))
    np.save(file, np.array([getattr(figures.moments, name) for name in _MOMENTS], np.float64))
    return file.getvalue()


def from_bytes(data: bytes) -> RowFigures:
    """Figures of `to_bytes`; raises ValueError or EOFError where the data is cut."""
    file = io.BytesIO(data)
    arrays = {name: np.load(file, allow_pickle=False) for name in ARRAYS}
    count, *others = np.load(file, allow_pickle=False).tolist()
    moments = Moments(count=int(count), **dict(zip(_MOMENTS[1:], others, strict=True)))
    return RowFigures(moments=moments, **arrays)
