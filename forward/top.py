"""Top: the tokens with the largest logits of each row, exact on ties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

# Entries whose maximum is taken together before any are sorted.
_WIDTH = 128


def top(logits: npt.NDArray[np.float32], count: int) -> Ids:
    """The ids of the `count` largest logits of each row, int64 [rows, count], largest first.

    logits: float32 [rows, vocab] without NaN. Among equals the lowest id comes first.

    Rows are cut into runs of entries. An entry among the `count` first lies in one of the
    `count` first runs, ordered by largest entry and then by place: each run before its own
    holds an entry that precedes it. So only those runs are sorted.
    """
    rows, vocab = logits.shape
    count = min(count, vocab)
    runs = vocab // _WIDTH
    if runs <= 2 * count:
        return np.argsort(-logits, axis=1, kind="stable")[:, :count]
    whole = runs * _WIDTH
    maxima = logits[:, :whole].reshape(rows, runs, _WIDTH).max(axis=2)
    best = np.sort(np.argsort(-maxima, axis=1, kind="stable")[:, :count], axis=1)
    ids = (best[:, :, None] * _WIDTH + np.arange(_WIDTH)).reshape(rows, -1)
    rest = np.broadcast_to(np.arange(whole, vocab), (rows, vocab - whole))
    ids = np.concatenate([ids, rest], axis=1)
    order = np.argsort(-np.take_along_axis(logits, ids, 1), axis=1, kind="stable")[:, :count]
    return np.take_along_axis(ids, order, 1)


def overlap(one: Ids, other: Ids, count: int) -> npt.NDArray[np.float64]:
    """The share of the first `count` ids of each row that both sides have, float64 [rows]."""
    a, b = one[:, :count], other[:, :count]
    shared = (a[:, :, None] == b[:, None, :]).sum(axis=(1, 2))
    return np.asarray(shared / a.shape[1])
