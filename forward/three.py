"""Three: a pack before and after a patch, against one reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

from forward.comparison import TOOL, Comparison
from forward.figures import Figures
from forward.figures_text import TOP_K, extent, floor_table, lacking, percent, table
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

    def _lines(self) -> Iterator[str]:
        yield f"reference    {printable(self.before.reference)}"
        yield f"before       {printable(self.before.run)}"
        yield f"after        {printable(self.after.run)}"
        yield f"logits       {extent(self.before.overall, self.before.vocab, self.before.dumps)}"
        yield from lacking(self.before.overall, self.before.left_out)
        yield from self._bounds()
        yield ""
        both = [
            (before, after)
            for before, after in zip(_ranges(self.before), _ranges(self.after), strict=False)
            if (before.name, before.count) == (after.name, after.count)
        ]
        yield from table([*_DIVERGENCES, *starmap(_divergence, both)])
        yield ""
        yield from table([*_OTHERS, *starmap(_other, both)])
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


_DIVERGENCES = (
    ("", "", "KL mean", "", "KL at 99.9 %", ""),
    ("", "count", *("before", "after") * 2),
)
_OTHERS = (
    ("", "same top-1", "", "PPL", "", ""),
    ("", "before", "after", "reference", "before", "after"),
)


def _ranges(comparison: Comparison) -> tuple[Figures, ...]:
    """Phases stand last: the two runs may have other ones, which have no line then."""
    return (*comparison.ranges, *comparison.edges, *comparison.phases)


def _divergence(before: Figures, after: Figures) -> tuple[str, ...]:
    both = (before, after)
    return (
        before.name,
        str(before.count),
        *(f"{figures.kl_mean:.3e}" for figures in both),
        *(f"{figures.kl_p999:.3e}" for figures in both),
    )


def _other(before: Figures, after: Figures) -> tuple[str, ...]:
    return (
        before.name,
        *(percent(figures.same_top1) for figures in (before, after)),
        *map(_perplexity, (before.ppl_reference, before.ppl_run, after.ppl_run)),
    )


def _perplexity(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
