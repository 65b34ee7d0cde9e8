"""Comparison: how far a run's logits are from a reference's, as a record and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from forward.figures import Figures
from forward.figures_text import TOP_K, extent, figures_tables, floor_table, lacking, singles
from forward.gates import Gate, Limits, gates
from forward.tokenizer import Tokenizer
from forward.worst import Worst
from packimport import __version__
from packimport.errors import DumpError, PackimportError, UsageError, printable

SCHEMA = "comparison.schema.json"
TOOL = {"name": "forward-serve", "version": __version__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A whole comparison. `to_dict()` obeys schemas/comparison.schema.json.

    dumps:       how many of each side are taken together.
    exact:       False where a dump keeps the largest logits alone: every KL is then the
                 least that it can be.
    alike:       False where one side holds log p and the other logits: what compares entries
                 is then None.
    left_out:    how many positions the reference has and the run has not.
    overall:     every position that both dumps have.
    buckets:     ranges of positions, in order.
    phases:      prefill and decode, where the run has both.
    edges:       the positions before and from the edges of a table.
    correlation: Pearson's r of all pairs of finite logits; None where a side is constant,
                 or where not every logit is known.
    farthest:    which dump has the largest KL of all; None where there is one.
    worst:       the positions of the largest KL, as many as were asked for.
    floor:       the reference against itself in another precision.
    gates:       the limits that `held_to` was given.
    """

    reference: str
    run: str
    dumps: int
    vocab: int
    exact: bool
    alike: bool
    overall: Figures
    buckets: tuple[Figures, ...]
    phases: tuple[Figures, ...]
    edges: tuple[Figures, ...]
    correlation: float | None
    left_out: int = 0
    farthest: str | None = None
    worst: tuple[Worst, ...] = ()
    floor: Comparison | None = None
    gates: tuple[Gate, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no gate is broken."""
        return all(gate.passed for gate in self.gates)

    def over(self, floor: Comparison) -> Comparison:
        """The same with a noise floor, which must be of the same reference and positions."""
        floor.check_ranges(self)
        return replace(self, floor=floor)

    def check_ranges(self, other: Comparison, edges: bool = False) -> None:
        """Refuse to stand beside a comparison of other positions: figures would not match.

        edges: those around the edges of tables are held to it, too.
        """
        mine, others = (
            [(part.name, part.mark) for part in (*one.ranges, *(one.edges if edges else ()))]
            for one in (self, other)
        )
        if mine != others:
            alike = self.overall.count == other.overall.count
            raise DumpError(
                f"the dump has other positions than {other.run}",
                place=self.run,
                found=f"{self.overall.count} positions up to {self.overall.stop - 1}",
                allowed=f"{'the same ' if alike else ''}{other.overall.count} up to"
                f" {other.overall.stop - 1}",
                fix="Make both dumps with the same --positions.",
            )

    def held_to(
        self,
        max_kl: float | None = None,
        min_top1: float | None = None,
        *,
        max_kl_p999: float | None = None,
        max_floor: float | None = None,
        max_floor_p999: float | None = None,
        max_floor_top1: float | None = None,
        by_bucket: bool = False,
    ) -> Comparison:
        """The same with gates; see Limits.

        Raises UsageError for what is held to a floor without one, DumpError for a limit of a KL
        that is not known, for a floor that is infinite, and for any limit where position 0
        alone is compared.
        """
        limits = Limits(
            max_kl=max_kl,
            max_kl_p999=max_kl_p999,
            min_top1=min_top1,
            max_floor=max_floor,
            max_floor_p999=max_floor_p999,
            max_floor_top1=max_floor_top1,
            by_bucket=by_bucket,
        )
        self._check_limits(limits)
        floor = None if self.floor is None else self.floor.ranges
        return replace(self, gates=gates(limits, self.ranges, floor))

    def _check_limits(self, limits: Limits) -> None:
        """Refuse limits that prove nothing here."""
        if limits.over_floor and self.floor is None:
            raise UsageError("a limit by the floor needs a noise floor", fix="Pass --floor DUMP.")
        if limits.any and self.overall.stop == 1:
            raise DumpError(
                "position 0 alone is compared: no RoPE turns anything there, so it proves nothing",
                place=self.run,
                found=f"{self.overall.count} of {self.overall.count + self.left_out} positions"
                " of the reference",
                fix="Dump more positions, or leave the limits out.",
            )
        exact = self.exact and (self.floor is None or self.floor.exact)
        if not exact and limits.of_kl:
            raise DumpError(
                "a top-k dump gives the least that KL can be, not what it is",
                place=self.run,
                fix="Dump without --top-k, or hold it to --min-top1 alone.",
            )
        if self.floor is not None and limits.over_floor and self.floor.overall.kl_mean == inf:
            raise DumpError(
                "the floor's KL is infinite, so any other would be within it",
                place=self.floor.run,
                found="a token that the floor alone rules out, at position"
                f" {self.floor.overall.kl_max_position}",
                fix="Make the floor by a precision that rules out no token, or use --max-kl.",
            )

    def has_edge(self, edge: int) -> bool:
        """Whether a position near this edge of a table is compared."""
        return any(part.name.split()[-1] == str(edge) for part in self.edges)

    @property
    def parts(self) -> tuple[Figures, ...]:
        """The whole, and all that has a line of its own, as a table shows them."""
        return (self.overall, *self.phases, *self.buckets, *self.edges)

    @property
    def ranges(self) -> tuple[Figures, ...]:
        """The whole, and the buckets."""
        return (self.overall, *self.buckets)

    def decoded(self, tokenizer: Tokenizer) -> Comparison:
        """The same with the texts of the worst positions."""
        return replace(self, worst=tuple(place.decoded(tokenizer) for place in self.worst))

    def to_dict(self) -> dict[str, object]:
        """As JSON. An infinite number is the string "Infinity", as in protobuf's JSON."""
        return {"schema_version": 1, "tool": TOOL, **self.body()}

    def body(self) -> dict[str, object]:
        """As JSON, without what every document has."""
        return {
            "reference": self.reference,
            "run": self.run,
            "dumps": self.dumps,
            "positions": self.overall.count,
            "left_out": self.left_out,
            "vocab": self.vocab,
            "kl": "exact" if self.exact else "lower bound",
            "overall": self.overall.to_dict(),
            "buckets": [figures.to_dict() for figures in self.buckets],
            "phases": [figures.to_dict() for figures in self.phases],
            "edges": [figures.to_dict() for figures in self.edges],
            "correlation": self.correlation,
            "farthest": self.farthest,
            "worst": [place.to_dict() for place in self.worst],
            "floor": None if self.floor is None else self.floor.body(),
            "gates": [gate.to_dict() for gate in self.gates],
            "passed": self.passed,
        }

    def text(self) -> str:
        """For a person: single figures, a table, the gates."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"reference    {printable(self.reference)}"
        yield f"run          {printable(self.run)}"
        yield f"logits       {extent(self.overall, self.vocab, self.dumps)}"
        yield from lacking(self.overall, self.left_out)
        if not self.exact:
            yield TOP_K
        elif not self.alike:
            yield "correlation  none: one side holds log p, the other logits"
        elif self.correlation is None:
            yield "correlation  undefined, a side is constant"
        else:
            yield f"correlation  {self.correlation:.9f}"
        yield from singles(self.overall, self.farthest)
        yield ""
        yield from figures_tables(self.parts)
        if self.floor is not None:
            yield ""
            yield f"floor        {printable(self.floor.run)}"
            if not self.floor.exact:
                yield TOP_K
            yield from floor_table(self.ranges, self.floor.ranges)
        if self.worst:
            yield ""
            yield "worst positions"
            yield from (place.text() for place in self.worst)
        if self.gates:
            yield ""
            yield from (gate.text() for gate in self.gates)


def refusal(error: PackimportError) -> dict[str, object]:
    """The JSON where there is nothing to compare."""
    return {"schema_version": 1, "tool": TOOL, "error": error.to_dict()}
