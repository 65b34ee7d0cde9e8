"""Top: the tokens with the largest logits of each row, exact on ties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

# Entries of a group, whose maximum is taken before any are sorted.
_DEALT = 64


def top(logits: npt.NDArray[np.float32], count: int) -> Ids:
    """The ids of the `count` largest logits of each row, int64 [rows, count], largest first.

    logits: float32 [rows, vocab] without NaN. Among equals the lowest id comes first.

    The entries of a row are dealt into groups. An entry among the `count` first lies in a
    group whose largest entry is no smaller than that of the `count`-th group: else `count`
    groups hold a larger one each. So only those groups are sorted, nearly always `count`.
    """
    rows, vocab = logits.shape
    count = min(count, vocab)
    groups = vocab // _DEALT
    if groups <= 2 * count:
        return np.argsort(-logits, axis=1, kind="stable")[:, :count]
    whole = groups * _DEALT
    # Dealt in turn, so that numpy takes the maxima along long rows, which is fast.
    maxima = logits[:, :whole].reshape(rows, _DEALT, groups).max(axis=1)
    least = np.partition(maxima, groups - count, axis=1)[:, groups - count]
    steps, rest = np.arange(_DEALT)[:, None] * groups, np.arange(whole, vocab)
    best = np.empty((rows, count), np.int64)
    for row in range(rows):
        chosen = np.flatnonzero(maxima[row] >= least[row])
        # Ascending: a stable sort then puts the lowest id first among equals.
        ids = np.concatenate([(steps + chosen).ravel(), rest])
        values = logits[row, ids]
        ids = ids[values >= np.partition(values, -count)[-count]]
        best[row] = ids[np.argsort(-logits[row, ids], kind="stable")[:count]]
    return best


def overlap(one: Ids, other: Ids, count: int) -> npt.NDArray[np.float64]:
    """The share of the first `count` ids of each row that both sides have, float64 [rows]."""
    a, b = one[:, :count], other[:, :count]
    shared = (a[:, :, None] == b[:, None, :]).sum(axis=(1, 2))
    return np.asarray(shared / a.shape[1])
