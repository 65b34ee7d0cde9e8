"""What a changed graph costs: a decode step before and after a table is chosen by length.

    python benchmarks/graph_changes.py [--rounds 300]

The schedule changes at 4096 positions; the tables have 131 072 rows x 32 pairs. What the `If`
adds to a step does not depend on the weights, so it is measured where it shows: on a decoder
of one small layer. Steps of the old and the new graph take turns, each one token behind a
past of the given length; of the differences between neighbours the middle counts, in the
processor's time on one thread, so that others on the machine count little. It is held against
the step of a decoder with 80 M parameters (8 layers, hidden 1024, fp32). The limit is 1.05 x
its time, up to 4096 positions. Needs the folder of this repository.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from builders import tiny_pack

from packimport import patch

LIMIT = 1.05
BORDER, ROWS, HEAD = 4096, 131072, 64
PAIRS = HEAD // 2
SCHEDULES: dict[str, dict[str, Any]] = {
    "dynamic": {
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": BORDER,
    },
    "longrope": {
        "model_type": "phi3",
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0 + i / PAIRS for i in range(PAIRS)],
            "long_factor": [1.0 + i for i in range(PAIRS)],
        },
        "original_max_position_embeddings": BORDER,
        "max_position_embeddings": ROWS,
    },
}


def step(folder: Path, length: int) -> Callable[[], float]:
    """A function that decodes the token at position length - 1; it returns seconds."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {
        "input_ids": np.array([[1]]),
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.array([[length - 1]]),
    }
    for value in session.get_inputs():
        if value.name.startswith("past"):
            shape = (1, value.shape[1], length - 1, HEAD)
            feeds[value.name] = rng.standard_normal(shape, np.float32)
    names = {value.name for value in session.get_inputs()}
    feeds = {name: array for name, array in feeds.items() if name in names}

    def once() -> float:
        start = time.process_time()
        session.run(["logits"], feeds)
        return time.process_time() - start

    return once


def added(source: Path, mended: Path, length: int, rounds: int) -> float:
    """Seconds that a step of the mended pack takes more than one of its source."""
    old, new = step(source, length), step(mended, length)
    gaps = []
    for index in range(rounds):
        if index % 2:
            before, after = old(), new()
        else:
            after, before = new(), old()
        gaps.append(after - before)
    return statistics.median(gaps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        for form in ("gqa", "rotary_embedding"):
            whole = tiny_pack(
                Path(name) / form, layers=8, heads=16, kv_heads=4, head_dim=HEAD, hidden=1024,
                vocab=8192, rows=ROWS, form=form,
            )  # fmt: skip
            steps = {}
            for length in (BORDER // 2, BORDER):
                decode = step(whole, length)
                steps[length] = statistics.median(decode() for _ in range(rounds // 4))
                print(f"{form:17}{length:6} positions: a step {steps[length] * 1e3:.2f} ms")
            for kind, config in SCHEDULES.items():
                source = tiny_pack(
                    Path(name) / f"{kind} {form}", layers=1, heads=2, kv_heads=1, head_dim=HEAD,
                    hidden=64, vocab=64, rows=ROWS, form=form, config=config,
                )  # fmt: skip
                mended = Path(name) / f"{kind} {form} mended"
                patch(source, mended)
                for length in (BORDER // 2, BORDER, BORDER + 1, 2 * BORDER, 8 * BORDER):
                    extra = added(source, mended, length, rounds)
                    text = f"{kind:9}{form:17}{length:6} positions: + {extra * 1e3:.3f} ms"
                    if length in steps:
                        ratio = 1 + extra / steps[length]
                        worst = max(worst, ratio)
                        text += f", {ratio:.4f}x"
                    print(text, flush=True)
    print(f"worst up to {BORDER} positions: {worst:.4f}x (limit {LIMIT})")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
