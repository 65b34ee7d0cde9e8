"""Explanation: a named schedule, and what else coincides with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from packimport.errors import ScheduleError
from packimport.rope.frequencies import frequencies
from packimport.rope.naming.baked import Baked, Floats
from packimport.rope.naming.distortion import Distortion
from packimport.rope.naming.labels import label, scaled
from packimport.rope.naming.suspects import Suspect, plain
from packimport.rope.schedule import Rope


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What `Identification` says, before damage and distortions are added to the label.

    baked: what the whole table then holds; None where its pairs lie otherwise.
    """

    label: str
    rope: Rope | None
    frequencies: Floats
    attention_factor: float
    scale: float = 1.0
    mistake: str | None = None
    equivalents: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    baked: Baked | None = None

    def distorted(self, distortions: Sequence[Distortion]) -> Explanation:
        """The same after `distortions`: a table that runs backwards has negative frequencies."""
        turns = int(np.prod([d.turns for d in distortions], initial=1))
        mistake = next((d.mistake for d in distortions), None)
        return replace(
            self,
            frequencies=turns * self.frequencies,
            mistake=self.mistake or mistake,
            baked=None if distortions else self.baked,
        )


def explain(suspect: Suspect, declared: Rope | None) -> Explanation:
    """The explanation that `suspect` is."""
    baked = suspect.baked
    others = (*suspect.equivalents, *_coinciding(suspect.rope, baked, declared))
    return Explanation(
        label=suspect.label,
        rope=suspect.rope,
        frequencies=baked.inv_freq.astype(np.float64) * baked.scale,
        attention_factor=baked.attention_factor,
        scale=baked.scale,
        mistake=suspect.mistake,
        equivalents=tuple(o for o in dict.fromkeys(others) if o != suspect.label),
        baked=baked,
    )


def _coinciding(rope: Rope | None, baked: Baked, declared: Rope | None) -> Iterator[str]:
    """Labels of the canonical schedules that bake the same table."""
    if rope is None or baked.scale != 1:
        return
    if rope.type == "linear" and rope.factor is not None and rope.factor != 1:
        yield with_scale(plain(rope), 1 / rope.factor, declared)
    for other in _canonical(rope):
        try:
            values = frequencies(other)
        except ScheduleError:
            continue
        if Baked.of(values).same(baked):
            yield label(other, declared)


def _canonical(rope: Rope) -> Iterator[Rope]:
    """The canonical members of the families that `rope` may belong to."""
    if rope.type != "default" or rope.freq_factors is not None:
        yield plain(rope)
    if rope.type == "dynamic" and rope.alpha is not None:
        growth = rope.rotary_dim / (rope.rotary_dim - 2)
        yield plain(rope, theta=rope.theta * rope.alpha**growth)
    original = rope.original_max_position_embeddings
    if original is None:
        return
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if rope.type == "llama3" and low and high and low != 1 and original % low == 0:
        yield replace(
            rope,
            low_freq_factor=1.0,
            high_freq_factor=high / low,
            original_max_position_embeddings=int(original / low),
        )
    slow = rope.beta_slow or 1
    if rope.type == "yarn" and slow != 1 and original % slow == 0:
        fast = (rope.beta_fast or 32) / slow
        yield replace(
            rope,
            beta_fast=None if fast == 32 else fast,
            beta_slow=None,
            original_max_position_embeddings=int(original / slow),
        )


def with_scale(rope: Rope, scale: float, declared: Rope | None) -> str:
    """The label of `rope` with every position multiplied."""
    name = label(rope, declared)
    if scale == 1:
        return name
    same = declared is not None and name == declared.type
    return scaled(scale) if same else f"{name}, {scaled(scale)}"
