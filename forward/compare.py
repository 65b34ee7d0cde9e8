"""Compare: two dumps of the same tokens ─▶ Comparison, block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from forward.comparison import Comparison
from forward.dump import Dump, Tokens, rows_at
from forward.figures import Figures, figures
from forward.prompt import check_tokens
from forward.scores import BLOCK, blocks
from forward.statistics import RowFigures, joined, row_figures
from forward.truncated import truncated_figures
from forward.worst import worst
from packimport.errors import DumpError

# Positions on each side of an edge of a table.
_NEAR = 16


def compare(
    reference: Dump, run: Dump, edges: Sequence[int] = (), worst_count: int = 0
) -> Comparison:
    """The figures of `run` against `reference`, at the positions that both have.

    edges: positions around which the figures are given; those of the run's dump count, too.
    worst_count: how many of the worst positions are listed.

    Memory is a few blocks, whatever the size of the dumps.
    Raises DumpError where tokens or vocabularies differ, or logits have no softmax.
    """
    check_same(reference, run)
    exact = reference.tops is None and run.tops is None
    at = shared_positions(reference, run)
    height = max(1, BLOCK // run.vocab)

    def block(positions: Tokens) -> RowFigures:
        first, following = int(positions[0]), run.following(positions)
        if exact:
            x, y = rows_at(reference, positions), rows_at(run, positions)
            return row_figures(x, y, first, following)
        return truncated_figures(reference, run, positions, following)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        rows = joined(list(pool.map(block, blocks(at, height))))
    stop = int(at[-1]) + 1
    return Comparison(
        reference=reference.name,
        run=run.name,
        vocab=run.vocab,
        exact=exact,
        overall=figures("all", rows, at, 0, stop),
        buckets=tuple(
            figures(f"{low}-{high - 1}", rows, at, low, min(high, stop))
            for low, high in buckets(at)
        ),
        phases=_phases(rows, at, run),
        edges=_around(rows, at, sorted({*run.edges, *edges})),
        correlation=rows.moments.correlation if exact else None,
        worst=worst(rows, at, run, worst_count),
    )


def check_same(reference: Dump, run: Dump) -> None:
    """Refuse dumps of different vocabularies or tokens."""
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
    check_tokens(reference.tokens, reference.vocab, "the logits")
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


def shared_positions(reference: Dump, run: Dump) -> Tokens:
    """The positions that both dumps have, int64 ascending."""
    at = np.intersect1d(reference.where(), run.where(), assume_unique=True)
    if not at.size:
        raise DumpError(
            "the dumps have no position in common",
            place=run.name,
            fix="Make both with the same --positions.",
        )
    return at


def buckets(at: Tokens) -> Iterator[tuple[int, int]]:
    """0-127, 128-511, 512-1023, then doubling, where `at` has any: RoPE faults grow so."""
    start, stop = 0, 128
    while start <= at[-1]:
        if ((at >= start) & (at < stop)).any():
            yield start, stop
        start, stop = stop, 512 if stop == 128 else 2 * stop


def _phases(rows: RowFigures, at: Tokens, run: Dump) -> tuple[Figures, ...]:
    stop = int(at[-1]) + 1
    if not at[0] < run.prefill < stop:
        return ()
    return (
        figures("prefill", rows, at, 0, run.prefill),
        figures("decode", rows, at, run.prefill, stop),
    )


def _around(rows: RowFigures, at: Tokens, edges: Sequence[int]) -> tuple[Figures, ...]:
    ranges = []
    for edge in edges:
        for word, low, high in (("before", edge - _NEAR, edge), ("from", edge, edge + _NEAR)):
            if ((at >= low) & (at < high)).any():
                ranges.append(figures(f"{word} {edge}", rows, at, max(low, 0), high))
    return tuple(ranges)
