"""Baked: what a schedule leaves in a table, right or distorted, at any rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.rope.frequencies import Frequencies
from packimport.rope.powers import Float32s
from packimport.rope.tables import cos_sin_of

Floats: TypeAlias = NDArray[np.float64]
Round: TypeAlias = Callable[[Float32s], Float32s]

# Relative: what CPUs make of one frequency differs by so much.
TWO_ULPS = 2.0**-22


@dataclass(frozen=True, slots=True)
class Rounding:
    """Arithmetic done in a short dtype. what: which of its steps."""

    what: str
    positions: bool
    frequencies: bool
    angles: bool


ROUNDINGS = (
    Rounding("frequencies rounded to", positions=False, frequencies=True, angles=False),
    Rounding("angles rounded to", positions=False, frequencies=False, angles=True),
    Rounding("angles computed in", positions=True, frequencies=True, angles=True),
)


def _through(dtype: np.dtype[np.generic]) -> Round:
    def rounded(values: Float32s) -> Float32s:
        with np.errstate(over="ignore"):
            return values.astype(dtype).astype(np.float32)

    return rounded


SHORT_DTYPES: Mapping[str, Round] = MappingProxyType(
    {
        "float16": _through(np.dtype(np.float16)),
        "bfloat16": _through(np.dtype(ml_dtypes.bfloat16)),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Baked:
    """How the entries of a table came about.

    inv_freq:         float32 [pairs].
    attention_factor: multiplies cos and sin.
    scale:            every position was multiplied by it.
    rounding:         the steps done in a short dtype, and which dtype.
    then:             (first row, Baked): another table follows, from its own position 0.
    """

    inv_freq: Float32s
    attention_factor: float = 1.0
    scale: float = 1.0
    rounding: tuple[Rounding, str] | None = None
    then: tuple[int, Baked] | None = None

    @classmethod
    def of(cls, values: Frequencies) -> Baked:
        """A table made as it should be."""
        return cls(values.inv_freq, values.attention_factor)

    def first_pair(self) -> Baked:
        """The same of one pair."""
        then = self.then and (self.then[0], self.then[1].first_pair())
        return replace(self, inv_freq=self.inv_freq[:1], then=then)

    def same(self, other: Baked) -> bool:
        """Whether both are one table, computed in two ways."""
        near = abs(self.attention_factor - other.attention_factor)
        return near <= TWO_ULPS * self.attention_factor and self.turns_like(other)

    def turns_like(self, other: Baked) -> bool:
        """Whether both have the same angles: frequencies within two ulps."""
        if (self.scale, self.rounding) != (other.scale, other.rounding):
            return False
        if (self.then is None) != (other.then is None):
            return False
        if len(self.inv_freq) != len(other.inv_freq):
            return False
        gap = np.abs(self.inv_freq - other.inv_freq)
        if not (gap <= TWO_ULPS * self.inv_freq).all():
            return False
        if self.then is None or other.then is None:
            return True
        return self.then[0] == other.then[0] and self.then[1].turns_like(other.then[1])

    def angles(self, positions: Floats) -> Float32s:
        """The float32 angles at `positions` [n]: [n, pairs]."""
        at = (positions * self.scale).astype(np.float32)
        inv_freq = self.inv_freq
        if self.rounding is None:
            return np.multiply.outer(at, inv_freq)
        steps, name = self.rounding
        shorten = SHORT_DTYPES[name]
        at = shorten(at) if steps.positions else at
        inv_freq = shorten(inv_freq) if steps.frequencies else inv_freq
        # A position or frequency beyond float16 is infinite, and times 0 it is NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            angle = np.multiply.outer(at, inv_freq)
        return shorten(angle) if steps.angles else angle

    def entries(self, positions: Floats) -> tuple[Floats, Floats, Floats]:
        """(angle, cos, sin), each float64 [n, pairs] and not rounded."""
        angle32 = self.angles(positions)
        # An angle beyond float16 is infinite, and its cosine NaN: it equals nothing.
        with np.errstate(invalid="ignore"):
            cos, sin = cos_sin_of(angle32, self.attention_factor)
        angle = angle32.astype(np.float64)
        if self.then is None:
            return angle, cos, sin
        start, follower = self.then
        later = positions >= start
        for mine, other in zip(
            (angle, cos, sin), follower.entries(positions[later] - start), strict=True
        ):
            mine[later] = other
        return angle, cos, sin
