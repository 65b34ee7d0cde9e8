"""Comparison: how far a run's logits are from a reference's, as a record, as JSON, as text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from packimport import __version__
from packimport.errors import PackimportError, printable

SCHEMA = "comparison.schema.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What is said about the positions start … stop − 1. KL is KL(reference‖run) in nats.

    name:       "all", "prefill", "decode", or a range of positions such as "128-511".
    kl_p99:     the 99 % quantile, interpolated linearly.
    same_top1:  the share of positions where both give the same token the largest logit;
                among equal logits the lowest id counts as the largest.
    max_difference: the largest |reference − run| of any logit, and where it is.
    """

    name: str
    start: int
    stop: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    kl_max_position: int
    same_top1: float
    max_difference: float
    max_difference_position: int
    max_difference_token: int

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {key: _number(value) for key, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A limit that a comparison was held to. name: "max_kl" or "min_top1"."""

    name: str
    limit: float
    value: float
    passed: bool

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {key: _number(value) for key, value in asdict(self).items()}

    def text(self) -> str:
        """One line."""
        what = {"max_kl": "mean KL", "min_top1": "same top-1"}[self.name]
        sign = {"max_kl": "<=", "min_top1": ">="}[self.name]
        outcome = "passed" if self.passed else "FAILED"
        return f"{outcome}: {what} {self.value:.6g}, wanted {sign} {self.limit:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A whole comparison. `to_dict()` obeys schemas/comparison.schema.json.

    overall:     every position.
    buckets:     ranges of positions, in order.
    phases:      prefill and decode, where the run has both.
    correlation: Pearson's r of all pairs of finite logits; None where a side is constant.
    gates:       the limits that `held_to` was given.
    """

    reference: str
    run: str
    vocab: int
    overall: Figures
    buckets: tuple[Figures, ...]
    phases: tuple[Figures, ...]
    correlation: float | None
    gates: tuple[Gate, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no gate is broken."""
        return all(gate.passed for gate in self.gates)

    def held_to(self, max_kl: float | None = None, min_top1: float | None = None) -> Comparison:
        """The same with gates on the mean KL and on the share of equal top-1, 0 to 1."""
        mean, top1 = self.overall.kl_mean, self.overall.same_top1
        gates = []
        if max_kl is not None:
            gates.append(Gate(name="max_kl", limit=max_kl, value=mean, passed=mean <= max_kl))
        if min_top1 is not None:
            gates.append(Gate(name="min_top1", limit=min_top1, value=top1, passed=top1 >= min_top1))
        return replace(self, gates=tuple(gates))

    def to_dict(self) -> dict[str, object]:
        """As JSON. An infinite number is the string "Infinity", as in protobuf's JSON."""
        return {
            "schema_version": 1,
            "tool": {"name": "forward-serve", "version": __version__},
            "reference": self.reference,
            "run": self.run,
            "positions": self.overall.stop,
            "vocab": self.vocab,
            "overall": self.overall.to_dict(),
            "buckets": [figures.to_dict() for figures in self.buckets],
            "phases": [figures.to_dict() for figures in self.phases],
            "correlation": self.correlation,
            "gates": [gate.to_dict() for gate in self.gates],
            "passed": self.passed,
        }

    def text(self) -> str:
        """For a person: a table, then single figures, then the gates."""
        rows = [_HEAD, *(_row(f) for f in (self.overall, *self.phases, *self.buckets))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [_line(row, widths) for row in rows]
        whole = self.overall
        r = "undefined, a side is constant" if self.correlation is None else self.correlation
        return "\n".join(
            [
                f"reference    {printable(self.reference)}",
                f"run          {printable(self.run)}",
                f"logits       {whole.stop} positions x {self.vocab}",
                f"correlation  {r if isinstance(r, str) else f'{r:.9f}'}",
                f"largest KL   {whole.kl_max:.4g} at position {whole.kl_max_position}",
                f"largest difference of a logit  {whole.max_difference:.4g}"
                f" at position {whole.max_difference_position},"
                f" token {whole.max_difference_token}",
                "",
                *table,
                *([""] if self.gates else []),
                *(gate.text() for gate in self.gates),
            ]
        )


def refusal(error: PackimportError) -> dict[str, object]:
    """The JSON where there is nothing to compare."""
    return {
        "schema_version": 1,
        "tool": {"name": "forward-serve", "version": __version__},
        "error": error.to_dict(),
    }


_HEAD = ("", "positions", "KL mean", "median", "99 %", "max", "same top-1", "max |diff|")


def _row(figures: Figures) -> tuple[str, ...]:
    numbers = (figures.kl_mean, figures.kl_median, figures.kl_p99, figures.kl_max)
    return (
        figures.name,
        str(figures.stop - figures.start),
        *(f"{number:.3e}" for number in numbers),
        f"{100 * figures.same_top1:.2f} %",
        f"{figures.max_difference:.3e}",
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def _number(value: object) -> object:
    return "Infinity" if isinstance(value, float) and math.isinf(value) else value
