"""Case: one table to name, with all that the stages look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packimport.rope.naming.distortion import undo
from packimport.rope.naming.mold import Mold
from packimport.rope.naming.recovery import Recovery, recover
from packimport.rope.naming.sample import Sample
from packimport.rope.naming.suspects import Suspect, suspects
from packimport.rope.schedule import Rope

_SPREAD = 192


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One table.

    take:       rows of the table, with that many of them spread over it.
    sample:     the rows looked at first.
    recovery:   what they say.
    candidates: what is declared.
    rows:       how many the table has.
    suspects:   the candidates and their known faults, for this width.
    """

    take: Callable[[int], Sample]
    sample: Sample
    recovery: Recovery
    candidates: tuple[Rope, ...]
    rows: int
    suspects: tuple[Suspect, ...]

    @classmethod
    def of(
        cls, take: Callable[[int], Sample], candidates: tuple[Rope, ...], pairs: int, rows: int
    ) -> Case:
        """The case of a table [rows, pairs]."""
        sample = take(_SPREAD)
        named = suspects(candidates, pairs, rows)
        return cls(take, sample, recover(sample), candidates, rows, named)

    @property
    def declared(self) -> Rope | None:
        """The schedule that labels are told from."""
        return self.candidates[0] if self.candidates else None

    @property
    def mold(self) -> Mold:
        """What fitted schedules take from the candidates."""
        return Mold(self.sample.pairs, self.candidates)

    def upright(self) -> Case:
        """The case with its distortions undone."""
        return self._changed(lambda sample: undo(sample)[0])

    def columns(self, which: NDArray[np.int64]) -> Case:
        """The case of some pairs, in the order of `which`."""
        return self._changed(lambda sample: sample.columns(which))

    def _changed(self, change: Callable[[Sample], Sample]) -> Case:
        take = self.take
        sample = change(self.sample)
        return replace(
            self, take=lambda spread: change(take(spread)), sample=sample, recovery=recover(sample)
        )
