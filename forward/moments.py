"""Moments: the sums that Pearson's correlation of two sets of logits needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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


def moments(x: Floats, y: Floats) -> Moments:
    """The moments of pairs of finite entries, float64 [count]."""
    count = x.size
    if not count:
        return Moments()
    sums = float(x.sum()), float(y.sum()), _dot(x, x), _dot(y, y)
    return moments_of_sums(count, *sums, xy=_dot(x, y))


def moments_of_sums(count: int, x: float, y: float, xx: float, yy: float, *, xy: float) -> Moments:
    """The same of `count` pairs by Σ x, Σ y, Σ x², Σ y² and Σ x·y."""
    mean_x, mean_y = x / count, y / count
    return Moments(
        count=count,
        mean_x=mean_x,
        mean_y=mean_y,
        xx=xx - count * mean_x * mean_x,
        yy=yy - count * mean_y * mean_y,
        xy=xy - count * mean_x * mean_y,
    )


def _dot(x: Floats, y: Floats) -> float:
    """Σ x·y in this thread: np.dot would start BLAS threads beside those of compare."""
    return float(np.einsum("i,i->", x, y))
