"""Generate: greedy tokens after a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from forward.dump import Tokens
from forward.genai_config import Decoder
from forward.prompt import check_tokens
from forward.runner import Runner
from forward.steps import plan
from packimport.errors import GraphError


def generate(
    runner: Runner, decoder: Decoder, prompt: Tokens, count: int, chunk: int | None = None
) -> Iterator[int]:
    """Up to `count` token ids, each the one of the largest logit; ends before an eos token.

    Among equal logits the lowest id wins. prompt: int64 [tokens]; with `count` it must
    be within the limits of the pack (`limits.check_length`).
    Raises DumpError for an empty prompt or unknown ids, GraphError where the logits have no
    largest number, and for more than one token of a graph that takes no past.
    """
    check_tokens(prompt, decoder.vocab_size, "the pack")
    if count > 1 and runner.no_parts is not None:
        raise GraphError(
            f"{runner.no_parts}, so no token can follow the first",
            place=decoder.graph,
            fix="Pass --generate 1, or export it with a past.",
        )
    run = runner.begin(len(prompt) + count)
    *steps, last = plan(len(prompt), 0, chunk or runner.chunk)
    for step in steps:
        run.skip(prompt[step.start : step.stop])
    rows = run.feed(prompt[last.start :])
    for index in range(count):
        token = _largest(rows[-1], len(prompt) + index - 1, decoder)
        if token in decoder.eos:
            return
        yield token
        if index < count - 1:
            rows = run.feed(np.array([token], dtype=np.int64))


def _largest(row: npt.NDArray[np.generic], position: int, decoder: Decoder) -> int:
    """The id of the largest logit; argmax alone would name one among NaN, too."""
    wide = row.astype(np.float32)
    most = float(wide.max())
    if not math.isfinite(most):
        raise GraphError(
            f"the logits after position {position} have no largest number",
            place=f"{decoder.graph}: output {decoder.logits}",
            found=most,
            allowed="finite logits, and -inf beside at least one finite logit",
            fix="Look at the pack's weights, and at what overflows float16.",
        )
    return int(wide.argmax())


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """The first index at which two lists of ids part, their ends included; None for equal ones."""
    for index, (one, other) in enumerate(zip(ids, others, strict=False)):
        if one != other:
            return index
    return None if len(ids) == len(others) else min(len(ids), len(others))
