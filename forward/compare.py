"""Compare: two dumps of the same tokens ─▶ Comparison, block by block."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from forward.comparison import Comparison, Figures
from forward.dump import Dump
from forward.statistics import Moments, RowFigures, row_figures
from packimport.errors import DumpError

# Entries of a block. In float64 that is 4 MB, so that the passes over it stay near
# the cache; the blocks are the same on every machine, and so are the figures.
_BLOCK = 1 << 19


def compare(reference: Dump, run: Dump) -> Comparison:
    """The figures of `run` against `reference`.

    Memory is a few blocks, whatever the size of the dumps.
    Raises DumpError where tokens or vocabularies differ, or logits have no softmax.
    """
    _check_same(reference, run)
    height = max(1, _BLOCK // run.vocab)
    starts = range(0, run.positions, height)

    def block(start: int) -> RowFigures:
        rows = slice(start, min(start + height, run.positions))
        return row_figures(reference.logits[rows], run.logits[rows], start)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        blocks = list(pool.map(block, starts))
    rows = _joined(blocks)
    return Comparison(
        reference=reference.name,
        run=run.name,
        vocab=run.vocab,
        overall=_figures("all", rows, 0, run.positions),
        buckets=tuple(
            _figures(f"{start}-{stop - 1}", rows, start, min(stop, run.positions))
            for start, stop in _buckets(run.positions)
        ),
        phases=_phases(rows, run),
        correlation=rows.moments.correlation,
    )


def _check_same(reference: Dump, run: Dump) -> None:
    if reference.vocab != run.vocab:
        raise DumpError(
            "the dumps have vocabularies of different sizes",
            place=run.name,
            found=run.vocab,
            allowed=f"{reference.vocab}, as in {reference.name}",
            fix="Compare runs of the same model.",
        )
    fix = "Make both dumps with the same --tokens FILE; tokens.npy of a dump is one."
    if len(reference.tokens) != len(run.tokens):
        raise DumpError(
            "the dumps are of different tokens",
            place=run.name,
            found=f"{len(run.tokens)} tokens",
            allowed=f"{len(reference.tokens)}, as in {reference.name}",
            fix=fix,
        )
    unequal = np.flatnonzero(reference.tokens != run.tokens)
    if unequal.size:
        position = int(unequal[0])
        raise DumpError(
            f"the dumps are of different tokens from position {position} on",
            place=run.name,
            found=int(run.tokens[position]),
            allowed=f"{int(reference.tokens[position])}, as in {reference.name}",
            fix=fix,
        )


def _joined(blocks: list[RowFigures]) -> RowFigures:
    return RowFigures(
        kl=np.concatenate([b.kl for b in blocks]),
        same_top1=np.concatenate([b.same_top1 for b in blocks]),
        difference=np.concatenate([b.difference for b in blocks]),
        token=np.concatenate([b.token for b in blocks]),
        moments=sum((b.moments for b in blocks), Moments()),
    )


def _buckets(positions: int) -> Iterator[tuple[int, int]]:
    """0-127, 128-511, 512-1023, then doubling: RoPE faults grow with the position."""
    start, stop = 0, 128
    while start < positions:
        yield start, stop
        start, stop = stop, 512 if stop == 128 else 2 * stop


def _phases(rows: RowFigures, run: Dump) -> tuple[Figures, ...]:
    if not 0 < run.prefill < run.positions:
        return ()
    return (
        _figures("prefill", rows, 0, run.prefill),
        _figures("decode", rows, run.prefill, run.positions),
    )


def _figures(name: str, rows: RowFigures, start: int, stop: int) -> Figures:
    kl = rows.kl[start:stop]
    ordered = np.sort(kl)
    worst, farthest = int(kl.argmax()), int(rows.difference[start:stop].argmax())
    return Figures(
        name=name,
        start=start,
        stop=stop,
        kl_mean=float(kl.mean()),
        kl_median=quantile(ordered, 0.5),
        kl_p99=quantile(ordered, 0.99),
        kl_max=float(kl[worst]),
        kl_max_position=start + worst,
        same_top1=float(rows.same_top1[start:stop].mean()),
        max_difference=float(rows.difference[start + farthest]),
        max_difference_position=start + farthest,
        max_difference_token=int(rows.token[start + farthest]),
    )


def quantile(ordered: npt.NDArray[np.float64], share: float) -> float:
    """The quantile of ascending numbers, interpolated linearly; inf is a number, too."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    part = place - low
    if part == 0.0 or math.isinf(ordered[low]):
        return float(ordered[low])
    return float(ordered[low] + part * (ordered[low + 1] - ordered[low]))
