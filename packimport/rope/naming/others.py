"""Others: a few further parameters that make the very frequencies of a named schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from packimport.errors import ScheduleError
from packimport.rope.frequencies import frequencies
from packimport.rope.naming.baked import Baked
from packimport.rope.naming.labels import label, number
from packimport.rope.schedule import Rope

_LENGTH = "original_max_position_embeddings"
# Beyond any length of a model.
_MOST = 2**40


def others(rope: Rope) -> Iterator[str]:
    """Labels, by what differs from `rope`, of llama3 and yarn schedules within two ulps of it.

    The lengths around its original one, and the bounds of its ramp with twice the length.
    """
    length = rope.original_max_position_embeddings
    if rope.type not in {"llama3", "yarn"} or length is None:
        return
    baked = _baked(rope)

    def is_same(other: Rope) -> bool:
        made = _baked(other)
        return made is not None and baked is not None and made.same(baked)

    # A frequency falls or stays where the length grows, so that equal ones are one range.
    least, most = (
        _farthest(
            length, step, lambda n: is_same(replace(rope, original_max_position_embeddings=n))
        )
        for step in (-1, 1)
    )
    if least < most:
        yield f"{rope.type} with {_LENGTH} {number(least)} to {number(most)}"
    doubled = _doubled(rope, length)
    if is_same(doubled):
        yield label(doubled, rope)


def _baked(rope: Rope) -> Baked | None:
    try:
        return Baked.of(frequencies(rope))
    except ScheduleError:
        return None


def _doubled(rope: Rope, length: int) -> Rope:
    """The ramp lies where length over bound says: the same for twice of each."""
    if rope.type == "llama3":
        assert rope.low_freq_factor is not None
        assert rope.high_freq_factor is not None
        return replace(
            rope,
            low_freq_factor=2 * rope.low_freq_factor,
            high_freq_factor=2 * rope.high_freq_factor,
            original_max_position_embeddings=2 * length,
        )
    return replace(
        rope,
        beta_slow=2 * (rope.beta_slow or 1),
        beta_fast=2 * (rope.beta_fast or 32),
        original_max_position_embeddings=2 * length,
    )


def _farthest(start: int, step: int, holds: Callable[[int], bool]) -> int:
    """The last number from `start` on, in the direction of `step`, up to which `holds`."""
    reach = 1
    while 1 <= start + step * reach <= _MOST and holds(start + step * reach):
        reach *= 2
    low, high = reach // 2, reach
    while high - low > 1:
        middle = (low + high) // 2
        n = start + step * middle
        low, high = (middle, high) if 1 <= n <= _MOST and holds(n) else (low, middle)
    return start + step * low
