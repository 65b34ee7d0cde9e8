"""Frequencies: a Rope as one float32 number per pair, and an attention factor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from packimport.errors import ScheduleError
from packimport.rope.bands import llama3, yarn
from packimport.rope.by_length import dynamic, longrope
from packimport.rope.plain import default, linear, proportional
from packimport.rope.powers import Float32s
from packimport.rope.schedule import Rope
from packimport.rope.validation import validate

__all__ = ["SCHEDULES", "Frequencies", "Schedule", "frequencies", "validate"]

Schedule = Callable[[Rope, "int | None"], "tuple[Float32s, float]"]

SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "default": default,
        "linear": linear,
        "dynamic": dynamic,
        "llama3": llama3,
        "yarn": yarn,
        "longrope": longrope,
        "proportional": proportional,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """What a schedule amounts to at one length.

    inv_freq:         float32 [pairs], read-only; radians per position.
    attention_factor: multiplies cos and sin, never the frequencies.
    """

    inv_freq: Float32s
    attention_factor: float


def frequencies(rope: Rope, seq_len: int | None = None) -> Frequencies:
    """The frequencies of `rope` for a call whose last position is seq_len - 1.

    Bit for bit those of transformers 5.24.0 on torch 2.13 run with
    ATEN_CPU_CAPABILITY=default. seq_len matters to `dynamic` and `longrope`
    only; None means the unscaled base and the short list.

    Raises ScheduleError where `rope` is not valid, or seq_len is not a positive
    integer, or the frequencies or a dynamic base leave float32.
    """
    validate(rope)
    if seq_len is not None and (
        isinstance(seq_len, bool) or not isinstance(seq_len, int) or seq_len < 1
    ):
        raise ScheduleError(
            "seq_len", "the length of a call", found=seq_len, allowed="an integer above 0, or None"
        )
    # An overflow on the way may be harmless, as of a wavelength; one in the result is not.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        inv_freq, attention_factor = SCHEDULES[rope.type](rope, seq_len)
    if not np.isfinite(inv_freq).all():
        raise ScheduleError("theta", "the frequencies leave float32", found=rope.theta)
    inv_freq.flags.writeable = False
    return Frequencies(inv_freq, attention_factor)
