"""Self-check: the ways to feed the same tokens to a pack give the same logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forward.dump import Tokens
from forward.genai_config import Decoder
from forward.run import Run
from forward.runner import Runner
from packimport.errors import DumpError, GraphError

# Tokens of the check: enough that the fastest and the slowest pairs have turned.
LENGTH = 96
_CHUNK = 13

# The largest difference by the dtype of the logits: sums in another order differ by some
# units of its last place (2^-24, 2^-11, 2^-8). A table that does not advance differs by tenths.
_BOUNDS = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
# onnxruntime rounds what it multiplies by such weights to 8 bits in a step of one token and
# not in a longer one: 0.05 to 0.08 on SmolLM2 in int4 and int8.
_QUANTISED = 0.15

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Two ways to feed the same tokens.

    difference: √ of the mean of (logits − logits)² over the standard deviation of the
                logits, at the median position; None where the pack can't be run in both
                ways, for the reason `why_not`.
    refused:    that reason is onnxruntime's: the graph says that it can be run.
    """

    name: str
    bound: float
    difference: float | None = None
    why_not: str | None = None
    refused: bool = False

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against it."""
        if self.difference is None:
            return not self.refused
        return self.difference <= self.bound

    def text(self) -> str:
        """One line of a table."""
        if self.difference is None:
            word = "REFUSED" if self.refused else "not run"
            return f"{self.name:<24}  {word}: {self.why_not}"
        word = "equal" if self.passed else "DIFFERENT"
        return f"{self.name:<24}  {word:<9}  {self.difference:8.1e}  bound {self.bound:.0e}"


def self_check(runner: Runner, decoder: Decoder, tokens: Tokens) -> tuple[Check, ...]:
    """Run `tokens`, int64 [count], in every way; they must be within the limits of the pack.

    Raises DumpError for fewer than two tokens.
    """
    if len(tokens) < 2:
        raise DumpError("a self-check takes two tokens or more", found=len(tokens))
    bound = max(_BOUNDS[runner.dtype], _QUANTISED if runner.quantised else 0.0)
    count = len(tokens)
    parts = [*range(_CHUNK, count, _CHUNK), count]
    half = [count // 2, *range(count // 2 + 1, count + 1)]
    whole = _fed(runner.begin(count), tokens, [count])

    def batched() -> float:
        lengths = (max(1, count // 3), max(1, 2 * count // 3), count)
        rows = runner.batch([tokens[:length] for length in lengths])
        # What follows a token does not bear on it: each is a part of the whole.
        return max(_difference(whole, dict(enumerate(part))) for part in rows)

    def cached() -> float:
        shared, growing = (
            _fed(runner.begin(count, share), tokens, half) for share in (True, False)
        )
        return _difference(growing, shared)

    ways: tuple[tuple[str, str | None, Callable[[], float]], ...] = (
        ("decode = prefill", runner.no_parts, lambda: _difference(whole, feed(half))),
        ("chunked = whole", runner.no_parts, lambda: _difference(whole, feed(parts))),
        ("batch = single", runner.no_batch, batched),
        ("cache shared = growing", runner.one_cache, cached),
    )

    def feed(stops: Sequence[int]) -> Mapping[int, Rows]:
        return _fed(runner.begin(count), tokens, stops)

    def check(name: str, why_not: str | None, measure: Callable[[], float]) -> Check:
        if why_not is not None:
            return Check(name=name, bound=bound, why_not=why_not)
        try:
            return Check(name=name, bound=bound, difference=measure())
        except GraphError as error:
            # A mask that is computed for a prompt or one token does not fit a part of one.
            known = name == "chunked = whole" and not runner.shareable
            return Check(name=name, bound=bound, why_not=str(error), refused=not known)

    return tuple(check(*way) for way in ways)


def sample_tokens(decoder: Decoder, most: int) -> Tokens:
    """LENGTH ids, or `most` where that is less; the same each time."""
    return np.random.default_rng(0).integers(0, decoder.vocab_size, min(LENGTH, most))


def _fed(run: Run, tokens: Tokens, stops: Sequence[int]) -> dict[int, Rows]:
    """Position ─▶ logits, of what the graph returns where it is fed up to each stop."""
    found: dict[int, Rows] = {}
    start = 0
    for stop in stops:
        rows = run.feed(tokens[start:stop]).astype(np.float64)
        found.update(zip(range(stop - len(rows), stop), rows, strict=True))
        start = stop
    return found


def _difference(one: Mapping[int, Rows], other: Mapping[int, Rows]) -> float:
    """The difference at the positions that both have; inf for logits without a number."""
    both = sorted(one.keys() & other.keys())
    a, b = (np.stack([rows[at] for at in both]) for rows in (one, other))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    off = np.sqrt(((a - b) ** 2).mean(axis=1))
    return float(np.median(off / np.maximum(a.std(axis=1), np.finfo(np.float64).tiny)))
