"""Mold: what a fitted schedule takes from its surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packimport.errors import ScheduleError
from packimport.rope.frequencies import frequencies
from packimport.rope.naming.baked import Baked, Floats
from packimport.rope.powers import inverse_powers
from packimport.rope.schedule import Rope


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A schedule that may explain the ranges, with positions multiplied by `scale`."""

    rope: Rope
    baked: Baked
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Mold:
    """The dimensions of a table, and the schedules whose parameters are tried first.

    head_dim, rotary_dim: as declared, or twice the pairs.
    """

    pairs: int
    candidates: tuple[Rope, ...] = ()

    @property
    def rotary_dim(self) -> int:
        """Entries that rotate."""
        return 2 * self.pairs

    @property
    def exponents(self) -> Floats:
        """2i/d as float32 holds it, float64 [pairs]."""
        steps = np.arange(0, self.rotary_dim, 2).astype(np.float32)
        return (steps / np.float32(self.rotary_dim)).astype(np.float64)

    def plain(self, theta: float) -> Floats:
        """The plain frequencies, float64 [pairs]."""
        return inverse_powers(theta, self.pairs, self.rotary_dim).astype(np.float64)

    def hints(self, field: str) -> tuple[float | None, ...]:
        """What the candidates have in `field`."""
        return tuple(dict.fromkeys(getattr(rope, field) for rope in self.candidates))

    def fit(self, kind: str, theta: float, scale: float = 1.0, **fields: float) -> Iterator[Fit]:
        """The fit of that type and these fields; nothing where no formula accepts them."""
        first = self.candidates[0] if self.candidates else None
        head_dim = max(self.rotary_dim, first.head_dim if first else 0)
        rope = Rope(
            type=kind,
            theta=theta,
            head_dim=self.rotary_dim if kind == "proportional" else head_dim,
            rotary_dim=self.rotary_dim,
            interleaved=first.interleaved if first else False,
            trailing=first.trailing if first else False,
            **fields,  # type: ignore[arg-type]  # by name: whole numbers where the field needs them
        )
        try:
            values = frequencies(rope)
        except ScheduleError:
            return
        yield Fit(rope, Baked(values.inv_freq, values.attention_factor, scale), scale)
