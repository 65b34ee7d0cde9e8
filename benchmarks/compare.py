"""Speed and memory of `forward-serve compare`, against reading both files, and against torch.

    python benchmarks/compare.py [--positions 4096] [--vocab 128256] [--rounds 3] [--folder DIR]

Two dumps of random logits are made in a folder of their own and removed: 4.2 GB as by default.
Each step is a whole process: `cat` of both to /dev/null with a warm cache; ours; a minimal float64
KL in numpy; and torch's float64 log_softmax and kl_div over the same blocks on as many threads.
Limits: ours at 0.05 x the speed of `cat` or more, at 2 x that of torch, and 300 MB for all of its
processes together. Needs os.wait4 and /proc.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import measuring

# A process of its own: benchmarks/forward.py hides the package of that name from this one.
MAKE = """
import sys
from pathlib import Path
import numpy as np
from forward.dump_writer import Provenance, write_dump
from forward.steps import Block, plan
folder, positions, vocab = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
base, noise = rng.normal(0, 3, (64, vocab)).astype("f4"), rng.normal(0, 0.1, (64, vocab))
def blocks(times):
    for step in plan(positions, 0, 64):
        rows = step.stop - step.start
        scale = (1 + np.arange(step.start, step.stop) / 8192).astype("f4")[:, None]
        yield Block(step, base[:rows] * scale + times * noise[:rows].astype("f4"))
engine = {"name": "imported", "format": "npy"}
source = Provenance(engine=engine, kind="file", path="random", files={"random": (1, "0" * 64)})
for name, times in (("a", 0.0), ("b", 1.0)):
    write_dump(folder / name, np.arange(positions) % vocab, blocks(times), lambda: source)
"""
MINIMAL = """
import sys
import numpy as np
x, y = (np.load(path, mmap_mode="r") for path in sys.argv[1:3])
total = 0.0
for i in range(0, len(x), 4):
    p, q = (a[i : i + 4].astype(np.float64) for a in (x, y))
    p -= p.max(1, keepdims=True)
    q -= q.max(1, keepdims=True)
    w, v = np.exp(p), np.exp(q)
    s, t = w.sum(1), v.sum(1)
    total += ((w * (p - q)).sum(1) / s - np.log(s) + np.log(t)).sum()
print(total / len(x))
"""
TORCH = """
import sys
import numpy as np
import torch
torch.set_num_threads(int(sys.argv[3]))
x, y = (np.load(path, mmap_mode="r") for path in sys.argv[1:3])
total = 0.0
for i in range(0, len(x), 16):
    p, q = (torch.from_numpy(a[i : i + 16].copy()).double().log_softmax(-1) for a in (x, y))
    kl = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none")
    total += float(kl.sum())
print(total / len(x))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        measuring.run(measuring.python(MAKE, folder, args.positions, args.vocab))
        pair = [str(folder / "a"), str(folder / "b")]
        files = [f"{dump}/logits.npy" for dump in pair]
        size = sum(Path(file).stat().st_size for file in files) / 2**30
        commands = {
            "cat both": ["cat", *files],
            "forward-serve compare": [sys.executable, "-m", "forward", "compare", *pair],
            "minimal numpy": measuring.python(MINIMAL, *files),
            "torch float64": measuring.python(TORCH, *files, os.cpu_count()),
        }
        steps = {key: lambda c=command: measuring.run(c) for key, command in commands.items()}
        seen = measuring.rounds_of(steps, args.rounds)
        peak = measuring.peak_of_all(commands["forward-serve compare"])
    print(f"{args.positions} x {args.vocab}, {size:.1f} GB; {measuring.load()}")
    measuring.show(seen)
    cat, ours, torch = (seen[k] for k in ("cat both", "forward-serve compare", "torch float64"))
    measuring.ratio("speed against cat", cat.seconds / ours.seconds, ">= 0.05")
    measuring.ratio("speed against torch", torch.seconds / ours.seconds, ">= 2")
    measuring.ratio("peak memory in MB, of all processes", peak, "<= 300")
    right = (20 * cat.seconds >= ours.seconds, torch.seconds >= 2 * ours.seconds)
    return 0 if all(right) and peak <= 300 else 1


if __name__ == "__main__":
    sys.exit(main())
