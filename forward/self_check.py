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

# The largest difference at any position, by the dtype of the logits: sums in another order
# differ by some units of its last place (2^-24, 2^-11, 2^-8). Measured with onnxruntime 1.32
# on x86-64, decode against prefill, over SmolLM2-135M packs of onnxruntime-genai with four
# random and one real text of 96 tokens, and one of either with 512: float32 5.9e-6 to 2.1e-5,
# float16 0.0095 to 0.024; the packs in tests/packs with 96: 8.2e-7 and 2.8e-4. Chunks,
# batches and caches differed by nothing. bfloat16, which the CPU does not multiply, is not
# measured: twice float16's.
# One position that takes the row beside its own is off by 0.27 there, in float32 and float16.
_BOUNDS = {"float32": 1e-4, "float16": 0.1, "bfloat16": 0.2}
# onnxruntime rounds what it multiplies by such weights to 8 bits in a step of one token and
# not in a longer one: 0.17 to 0.24 by the same measure on SmolLM2-135M in int4, and 5e-4 on
# tests/packs. The one wrong position is off by 0.44 there.
_QUANTISED = 0.4

# The largest difference, and its position.
Worst = tuple[float, int]
Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Two ways to feed the same tokens.

    difference: √ of the mean of (logits − logits)² over the standard deviation of the
                logits, at the worst position of those that the ways feed differently; None
                where the pack can't be run in both ways, for the reason `why_not`.
    position:   the worst one.
    refused:    that reason is onnxruntime's: the graph says that it can be run.
    """

    name: str
    bound: float
    difference: float | None = None
    position: int | None = None
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
        where = f"  at position {self.position}" if self.difference else ""
        return f"{self.name:<24}  {word:<9}  {self.difference:8.1e}  bound {self.bound:g}{where}"


def self_check(runner: Runner, decoder: Decoder, tokens: Tokens) -> tuple[Check, ...]:
    """Run `tokens`, int64 [count], in every way; they must be within the limits of the pack.

    Raises DumpError for fewer than two tokens.
    """
    if len(tokens) < 2:
        raise DumpError("a self-check takes two tokens or more", found=len(tokens))
    same_steps = _BOUNDS[runner.dtype]
    other_steps = max(same_steps, _QUANTISED if runner.quantised else 0.0)
    count = len(tokens)
    size = min(_CHUNK, count // 2)
    parts = [*range(size, count, size), count]
    half = [count // 2, *range(count // 2 + 1, count + 1)]
    whole = _fed(runner.begin(count), tokens, [count])

    lengths = (max(1, count // 3), max(1, 2 * count // 3), count)

    def batched() -> Worst:
        rows = runner.batch([tokens[:length] for length in lengths])
        # What follows a token does not bear on it: each is a part of the whole.
        return max(_difference(whole, dict(enumerate(part))) for part in rows)

    def cached() -> Worst:
        shared, growing = (
            _fed(runner.begin(count, share), tokens, half) for share in (True, False)
        )
        return _difference(growing, shared)

    def feed(stops: Sequence[int]) -> Worst:
        """Up to the first stop both ways are a prefill from nothing: that shows no difference."""
        return _difference(whole, _fed(runner.begin(count), tokens, stops), stops[0])

    ways: tuple[tuple[str, str | None, float, Callable[[], Worst]], ...] = (
        ("decode = prefill", runner.no_parts_of(half[0], count), other_steps, lambda: feed(half)),
        ("chunked = whole", runner.no_parts_of(size, count), other_steps, lambda: feed(parts)),
        ("batch = single", runner.no_batch(lengths), same_steps, batched),
        ("cache shared = growing", runner.one_cache, same_steps, cached),
    )

    def check(name: str, why_not: str | None, bound: float, measure: Callable[[], Worst]) -> Check:
        if why_not is not None:
            return Check(name=name, bound=bound, why_not=why_not)
        try:
            difference, position = measure()
            return Check(name=name, bound=bound, difference=difference, position=position)
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


def _difference(one: Mapping[int, Rows], other: Mapping[int, Rows], first: int = 0) -> Worst:
    """The largest difference at the positions from `first` on that both have, and where.

    inf for logits without a number. The largest, as one wrong position is a wrong pack.
    """
    both = sorted(at for at in one.keys() & other.keys() if at >= first)
    a, b = (np.stack([rows[at] for at in both]) for rows in (one, other))
    bad = np.flatnonzero(~(np.isfinite(a) & np.isfinite(b)).all(axis=1))
    if bad.size:
        return math.inf, both[int(bad[0])]
    off = np.sqrt(((a - b) ** 2).mean(axis=1))
    off /= np.maximum(a.std(axis=1), np.finfo(np.float64).tiny)
    worst = int(off.argmax())
    return float(off[worst]), both[worst]
