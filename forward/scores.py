"""Scores: −log p of the next token under one dump."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forward.dump import Dump, Tokens, rows_at
from forward.entries import log_sums
from forward.moments import Floats
from forward.statistics import nll, row_maxima
from forward.truncated import known_nll
from packimport.errors import DumpError

# Entries of a block. In float64 that is 4 MB, so that the passes over it stay near
# the cache; the blocks are the same on every machine, and so are the figures.
BLOCK = 1 << 19


def blocks(at: Tokens, height: int) -> Iterator[Tokens]:
    """`at` in order, in runs of at most `height` positions that follow each other."""
    if not at.size:
        return
    starts = np.flatnonzero(np.diff(at, prepend=at[0] - 2) != 1)
    for start, stop in zip(starts, [*starts[1:], len(at)], strict=True):
        for low in range(start, stop, height):
            yield at[low : min(low + height, stop)]


def scores(dump: Dump, at: Tokens) -> Floats:
    """−log p of the token after each position of `at`, float64 [positions].

    Raises DumpError where logits have no softmax, and where a top-k dump does not
    keep a next token: leaving those out would flatter it.
    """
    parts = [_scores(dump, positions) for positions in blocks(at, max(1, BLOCK // dump.vocab))]
    values = np.concatenate([np.zeros(0), *parts])
    unknown = int(np.isnan(values).sum())
    if unknown:
        raise DumpError(
            "the likelihood of the text can't be computed from this top-k dump",
            place=dump.name,
            found=f"{unknown} of {len(at)} next tokens outside the kept logits",
            fix="Dump without --top-k.",
        )
    return values


def _scores(dump: Dump, positions: Tokens) -> Floats:
    targets = dump.following(positions)
    if dump.tops is not None:
        return known_nll(dump, dump.tops, positions, targets)
    logits = rows_at(dump, positions)
    total = log_sums(logits, row_maxima(logits, "run", int(positions[0])))
    return nll(logits, targets, total)
