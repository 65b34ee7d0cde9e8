"""Range: bounds of what a table leaves open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packimport.rope.naming.baked import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Bounds of a positive quantity per pair, or of one number."""

    low: Floats
    high: Floats

    @property
    def empty(self) -> bool:
        """Whether no value lies between the bounds, for some pair."""
        return not bool(np.all(self.low <= self.high))

    def holds(self, values: Floats) -> bool:
        """Whether every value lies between its bounds."""
        return bool(((self.low <= values) & (values <= self.high)).all())

    def widened(self, relative: float) -> Range:
        """The bounds moved apart by a share of their values."""
        return Range(
            self.low - relative * np.abs(self.low), self.high + relative * np.abs(self.high)
        )

    def take(self, which: slice) -> Range:
        """The bounds of some pairs."""
        return Range(self.low[which], self.high[which])
