"""Statistics of two blocks of logits: float64, exact on −inf, memory of one block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packimport.errors import DumpError

# Of a sum of squares in float64, the share that its rounding may be.
_NOISE = 1e-13

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Sums that Pearson's correlation needs; blocks merge without losing digits.

    The second moments are about the means. Merging: Chan, Golub and LeVeque,
    "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """

    count: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        """The moments of both blocks together."""
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        dx, dy = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        weight = self.count * other.count / count
        return Moments(
            count=count,
            mean_x=self.mean_x + dx * other.count / count,
            mean_y=self.mean_y + dy * other.count / count,
            xx=self.xx + other.xx + dx * dx * weight,
            yy=self.yy + other.yy + dy * dy * weight,
            xy=self.xy + other.xy + dx * dy * weight,
        )

    @property
    def correlation(self) -> float | None:
        """Pearson's r; None where either side does not vary."""
        # What rounding leaves of the variance of a constant is no variance.
        if self.xx <= _NOISE * self.count * self.mean_x**2:
            return None
        if self.yy <= _NOISE * self.count * self.mean_y**2:
            return None
        return max(-1.0, min(1.0, self.xy / math.sqrt(self.xx) / math.sqrt(self.yy)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowFigures:
    """Figures per position of one block.

    kl:         float64 [rows], KL(reference‖run) in nats; inf where the run rules
                out (−inf) a token that the reference does not.
    same_top1:  bool [rows]; among equal logits the lowest token id is the top one.
    difference: float64 [rows], the largest |reference − run| of the row's logits.
    token:      int64 [rows], where that is.
    moments:    of all pairs of entries that are finite on both sides.
    """

    kl: Floats
    same_top1: npt.NDArray[np.bool_]
    difference: Floats
    token: npt.NDArray[np.int64]
    moments: Moments


def row_figures(
    reference: npt.NDArray[np.float32], run: npt.NDArray[np.float32], first: int = 0
) -> RowFigures:
    """The figures of two blocks, float32 [rows, vocab]; `first` is the position of row 0.

    KL(p‖q) = Σ p (log p − log q) with p, q the softmax of the rows, all in float64.
    A NaN, a +inf or a row of −inf alone has no softmax: DumpError names the position.
    """
    same_top1 = reference.argmax(axis=1) == run.argmax(axis=1)
    x = reference.astype(np.float64)
    y = run.astype(np.float64)
    max_x = _row_maxima(x, "reference", first)
    max_y = _row_maxima(y, "run", first)
    with np.errstate(invalid="ignore"):  # −inf on both sides: NaN, mended below
        delta = x - y
        whole = np.isfinite(delta.sum())
    if whole:
        moments = _moments(x.ravel(), y.ravel())
        kl = _divergence(x, y, delta, max_x, max_y)
    else:
        no_x, no_y = np.isinf(x), np.isinf(y)
        moments = _moments(x[~(no_x | no_y)], y[~(no_x | no_y)])
        kl = _divergence(x, y, np.where(no_x | no_y, 0.0, delta), max_x, max_y)
        kl[(no_y & ~no_x).any(axis=1)] = np.inf
        delta[no_x & no_y] = 0.0
    np.abs(delta, out=delta)
    token = delta.argmax(axis=1)
    return RowFigures(
        kl=kl,
        same_top1=same_top1,
        difference=delta[np.arange(len(delta)), token],
        token=token,
        moments=moments,
    )


def _row_maxima(logits: Floats, side: str, first: int) -> Floats:
    """The largest logit of each row; NaN and ±inf there are refused."""
    maxima: Floats = logits.max(axis=1)
    bad = np.flatnonzero(~np.isfinite(maxima))
    if bad.size:
        raise DumpError(
            f"the {side}'s logits have no softmax at position {first + int(bad[0])}",
            found=f"a largest logit of {maxima[bad[0]]}",
            allowed="finite logits, and -inf beside at least one finite logit",
            fix="Look at the model that made them: compare prints no number for such a dump.",
        )
    return maxima


def _divergence(x: Floats, y: Floats, delta: Floats, max_x: Floats, max_y: Floats) -> Floats:
    """KL per row; x and y are overwritten. `delta` is x − y, finite everywhere.

    With w = exp(x − max_x) and v = exp(y − max_y):
    KL = Σ w·delta / Σ w − (max_x − max_y) − log Σ w + log Σ v.
    KL is never negative, so what rounding leaves below zero is zero.
    """
    x -= max_x[:, None]
    y -= max_y[:, None]
    np.exp(x, out=x)
    np.exp(y, out=y)
    total_x, total_y = x.sum(axis=1), y.sum(axis=1)
    x *= delta
    mean_delta = x.sum(axis=1) / total_x
    kl: Floats = mean_delta - (max_x - max_y) - np.log(total_x) + np.log(total_y)
    return np.maximum(kl, 0.0)


def _moments(x: Floats, y: Floats) -> Moments:
    """The moments of pairs of finite entries."""
    count = x.size
    if not count:
        return Moments()
    mean_x, mean_y = float(x.mean()), float(y.mean())
    return Moments(
        count=count,
        mean_x=mean_x,
        mean_y=mean_y,
        xx=float(np.dot(x, x)) - count * mean_x * mean_x,
        yy=float(np.dot(y, y)) - count * mean_y * mean_y,
        xy=float(np.dot(x, y)) - count * mean_x * mean_y,
    )
