"""Entries: what is summed over all entries of two blocks of logits, in float64."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forward.moments import Floats, Moments, moments, moments_of_sums

# Entries of the columns that are looked at together: three float64 arrays of them stay in a
# core's own cache, or near it; smaller ones cost more in calls. Measured from 2^15 to 2^19.
_COLUMNS = 1 << 17

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

    With w = exp(x − max_x) and v = exp(y − max_y):
    KL = Σ w·(x − y) / Σ w − (max_x − max_y) − log Σ w + log Σ v.
    KL is never negative, so what rounding leaves below zero is zero.
    """
    sums = _Sums(len(reference))
    width = max(1, _COLUMNS // len(reference))
    for low in range(0, reference.shape[1], width):
        columns = slice(low, low + width)
        sums.add(reference[:, columns], run[:, columns], max_x, max_y, low)
    # An entry of −inf leaves no finite sum.
    if np.isfinite(sums.error).all():
        return sums.entries(reference.size, max_x, max_y)
    return _with_infinite(reference, run, max_x, max_y)


class _Sums:
    """Sums over columns, each float64 [rows]."""

    def __init__(self, rows: int) -> None:
        self.error, self.power, self._yy = np.zeros((3, rows))
        self._x, self._y, self._w, self._v, self._delta = np.zeros((5, rows))
        self._difference, self._token = np.full(rows, -1.0), np.zeros(rows, np.int64)

    def add(self, a: Logits, b: Logits, max_x: Floats, max_y: Floats, low: int) -> None:
        """Some columns, of which `low` is the first."""
        x, y, delta = _space(a.shape)
        x[:], y[:] = a, b
        with np.errstate(invalid="ignore", over="ignore"):  # −inf: these sums are thrown away
            np.subtract(x, y, out=delta)
            self.error += np.einsum("ij,ij->i", delta, delta)
            self.power += np.einsum("ij,ij->i", x, x)
            self._yy += np.einsum("ij,ij->i", y, y)
            self._x += x.sum(axis=1)
            self._y += y.sum(axis=1)
            x -= max_x[:, None]
            y -= max_y[:, None]
            np.exp(x, out=x)
            np.exp(y, out=y)
            self._w += x.sum(axis=1)
            self._v += y.sum(axis=1)
            x *= delta
            self._delta += x.sum(axis=1)  # sum() adds by pairs: einsum would lose three digits
        np.abs(delta, out=delta)
        token = delta.argmax(axis=1)
        largest = delta[np.arange(len(delta)), token]
        larger = largest > self._difference
        self._difference[larger] = largest[larger]
        self._token[larger] = low + token[larger]

    def entries(self, count: int, max_x: Floats, max_y: Floats) -> Entries:
        kl, log_x, log_y = _divergence(self._delta, self._w, self._v, max_x, max_y)
        return Entries(
            kl=kl,
            log_x=log_x,
            log_y=log_y,
            error=self.error,
            power=self.power,
            difference=self._difference,
            token=self._token,
            moments=moments_of_sums(
                count,
                *(float(part.sum()) for part in (self._x, self._y, self.power, self._yy)),
                error=float(self.error.sum()),
            ),
        )


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
    delta: Floats, w: Floats, v: Floats, max_x: Floats, max_y: Floats
) -> tuple[Floats, Floats, Floats]:
    """KL and both log Σ exp per row, of Σ w·(x − y), Σ w and Σ v."""
    log_w, log_v = np.log(w), np.log(v)
    kl: Floats = delta / w - (max_x - max_y) - log_w + log_v
    return np.maximum(kl, 0.0), max_x + log_w, max_y + log_v


_LOCAL = threading.local()


def _space(shape: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """Three arrays of a shape whose values are anything, the same for each call of a thread.

    The page faults of fresh arrays take as long as the arithmetic in them.
    """
    size = math.prod(shape)
    space: Floats | None = getattr(_LOCAL, "space", None)
    if space is None or space.shape[1] < size:
        _LOCAL.space = space = np.empty((3, size))
    x, y, delta = (part[:size].reshape(shape) for part in space)
    return x, y, delta
