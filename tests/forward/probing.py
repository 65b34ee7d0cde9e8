"""Packs for the probe: one of llama3, and tables for it that are right or wrong in a known way.

Tables come from formulas in numpy (builders, llama3), never from packimport.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from builders import Tables, plain, tiny_pack
from llama3 import llama3, tables_of

from forward.probe_report import Probe, Probed

PACKS = Path(__file__).parent.parent / "packs"
ROWS, PAIRS = 256, 8
LLAMA3 = {
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
INV_FREQ = llama3(PAIRS, 10000.0, 8.0, 1.0, 4.0, 64)
# yarn's attention factor (arXiv 2309.00071, eq. 22): 0.1 ln 4 + 1.
YARN_FACTOR = 0.1 * math.log(4) + 1
HALF = {"model_type": "phi", "partial_rotary_factor": 0.5, "rope_scaling": None}


def right(rows: int = ROWS) -> Tables:
    cos, sin = tables_of(INV_FREQ, rows)
    return cos, sin


def the_site(found: Probe) -> Probed:
    (site,) = found.sites
    assert found.gaps == ()
    return site


def llama3_pack(folder: Path, tables: Tables | None = None, **options: Any) -> Path:
    given = right() if tables is None else tables
    return tiny_pack(folder / "p", rows=ROWS, tables=given, config=LLAMA3, **options)


def doubled_positions() -> Tables:
    cos, sin = right(2 * ROWS)
    return cos[::2], sin[::2]


def half_angles() -> Tables:
    angles = np.outer(np.arange(ROWS, dtype=np.float16), INV_FREQ.astype(np.float16))
    return np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))


def damaged_at_its_end() -> Tables:
    cos, sin = right()
    cos[-1, 3] = np.nan
    return cos, sin


WRONG: dict[str, tuple[Callable[[], Tables], int]] = {
    "swapped": (lambda: right()[::-1], 0),
    "plain": (lambda: plain(ROWS, PAIRS), 1),
    "positions doubled": (doubled_positions, 1),
    "sin negated": (lambda: (right()[0], -right()[1]), 1),
    "factor lost": (lambda: (1.1 * right()[0], 1.1 * right()[1]), 0),
    "half-precision angles": (half_angles, 1),
    "NaN in the last row": (damaged_at_its_end, ROWS - 1),
    "one row late": (lambda: tuple(np.roll(part, 1, axis=0) for part in right()), 0),
    "another original length": (
        lambda: tables_of(llama3(PAIRS, 10000.0, 8.0, 1.0, 4.0, ROWS), ROWS),
        1,
    ),
}
