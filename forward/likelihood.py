"""Likelihood: which of two packs finds the same text likelier, where no reference is at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from forward.compare import buckets, check_same, shared_positions
from forward.comparison import TOOL
from forward.data_set import DataSet, data_set, pairs
from forward.dump import Dump
from forward.figures import number, standard_error
from forward.figures_text import scientific, table
from forward.moments import Floats
from forward.scores import scores
from packimport.errors import DumpError, printable

# Two-sided p at or below LEVEL / (number of ranges) tells: then the chance that any range of
# two equally good packs is told is LEVEL at most (Bonferroni).
LEVEL = 0.01
# The mean of fewer differences is not near enough to normal for that p.
LEAST = 30
HELPS, HARMS, UNKNOWN, BOTH = "helps", "harms", "cannot be told", "helps and harms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The positions start … stop − 1. In nats per token, of the tokens that follow.

    before, after:  mean −log p; infinite where a token has no probability.
    left_out:       tokens to which both give none: their difference is no number, so the
                    next three are those of the others.
    difference:     the mean of after − before. standard_error: of it, from the pairs.
    p:              two-sided, of a normal mean.
    word:           "helps", "harms", "cannot be told"; "helps and harms" where each side
                    rules out a token that the other does not.
    """

    name: str
    start: int
    stop: int
    count: int
    left_out: int
    before: float
    after: float
    difference: float | None
    standard_error: float | None
    p: float | None
    word: str

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {key: number(value) for key, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Likelihood:
    """NLL of one text under two packs; verdict: the words of all ranges together."""

    before: str
    after: str
    overall: Range
    buckets: tuple[Range, ...]

    @property
    def verdict(self) -> str:
        """ "helps", "harms", "helps and harms" or "cannot be told", over all ranges."""
        words = {part.word for part in (self.overall, *self.buckets)} - {UNKNOWN}
        return BOTH if len(words) > 1 else words.pop() if words else UNKNOWN

    @property
    def passed(self) -> bool:
        """Whether the patch harms nowhere, as far as can be told."""
        return self.verdict in (HELPS, UNKNOWN)

    def to_dict(self) -> dict[str, object]:
        """As JSON, by schemas/comparison.schema.json."""
        return {
            "schema_version": 1,
            "tool": TOOL,
            "before": self.before,
            "after": self.after,
            "criterion": {
                "level": LEVEL,
                "comparisons": 1 + len(self.buckets),
                "least_positions": LEAST,
            },
            "overall": self.overall.to_dict(),
            "buckets": [part.to_dict() for part in self.buckets],
            "verdict": self.verdict,
        }

    def text(self) -> str:
        """For a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"before       {printable(self.before)}"
        yield f"after        {printable(self.after)}"
        yield f"scored       {self.overall.count} next tokens, mean -log p in nats"
        if self.overall.left_out:
            yield (
                f"left out     {self.overall.left_out} of them from the difference:"
                " both give them no probability"
            )
        yield ""
        head = ("", "tokens", "before", "after", "difference", "+-", "p", "the patch")
        yield from table([head, *map(_row, (self.overall, *self.buckets))])
        yield ""
        count = 1 + len(self.buckets)
        yield f"the patch: {self.verdict} (told at p <= {LEVEL:g} / {count} ranges)"


def likelihood(before: Dump | DataSet, after: Dump | DataSet) -> Likelihood:
    """The NLL of the text under both, at the positions that both have.

    Raises DumpError where tokens or vocabularies differ, where logits have no softmax,
    and where a top-k dump does not know a next token.
    """
    one, other = data_set(before), data_set(after)
    places, sides = [], []
    for pair in pairs(one, other):
        check_same(*pair)
        at = shared_positions(*pair)
        at = at[pair[0].following(at) >= 0]
        with ThreadPoolExecutor(2) as pool:
            sides.append(tuple(pool.map(partial(scores, at=at), pair)))
        places.append(at)
    at = np.concatenate(places)
    if not at.size:
        raise DumpError(
            "no token follows a position that both dumps have",
            place=other.name,
            fix="Dump more positions: a likelihood is that of the next tokens.",
        )
    x, y = (np.concatenate(side) for side in zip(*sides, strict=True))
    stop = int(at.max()) + 1
    spans = [("all", 0, stop)]
    spans += [(f"{low}-{high - 1}", low, min(high, stop)) for low, high in buckets(at)]
    level = LEVEL / len(spans)

    def part(name: str, start: int, stop: int) -> Range:
        chosen = (at >= start) & (at < stop)
        return _range(name, (start, stop), x[chosen], y[chosen], level)

    overall, *parts = (part(*span) for span in spans)
    return Likelihood(before=one.name, after=other.name, overall=overall, buckets=tuple(parts))


def _range(name: str, span: tuple[int, int], x: Floats, y: Floats, level: float) -> Range:
    """x, y: −log p before and after, float64 [positions]."""
    both = np.isinf(x) & np.isinf(y)
    pairs = y[~both] - x[~both]
    # Where one pack rules out a token of the text, no error is needed to tell it.
    ruled = {HARMS if gap > 0 else HELPS for gap in pairs[np.isinf(pairs)].tolist()}
    difference = float(pairs.mean()) if pairs.size and not ruled else None
    error = standard_error(pairs)
    p = None if difference is None or error is None else _p(difference, error)
    word = _word(difference, p, len(pairs), level)
    if ruled:
        p, word = 0.0, BOTH if len(ruled) > 1 else ruled.pop()
    return Range(
        name=name,
        start=span[0],
        stop=span[1],
        count=len(x),
        left_out=int(both.sum()),
        before=float(x.mean()),
        after=float(y.mean()),
        difference=difference,
        standard_error=error,
        p=p,
        word=word,
    )


def _word(difference: float | None, p: float | None, count: int, level: float) -> str:
    """What `count` finite pairs tell."""
    if difference is None or p is None or p > level or count < LEAST:
        return UNKNOWN
    return HARMS if difference > 0 else HELPS


def _p(mean: float, error: float) -> float:
    """Two-sided, of a normal mean with this error; 1 where nothing differs."""
    if mean == 0.0:
        return 1.0
    return math.erfc(abs(mean) / error / math.sqrt(2.0)) if error else 0.0


def _row(part: Range) -> tuple[str, ...]:
    return (
        part.name,
        str(part.count),
        *(f"{value:.4f}" for value in (part.before, part.after)),
        "-" if part.difference is None else f"{part.difference:+.3e}",
        scientific(part.standard_error),
        "-" if part.p is None else f"{part.p:.1g}",
        part.word,
    )
