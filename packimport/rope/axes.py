"""M-RoPE: which of several positions turns which entry of a head.

A picture's token has a position per axis (time, height, width). Text has the
same number on every axis, and then each layout is the one-dimensional table.
The sources are models of transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from packimport.errors import ScheduleError
from packimport.rope.schedule import Rope

Axes: TypeAlias = NDArray[np.int64]


def _chunked(sections: tuple[int, ...]) -> list[int]:
    """[0]*s0 + [1]*s1 + [2]*s2. Source: qwen2_vl (also glm4v)."""
    return [axis for axis, size in enumerate(sections) for _ in range(size)]


def _interleaved(sections: tuple[int, ...]) -> list[int]:
    """Height at 1::3 and width at 2::3 of the first entries. Source: qwen3_vl."""
    axes = [0] * sum(sections)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * sections[axis]
    return axes


def _alternating(sections: tuple[int, ...]) -> list[int]:
    """Height and width in turn, then time; sections in that order. Source: ernie4_5_vl_moe."""
    return [1, 2] * sections[0] + [0] * sections[2]


def _doubled(sections: tuple[int, ...]) -> list[int]:
    """Chunks of twice a section over the whole head, so that an entry and its partner differ.

    Source: hunyuan_vl, whose configs say `xdrope_section`.
    """
    return [axis for axis, size in enumerate(sections) for _ in range(2 * size)]


LAYOUTS: Mapping[str, Callable[[tuple[int, ...]], list[int]]] = MappingProxyType(
    {
        "chunked": _chunked,
        "interleaved": _interleaved,
        "alternating": _alternating,
        "doubled": _doubled,
    }
)


def axes(rope: Rope) -> Axes:
    """The axis of position that turns each column of an M-RoPE table.

    int64 [pairs]; for the layout `doubled` int64 [2 * pairs], first the first
    entry of every pair, then its partner. All 0 for a rope without sections.
    """
    if rope.mrope_section is None or rope.mrope_layout is None:
        return np.zeros(rope.pairs, dtype=np.int64)
    return np.array(LAYOUTS[rope.mrope_layout](rope.mrope_section), dtype=np.int64)


def validate_sections(rope: Rope) -> None:
    """Refuse sections that do not fill the pairs of `rope` exactly: ScheduleError."""
    sections, layout = rope.mrope_section, rope.mrope_layout
    if sections is None and layout is None:
        return
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ScheduleError(
            "mrope_layout", "how the sections lie", found=repr(layout), allowed=", ".join(LAYOUTS)
        )
    if not isinstance(sections, tuple) or not all(_is_size(size) for size in sections):
        raise ScheduleError(
            "mrope_section",
            "sections of the pairs",
            found=repr(sections),
            allowed="integers above 0",
        )
    if sum(sections) != rope.pairs:
        _refuse(sections, f"integers whose sum is {rope.pairs}, the number of pairs")
    if layout != "doubled" and len(sections) != 3:
        _refuse(sections, "three sections, one per axis")
    if layout == "alternating" and sections[0] != sections[1]:
        _refuse(sections, "height and width alike, since they take turns")
    if layout == "interleaved" and any(3 * sections[a] + a > rope.pairs + 2 for a in (1, 2)):
        _refuse(sections, "height and width that fit at every third pair")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _refuse(sections: tuple[int, ...], allowed: str) -> None:
    raise ScheduleError(
        "mrope_section", "sections that do not fit", found=sections, allowed=allowed
    )
