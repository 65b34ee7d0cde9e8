"""Compare: two dumps of the same tokens, or two sets of them ─▶ Comparison, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forward.comparison import Comparison
from forward.data_set import DataSet, data_set, pairs
from forward.dump import Dump, Tokens
from forward.figures import Figures, figures
from forward.prompt import check_tokens
from forward.scores import BLOCK, blocks
from forward.statistics import RowFigures, joined
from forward.stretch import stretches
from forward.truncated import truncated_figures
from forward.workers import Part, shared_out
from forward.worst import worst
from packimport.errors import DumpError

# Positions on each side of an edge of a table.
_NEAR = 16


def compare(
    reference: Dump | DataSet,
    run: Dump | DataSet,
    edges: Sequence[int] = (),
    worst_count: int = 0,
) -> Comparison:
    """The figures of `run` against `reference`, at the positions that both have.

    The dumps of a data set are taken together: a position is that in its own prompt.
    edges: positions around which the figures are given; those of the run's dumps count, too.
    worst_count: how many of the worst positions are listed.

    Memory is a few blocks, whatever the size of the dumps.
    Raises DumpError where tokens or vocabularies differ, or logits have no softmax.
    """
    one, other = data_set(reference), data_set(run)
    both = tuple(pairs(one, other))
    for pair in both:
        check_same(*pair)
    places = [shared_positions(*pair) for pair in both]
    parts = [part for pair, at in zip(both, places, strict=True) for part in _parts(*pair, at)]
    at = np.concatenate(places)
    rows = joined(list(shared_out(parts, at.size * other.dumps[0].vocab)))
    listed = worst(rows, places, other.dumps, max(1, worst_count))
    stop = int(at.max()) + 1
    exact = all(dump.tops is None for pair in both for dump in pair)
    decode = np.concatenate([p >= mine.prefill for (_, mine), p in zip(both, places, strict=True)])
    return Comparison(
        reference=one.name,
        run=other.name,
        dumps=len(both),
        vocab=both[0][1].vocab,
        exact=exact,
        alike=all(mine.normal == theirs.normal for mine, theirs in both),
        overall=figures("all", rows, at, 0, stop),
        buckets=tuple(
            figures(f"{low}-{high - 1}", rows, at, low, min(high, stop))
            for low, high in buckets(at)
        ),
        phases=_phases(rows, at, decode),
        edges=_around(rows, at, sorted({*edges, *(e for _, mine in both for e in mine.edges)})),
        correlation=rows.moments.correlation if exact else None,
        left_out=sum(len(mine.where()) for mine, _ in both) - len(at),
        farthest=listed[0].dump,
        worst=listed[:worst_count],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Truncated:
    """Positions of a pair of dumps of which one at least keeps the largest logits alone."""

    reference: Dump
    run: Dump
    positions: Tokens

    def figures(self) -> RowFigures:
        following = self.run.following(self.positions)
        return truncated_figures(self.reference, self.run, self.positions, following)

    def request(self) -> None:
        """Its ids and tails lie in memory."""


def _parts(reference: Dump, run: Dump, at: Tokens) -> Iterator[Part]:
    """The positions of one pair."""
    if reference.tops is None and run.tops is None:
        yield from stretches(reference, run, at)
        return
    for positions in blocks(at, max(1, BLOCK // run.vocab)):
        yield _Truncated(reference, run, positions)


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
    while start <= at.max():
        if ((at >= start) & (at < stop)).any():
            yield start, stop
        start, stop = stop, 512 if stop == 128 else 2 * stop


def _phases(rows: RowFigures, at: Tokens, decode: npt.NDArray[np.bool_]) -> tuple[Figures, ...]:
    if decode.all() or not decode.any():
        return ()
    return tuple(
        figures(name, rows.where(mask), at[mask], int(at[mask].min()), int(at[mask].max()) + 1)
        for name, mask in (("prefill", ~decode), ("decode", decode))
    )


def _around(rows: RowFigures, at: Tokens, edges: Sequence[int]) -> tuple[Figures, ...]:
    ranges = []
    for edge in edges:
        for word, low, high in (("before", edge - _NEAR, edge), ("from", edge, edge + _NEAR)):
            if ((at >= low) & (at < high)).any():
                ranges.append(figures(f"{word} {edge}", rows, at, max(low, 0), high))
    return tuple(ranges)
