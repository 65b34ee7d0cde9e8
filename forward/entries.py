"""Entries: what is summed over all entries of two blocks of logits, in float64."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forward.moments import Floats, Moments, moments, moments_of_sums

# A tile of entries that are looked at together: its three float64 arrays lie in a core's own
# cache; a smaller one costs more in calls. BLAS starts threads of its own, beside those of
# compare, where a dot product is longer than 10 000.
_TILE, _WIDTH = 1 << 16, 1 << 13
# Where the largest logit is nearer to 0 than this, Σ exp needs no shift: it is finite, as is its
# ratio to the other side's, and what it loses below float64's range is no part of it.
_NEAR = 300.0

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Entries:
    """Of each row, float64 [rows] but `token`; see RowFigures.

    log_x, log_y: log Σ exp of the reference and of the run.
    """

    kl: Floats
    log_x: Floats
    log_y: Floats
    error: Floats
    power: Floats
    difference: Floats
    token: npt.NDArray[np.int64]
    moments: Moments


def entries(reference: Logits, run: Logits, max_x: Floats, max_y: Floats) -> Entries:
    """Of two blocks, float32 [rows, vocab], whose rows have these finite maxima.

    With w = exp(x − a) and v = exp(y − b), a and b constants of the row:
    KL = Σ w·(x − y) / Σ w − (a − b) + log(Σ v / Σ w).
    KL is never negative, so what rounding leaves below zero is zero.
    """
    sums = _Sums(len(reference), _shift(max_x), _shift(max_y))
    for rows, columns in _tiles(*reference.shape):
        sums.add(reference[rows, columns], run[rows, columns], rows, columns.start)
    # An entry of −inf leaves no finite sum.
    if np.isfinite(sums.error).all():
        return sums.entries(reference.size)
    return _with_infinite(reference, run, max_x, max_y)


def log_sums(logits: npt.NDArray[np.floating], maxima: Floats) -> Floats:
    """log Σ exp of each row, float64 [rows]; maxima: the rows' largest logits, finite."""
    shift, total = _shift(maxima), np.zeros(len(logits))
    for rows, columns in _tiles(*logits.shape):
        (x,) = _space(1, logits[rows, columns].shape)
        x[:] = logits[rows, columns]
        _exp(x, shift[rows])
        total[rows] += x.sum(axis=1)
    return np.asarray(shift + np.log(total))


def _tiles(count: int, vocab: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each tile; how a row is cut does not depend on the other rows."""
    width = min(vocab, _WIDTH)
    height = _TILE // width
    for top in range(0, count, height):
        for low in range(0, vocab, width):
            yield slice(top, top + height), slice(low, low + width)


def _shift(maxima: Floats) -> Floats:
    return np.where(np.abs(maxima) < _NEAR, 0.0, maxima)


class _Sums:
    """Sums over columns, each float64 [rows]."""

    def __init__(self, rows: int, shift_x: Floats, shift_y: Floats) -> None:
        self._shift_x, self._shift_y = shift_x, shift_y
        self.error, self._power, self._cross = np.zeros((3, rows))
        self._x, self._delta, self._w, self._v, self._gain = np.zeros((5, rows))
        self._difference, self._token = np.full(rows, -1.0), np.zeros(rows, np.int64)

    def add(self, a: Logits, b: Logits, rows: slice, low: int) -> None:
        """Some columns of some rows; `low` is the first column."""
        x, y, delta = _space(3, a.shape)
        x[:], y[:] = a, b
        with np.errstate(invalid="ignore", over="ignore"):  # −inf: these sums are thrown away
            np.subtract(x, y, out=delta)
            self.error[rows] += _dots(delta, delta)
            self._power[rows] += _dots(x, x)
            self._cross[rows] += _dots(x, delta)
            self._x[rows] += x.sum(axis=1)
            self._delta[rows] += delta.sum(axis=1)
            _exp(x, self._shift_x[rows])
            _exp(y, self._shift_y[rows])
            self._w[rows] += x.sum(axis=1)
            self._v[rows] += y.sum(axis=1)
            self._gain[rows] += _dots(x, delta)
        self._compare(delta, rows, low)

    def _compare(self, delta: Floats, rows: slice, low: int) -> None:
        """Keep the largest |delta| and its token, the first one among equals."""
        largest = np.maximum(delta.max(axis=1), -delta.min(axis=1))
        larger = np.flatnonzero(largest > self._difference[rows])
        if larger.size:
            self._difference[rows][larger] = largest[larger]
            self._token[rows][larger] = low + np.abs(delta[larger]).argmax(axis=1)

    def entries(self, count: int) -> Entries:
        kl, log_x, log_y = _divergence(self._gain, self._w, self._v, self._shift_x, self._shift_y)
        x, delta, xx, xd, dd = (
            float(part.sum())
            for part in (self._x, self._delta, self._power, self._cross, self.error)
        )
        return Entries(
            kl=kl,
            log_x=log_x,
            log_y=log_y,
            error=self.error,
            power=self._power,
            difference=self._difference,
            token=self._token,
            moments=moments_of_sums(count, x, x - delta, xx, xx - 2 * xd + dd, xy=xx - xd),
        )


def _dots(x: Floats, y: Floats) -> Floats:
    """Σ x·y of each row: many times as fast as einsum, which adds in order, too."""
    return np.asarray((x[:, None, :] @ y[:, :, None])[:, 0, 0])


def _exp(x: Floats, shift: Floats) -> None:
    """x = exp(x − shift), in place."""
    if shift.any():
        x -= shift[:, None]
    np.exp(x, out=x)


def _with_infinite(reference: Logits, run: Logits, max_x: Floats, max_y: Floats) -> Entries:
    """The same where entries are −inf: those are left out of what they would make infinite."""
    x, y = reference.astype(np.float64), run.astype(np.float64)
    no_x, no_y = np.isinf(x), np.isinf(y)
    none = no_x | no_y
    with np.errstate(invalid="ignore"):  # −inf on both sides
        delta = x - y
    gap = np.where(none, 0.0, delta)
    w, v = np.exp(x - max_x[:, None]), np.exp(y - max_y[:, None])
    kl, log_x, log_y = _divergence(
        (w * gap).sum(axis=1), w.sum(axis=1), v.sum(axis=1), max_x, max_y
    )
    kl[(no_y & ~no_x).any(axis=1)] = np.inf
    delta[no_x & no_y] = 0.0
    np.abs(delta, out=delta)
    token = delta.argmax(axis=1)
    return Entries(
        kl=kl,
        log_x=log_x,
        log_y=log_y,
        error=(gap**2).sum(axis=1),
        power=(np.where(none, 0.0, x) ** 2).sum(axis=1),
        difference=delta[np.arange(len(delta)), token],
        token=token,
        moments=moments(x[~none], y[~none]),
    )


def _divergence(
    gain: Floats, w: Floats, v: Floats, shift_x: Floats, shift_y: Floats
) -> tuple[Floats, Floats, Floats]:
    """KL and both log Σ exp per row, of Σ w·(x − y), Σ w and Σ v."""
    kl: Floats = gain / w - (shift_x - shift_y) + np.log(v / w)
    return np.maximum(kl, 0.0), shift_x + np.log(w), shift_y + np.log(v)


_LOCAL = threading.local()


def _space(count: int, shape: tuple[int, ...]) -> list[Floats]:
    """Arrays of a shape whose values are anything, the same for each call of a thread.

    The page faults of fresh arrays take as long as the arithmetic in them.
    """
    size = math.prod(shape)
    space: Floats | None = getattr(_LOCAL, "space", None)
    if space is None or space.size < count * size:
        _LOCAL.space = space = np.empty(count * size)
    return [space[i * size : (i + 1) * size].reshape(shape) for i in range(count)]
