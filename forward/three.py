"""Three: a pack before and after a patch, against one reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

from forward.comparison import TOOL, Comparison
from forward.figures import Figures
from forward.figures_text import (
    TOP_K,
    extent,
    floor_table,
    lacking,
    percent,
    scientific,
    table,
)
from packimport.errors import printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Three:
    """Two comparisons with the same reference; the gates are after's.

    Raises DumpError where they are of other positions.
    """

    before: Comparison
    after: Comparison

    def __post_init__(self) -> None:
        self.after.check_ranges(self.before, edges=True)

    @property
    def passed(self) -> bool:
        """Whether `after` breaks no gate."""
        return self.after.passed

    def to_dict(self) -> dict[str, object]:
        """As JSON, by schemas/comparison.schema.json."""
        return {
            "schema_version": 1,
            "tool": TOOL,
            "before": self.before.body(),
            "after": self.after.body(),
            "passed": self.passed,
        }

    def text(self) -> str:
        """For a person: one table, then the gates."""
        return "\n".join(self._lines())

    def _bounds(self) -> Iterator[str]:
        """Whose KL is the least that it can be: beside an exact one it says little."""
        known = {"before": self.before.exact, "after": self.after.exact}
        if not any(known.values()):
            yield TOP_K
        elif not all(known.values()):
            (which,) = (name for name, exact in known.items() if not exact)
            yield f"top-k        {which} keeps the largest logits alone: its KL is a lower bound"

    def _pairs(self) -> tuple[list[tuple[Figures, Figures]], list[str]]:
        """The ranges of both, and the names of those that the two do not have alike."""
        after = {figures.name: figures for figures in self.after.parts}
        both, others = [], []
        for figures in self.before.parts:
            beside = after.pop(figures.name, None)
            if beside is not None and beside.mark == figures.mark:
                both.append((figures, beside))
            else:
                others.append(figures.name)
        return both, [*others, *after]

    def _lines(self) -> Iterator[str]:
        yield f"reference    {printable(self.before.reference)}"
        yield f"before       {printable(self.before.run)}"
        yield f"after        {printable(self.after.run)}"
        yield f"logits       {extent(self.before.overall, self.before.vocab, self.before.dumps)}"
        yield from lacking(self.before.overall, self.before.left_out)
        yield from self._bounds()
        yield ""
        both, others = self._pairs()
        yield from table([*_MEANS, *starmap(_means, both)])
        yield ""
        yield from table([*_TAILS, *starmap(_tails, both)])
        if others:
            yield ""
            yield f"not shown    {', '.join(others)}: other positions before than after"
        if self.after.floor is not None:
            yield ""
            yield f"floor        {printable(self.after.floor.run)}, and after beside it"
            if not self.after.floor.exact:
                yield TOP_K
            yield from floor_table(self.after.ranges, self.after.floor.ranges)
        if self.after.worst:
            yield ""
            yield "worst positions after"
            yield from (place.text() for place in self.after.worst)
        if self.after.gates:
            yield ""
            yield "limits, of after"
            yield from (gate.text() for gate in self.after.gates)


_MEANS = (
    ("", "", "KL mean", "", "", "", "top-1", ""),
    ("", "count", *("before", "+-", "after", "+-"), "before", "after"),
)
_TAILS = (
    ("", "KL at 99.9 %", "", "PPL", "", ""),
    ("", "before", "after", "reference", "before", "after"),
)


def _means(before: Figures, after: Figures) -> tuple[str, ...]:
    both = (before, after)
    means = [(f"{of.kl_mean:.2e}", scientific(of.errors["kl_mean"])) for of in both]
    tops = (percent(figures.same_top1) for figures in both)
    return (before.name, str(before.count), *means[0], *means[1], *tops)


def _tails(before: Figures, after: Figures) -> tuple[str, ...]:
    return (
        before.name,
        *(f"{figures.kl_p999:.3e}" for figures in (before, after)),
        *map(_perplexity, (before.ppl_reference, before.ppl_run, after.ppl_run)),
    )


def _perplexity(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
