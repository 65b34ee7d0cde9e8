"""Three: a pack before and after a patch, against one reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forward.comparison import TOOL, Comparison
from forward.figures import Figures
from forward.figures_text import TOP_K, extent, lacking, table
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

    def _lines(self) -> Iterator[str]:
        yield f"reference    {printable(self.before.reference)}"
        yield f"before       {printable(self.before.run)}"
        yield f"after        {printable(self.after.run)}"
        yield f"logits       {extent(self.before.overall, self.before.vocab, self.before.dumps)}"
        yield from lacking(self.before.overall, self.before.left_out)
        if not (self.before.exact and self.after.exact):
            yield TOP_K
        yield ""
        rows = zip(_ranges(self.before), _ranges(self.after), strict=True)
        yield from table([*_HEADS, *(_row(before, after) for before, after in rows)])
        if self.after.worst:
            yield ""
            yield "worst positions after"
            yield from (place.text() for place in self.after.worst)
        if self.after.gates:
            yield ""
            yield from (gate.text() for gate in self.after.gates)


_HEADS = (
    ("", "", "KL mean", "", "99.9 %", "", "same top-1", "", "PPL", "", ""),
    ("", "positions", *("before", "after") * 3, "reference", "before", "after"),
)


def _ranges(comparison: Comparison) -> tuple[Figures, ...]:
    """Phases are left out: the two runs may have other ones."""
    return (*comparison.ranges, *comparison.edges)


def _row(before: Figures, after: Figures) -> tuple[str, ...]:
    both = (before, after)
    return (
        before.name,
        str(before.count),
        *(f"{figures.kl_mean:.3e}" for figures in both),
        *(f"{figures.kl_p999:.3e}" for figures in both),
        *(f"{100 * figures.same_top1:.2f} %" for figures in both),
        *map(_perplexity, (before.ppl_reference, before.ppl_run, after.ppl_run)),
    )


def _perplexity(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
