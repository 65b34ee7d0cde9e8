"""Attention: what multiplies cos and sin, named apart from the frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from packimport.rope.naming.bounds import Range
from packimport.rope.naming.labels import label, number
from packimport.rope.naming.simplest import simplest
from packimport.rope.naming.suspects import Suspect
from packimport.rope.schedule import Rope


def with_amplitude(suspect: Suspect, amplitude: Range, declared: Rope | None) -> Suspect:
    """`suspect` with the attention factor that the table shows, and the mistake this is.

    Unchanged where its own factor fits.
    """
    low, high = float(amplitude.low), float(amplitude.high)
    right = suspect.baked.attention_factor
    if low <= right <= high or low <= 0:
        return suspect
    mistake, value = next(
        ((m, v) for m, v in _known(suspect.rope, right) if low <= v <= high),
        (None, simplest(low, high)),
    )
    changed = _restated(suspect.rope, value)
    return replace(
        suspect,
        label=f"{suspect.label}, cos and sin times {number(value)}"
        if changed is None
        else label(changed, declared),
        rope=suspect.rope if changed is None else changed,
        baked=replace(suspect.baked, attention_factor=value),
        mistake=suspect.mistake or mistake,
        equivalents=(),
    )


def _known(rope: Rope | None, right: float) -> Iterator[tuple[str, float]]:
    """The wrong attention factors that exporters are known for."""
    yield "attention-lost", 1.0
    if rope is not None and rope.mscale:
        yield "attention-mscale", float(rope.mscale)
    if rope is not None and rope.factor is not None and rope.factor > 1:
        yield "attention-recomputed", 0.1 * math.log(rope.factor) + 1
    yield "attention-twice", right * right


def _restated(rope: Rope | None, value: float) -> Rope | None:
    """`rope` with that attention factor, if its type has one."""
    if rope is None or rope.type not in ("yarn", "longrope"):
        return None
    if rope.type == "longrope" and rope.short_mscale is not None:
        return replace(rope, short_mscale=value, long_mscale=value)
    return replace(rope, attention_factor=value)
