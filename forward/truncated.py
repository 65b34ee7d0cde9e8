"""Truncated: the figures of dumps of which one at least keeps the largest logits alone.

What a top-k dump knows is exact: the softmax of the kept tokens, since the log Σ exp of the
others is kept. The others count as one: KL over fewer and coarser outcomes is never larger
than KL (the log sum inequality; Cover and Thomas, "Elements of Information Theory", 2.7),
so what is given here is the least that KL can be. What can't be computed is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forward.dump import Dump, Logits, Tokens, Tops, rows_at
from forward.entries import log_sums
from forward.form import tail_of
from forward.moments import Floats, Moments
from forward.statistics import RANKED, RowFigures, nll, row_maxima
from forward.top import Ids, overlap, top
from packimport.errors import DumpError


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One side of a block. Logarithms are natural, of probabilities, float64.

    ids:    int64 [rows, k], the tokens that KL tells apart. logs: [rows, k], of them.
    rest:   [rows], of all others together.
    ranked: int64 [rows, n], the likeliest tokens, in order. margin: [rows], first less second.
    nll:    [rows], −log of the next token; NaN where it is not known.
    """

    ids: Ids
    logs: Floats
    rest: Floats
    ranked: Ids
    margin: Floats
    nll: Floats


def truncated_figures(reference: Dump, run: Dump, positions: Tokens, targets: Tokens) -> RowFigures:
    """The figures at positions that follow each other; targets: the next tokens, −1: none."""
    if reference.tops is not None:
        x = _known(reference, reference.tops, positions, "reference", targets)
        y = _side(run, positions, "run", targets, x.ids)
    else:
        assert run.tops is not None
        y = _known(run, run.tops, positions, "run", targets)
        x = _whole(reference, positions, "reference", targets, y.ids)
    unknown = np.full(len(positions), np.nan)
    ranked = min(x.ranked.shape[1], y.ranked.shape[1])
    return RowFigures(
        kl=_least(x, y),
        followed=targets >= 0,
        nll_reference=x.nll,
        nll_run=y.nll,
        top_reference=x.ranked[:, 0],
        top_run=y.ranked[:, 0],
        top5=overlap(x.ranked, y.ranked, 5) if ranked >= 5 else unknown,
        top10=overlap(x.ranked, y.ranked, RANKED) if ranked >= RANKED else unknown,
        margin=x.margin,
        difference=unknown,
        token=np.full(len(positions), -1),
        error=unknown,
        power=unknown,
        moments=Moments(),
    )


def _side(dump: Dump, positions: Tokens, side: str, targets: Tokens, ids: Ids) -> _Side:
    if dump.tops is None:
        return _whole(dump, positions, side, targets, ids)
    return _known(dump, dump.tops, positions, side, targets)


def _whole(dump: Dump, positions: Tokens, side: str, targets: Tokens, ids: Ids) -> _Side:
    """Of a dump of whole rows; `ids` are those that the other side knows."""
    logits = rows_at(dump, positions)
    maxima = row_maxima(logits, side, int(positions[0]))
    total = log_sums(logits, maxima)
    ranked = top(logits, RANKED)
    best = np.take_along_axis(logits, ranked[:, :2], 1).astype(np.float64)
    return _Side(
        ids=ids,
        logs=np.take_along_axis(logits, ids, 1) - total[:, None],
        rest=tail_of(logits, ids) - total,
        ranked=ranked,
        margin=best[:, 0] - best[:, -1],
        nll=nll(logits, targets, total),
    )


def _known(dump: Dump, tops: Tops, positions: Tokens, side: str, targets: Tokens) -> _Side:
    """Of a top-k dump."""
    first = int(np.searchsorted(dump.where(), positions[0]))
    rows = slice(first, first + len(positions))
    logits, ids = rows_at(dump, positions), tops.ids[rows].astype(np.int64)
    kept = log_sums(logits, row_maxima(logits, side, int(positions[0])))
    _check_ranked(dump, logits, tops.tail[rows], positions)
    total = np.logaddexp(kept, tops.tail[rows])
    logs = logits.astype(np.float64) - total[:, None]
    hit = ids == targets[:, None]
    at_target = np.take_along_axis(logs, hit.argmax(axis=1)[:, None], 1)[:, 0]
    margin: Floats = logs[:, 0] - logs[:, 1] if ids.shape[1] > 1 else np.full(len(logs), np.nan)
    return _Side(
        ids=ids,
        logs=logs,
        rest=tops.tail[rows] - total,
        ranked=ids,
        margin=margin,
        nll=np.where(hit.any(axis=1), -at_target, np.nan),
    )


def _check_ranked(dump: Dump, logits: Logits, tail: Floats, positions: Tokens) -> None:
    """Refuse rows that do not descend, and tails that hold more than their rows leave out."""
    last = logits[:, -1].astype(np.float64)
    with np.errstate(divide="ignore"):  # none is left out of a whole row
        most = last + np.log(dump.vocab - logits.shape[1])
    # float16 has rounded the kept logits, not the tail.
    room = np.where(np.isfinite(last), np.abs(last), 0.0) * 2.0**-11 + 1e-6
    bad = np.flatnonzero((logits[:, 1:] > logits[:, :-1]).any(axis=1) | (tail > most + room))
    if bad.size:
        raise DumpError(
            "a row of a top-k dump does not hold the largest logits, in order, and what they leave",
            place=f"{dump.name}: position {int(positions[bad[0]])}",
            found=f"logits down to {last[bad[0]]:g}, of the others {tail[bad[0]]:g}",
            allowed=f"descending logits, and log-sum-exp up to {most[bad[0]]:g}",
            fix="Make the dump again.",
        )


def known_nll(dump: Dump, tops: Tops, positions: Tokens, targets: Tokens) -> Floats:
    """−log p of the next tokens, float64 [rows]; NaN where a top-k dump does not keep them."""
    return _known(dump, tops, positions, "run", targets).nll


def _least(x: _Side, y: _Side) -> Floats:
    """The KL of the tokens that both sides know, and all others as one; float64 [rows]."""
    places = _places(x.ids, y.ids)
    common = places >= 0
    p = np.where(common, x.logs, -np.inf)
    q = np.take_along_axis(y.logs, np.maximum(places, 0), 1)
    taken = np.zeros(y.ids.shape, np.bool_)
    taken[common.nonzero()[0], places[common]] = True
    rest_p = _log_sum(np.where(common, -np.inf, x.logs), x.rest)
    rest_q = _log_sum(np.where(taken, -np.inf, y.logs), y.rest)
    p = np.concatenate([p, rest_p[:, None]], axis=1)
    q = np.concatenate([q, rest_q[:, None]], axis=1)
    with np.errstate(invalid="ignore"):  # −inf − −inf, where p is 0
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
    return np.asarray(np.maximum(terms.sum(axis=1), 0.0))


def _places(wanted: Ids, ids: Ids) -> Ids:
    """Where each of the wanted ids stands in its row of ids, int64 of its shape; −1: nowhere.

    By sorting: to hold each beside each would take the square of their number.
    """
    order = np.argsort(ids, axis=1)
    # Ids of different rows are made to differ, so that all rows are one ascending list.
    apart = np.arange(len(ids))[:, None] * (1 + max(int(wanted.max()), int(ids.max())))
    listed = (np.take_along_axis(ids, order, 1) + apart).ravel()
    keys = wanted + apart
    found = np.minimum(np.searchsorted(listed, keys.ravel()), listed.size - 1).reshape(keys.shape)
    return np.where(listed[found] == keys, order.ravel()[found], -1)


def _log_sum(logs: Floats, rest: Floats) -> Floats:
    """log of Σ exp of a row and its rest, float64 [rows]; −inf where all are."""
    total: Floats = np.logaddexp(np.logaddexp.reduce(logs, axis=1), rest)
    return total
