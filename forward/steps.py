"""Steps: which tokens are fed together, and the Blocks of logits that they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from packimport.errors import UsageError


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens `start` … `stop` − 1, fed in one run of the graph.

    decode: the step is one of those that imitate generation.
    """

    start: int
    stop: int
    decode: bool


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The logits of one step.

    logits: [rows, vocab] in the model's dtype, one row per token of the step. It may
            be a view of the engine's memory: use it before the next block is asked for.
    """

    step: Step
    logits: npt.NDArray[np.generic]


def plan(count: int, decode: int = 0, chunk: int | None = None) -> tuple[Step, ...]:
    """Steps over `count` tokens: prefill by `chunk` (None: at once), the last `decode` singly."""
    if not 0 <= decode <= count:
        raise UsageError(
            "--decode takes its tokens from the given ones",
            found=decode,
            allowed=f"0 to {count}",
        )
    if chunk is not None and chunk < 1:
        raise UsageError("--chunk is a number of tokens", found=chunk, allowed="1 or more")
    prefill = count - decode
    width = chunk or max(prefill, 1)
    chunks = [Step(start, min(start + width, prefill), False) for start in range(0, prefill, width)]
    singles = [Step(start, start + 1, True) for start in range(prefill, count)]
    return (*chunks, *singles)
