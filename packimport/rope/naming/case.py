"""Case: one table to name, with all that the stages look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packimport.rope.naming.distortion import undo
from packimport.rope.naming.mold import Mold
from packimport.rope.naming.recovery import Recovery, recover
from packimport.rope.naming.sample import Rows, Sample, chosen_rows, crossings, distinct
from packimport.rope.naming.suspects import Suspect, suspects
from packimport.rope.schedule import Rope

# Rows to look at where two suspects fit.
_MANY = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One table.

    take:       the usable ones of some rows of the table.
    sample:     the rows looked at first.
    recovery:   what they say.
    candidates: what is declared.
    rows:       how many the table has.
    suspects:   the candidates and their known faults, for this width.
    """

    take: Callable[[Rows], Sample]
    sample: Sample
    recovery: Recovery
    candidates: tuple[Rope, ...]
    rows: int
    suspects: tuple[Suspect, ...]

    @classmethod
    def of(
        cls, take: Callable[[Rows], Sample], candidates: tuple[Rope, ...], pairs: int, rows: int
    ) -> Case:
        """The case of a table [rows, pairs]."""
        lengths = (
            length
            for rope in candidates
            for length in (rope.original_max_position_embeddings, rope.max_position_embeddings)
        )
        sample = take(chosen_rows(rows, [length for length in lengths if length is not None]))
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

    def more(self) -> Sample:
        """The sample and many more rows."""
        return self._with(chosen_rows(self.rows, spread=_MANY))

    def refined(self) -> Case:
        """The case with the rows that say most about the frequencies found so far."""
        if not self.recovery.linear:
            return self
        shift = self.sample.positions[0] - self.sample.rows[0]
        sample = self._with(crossings(self.recovery.frequencies, self.rows, int(shift)))
        return replace(self, sample=sample, recovery=recover(sample))

    def _with(self, rows: Rows) -> Sample:
        return self.take(distinct(np.concatenate([self.sample.rows, rows])))

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
            self, take=lambda rows: change(take(rows)), sample=sample, recovery=recover(sample)
        )
