"""Time and memory of a long `forward-serve --dump-logits`, against a bare onnxruntime loop.

    python benchmarks/dumping.py PACK [--tokens 8192] [--rounds 2]

PACK is a CPU pack of SmolLM2-135M: `python tests/oracle/smollm2.py OUT` makes the fp32 one. The
bare loop feeds the same chunks of 256 with past and present bound once, and keeps no logits.
Limits: 1.05 x its time plus what the disk takes to write the file, and 300 MB above its memory.
`--clock cpu` counts processor seconds, for a machine that is busy with something else.
Needs os.wait4.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TIMES, MEGABYTES = 1.05, 300.0

BARE = """
import sys
import numpy as np
import onnxruntime as ort

graph, tokens = sys.argv[1:]
session = ort.InferenceSession(graph, providers=["CPUExecutionProvider"])
ids = np.load(tokens)
binding = session.io_binding()
held = []
for port in session.get_inputs():
    if port.name.startswith("past"):
        room = np.zeros((1, port.shape[1], len(ids), 64), np.float32)
        value = ort.OrtValue.ortvalue_from_numpy(room)
        held.append(value)
        binding.bind_ortvalue_input(port.name, value)
        binding.bind_ortvalue_output(port.name.replace("past_key_values", "present"), value)
for start in range(0, len(ids), 256):
    part = ids[None, start : start + 256].copy()
    mask = np.ones((1, start + part.shape[1]), np.int64)
    fed = [ort.OrtValue.ortvalue_from_numpy(array) for array in (part, mask)]
    binding.bind_ortvalue_input("input_ids", fed[0])
    binding.bind_ortvalue_input("attention_mask", fed[1])
    if start == 0 or part.shape[1] < 256:
        binding.bind_output("logits")
    session.run_with_iobinding(binding)
    if start == 0:
        binding.bind_ortvalue_output("logits", binding.get_outputs()[-1])
"""


def measure(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak resident megabytes of a process."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"exit {child.returncode}: {' '.join(command[:4])}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def write_time(folder: Path, size: int, clock: int) -> float:
    """Seconds to write `size` bytes in the blocks of a dump, without waiting for the disk."""
    block = np.zeros(min(size, 256 * 49152 * 4), np.uint8)
    start = (time.perf_counter(), time.process_time())
    with (folder / "blank").open("wb") as file:
        for _ in range(0, size, len(block)):
            file.write(block.data)
    seconds = (time.perf_counter() - start[0], time.process_time() - start[1])
    (folder / "blank").unlink()
    return seconds[clock]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    args = parser.parse_args()
    clock = ("wall", "cpu").index(args.clock)
    bares, dumps, writes = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = folder / "tokens.npy"
        np.save(tokens, np.random.default_rng(0).integers(3, 49152, args.tokens))
        graph, out = str(args.pack / "model.onnx"), folder / "dump"
        for _ in range(args.rounds):
            bares.append(measure([sys.executable, "-c", BARE, graph, str(tokens)]))
            words = [sys.executable, "-m", "forward", str(args.pack), "--dump-logits", str(out)]
            dumps.append(measure([*words, "--tokens", str(tokens)]))
            # Before the dump is removed: its pages of the cache would be taken over, and the
            # first use of a page of a virtual machine's memory takes longer than writing to it.
            writes.append(write_time(folder, (out / "logits.npy").stat().st_size, clock))
            shutil.rmtree(out)
    bare, dump, write = (
        min(row[clock] for row in bares),
        min(row[clock] for row in dumps),
        min(writes),
    )
    above = max(row[2] for row in dumps) - max(row[2] for row in bares)
    limit = TIMES * bare + write
    print(f"bare {bare:.2f} s, writing {write:.2f} s, dump {dump:.2f} s, limit {limit:.2f} s")
    print(f"memory above the bare loop's: {above:.0f} MB, limit {MEGABYTES:.0f} MB")
    return 0 if dump <= limit and above <= MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
