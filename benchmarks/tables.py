"""How long a table takes: ours rounded once from float64, torch's in float32.

    python benchmarks/tables.py [--rounds N]

131072 rows of 64 pairs, cos and sin, in one process on two cores, in turns. The
goal is 2.5 times torch's time at most for a table, and 0.2 times the table's for
its identification. torch's float32 entries are 1 ulp off the nearest in about
one of six; ours are the nearest. Needs torch (extra `reference`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from packimport.rope.frequencies import frequencies
from packimport.rope.identify import identify
from packimport.rope.schedule import Rope
from packimport.rope.tables import table

ROWS = 131072
ROPE = Rope(
    type="llama3",
    theta=500000.0,
    head_dim=128,
    rotary_dim=128,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
DTYPES = ("float32", "float16", "bfloat16")


def two_cores() -> None:
    torch.set_num_threads(2)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def torch_table() -> tuple[torch.Tensor, torch.Tensor]:
    inv_freq = torch.from_numpy(frequencies(ROPE).inv_freq.copy())
    angle = torch.arange(ROWS).float()[:, None] * inv_freq
    return angle.cos(), angle.sin()


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    two_cores()
    made = table(ROPE, ROWS, dtype="float32")
    works: dict[str, Callable[[], object]] = {"torch float32": torch_table}
    for dtype in DTYPES:
        works[dtype] = lambda dtype=dtype: table(ROPE, ROWS, dtype=dtype)
    works["float64, then float32"] = lambda: table(ROPE, ROWS).astype(np.float32)
    works["identify"] = lambda: identify(made.cos, made.sin, [ROPE])
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            spent = seconds(work)
            if turn:  # The first turn warms up.
                times[name].append(spent)
    middle = {name: statistics.median(spent) for name, spent in times.items()}
    for name, spent in middle.items():
        base, of = ("float32", "the table") if name == "identify" else ("torch float32", "torch")
        print(f"{name:24} {spent * 1000:8.1f} ms  {spent / middle[base]:5.2f} x {of}")


if __name__ == "__main__":
    main()
