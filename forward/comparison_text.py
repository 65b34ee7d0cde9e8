"""A comparison as text, for a person: single figures, a table, the gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from forward.figures import Figures
from packimport.errors import printable

if TYPE_CHECKING:
    from forward.comparison import Comparison

_HEAD = (
    *("", "positions", "KL mean", "+-", "median", "99 %", "99.9 %", "max"),
    *("same top-1", "RMS dp", "PPL ratio", "+-"),
)

TOP_K = "top-k        a dump keeps the largest logits alone: each KL is the least it can be"


def text(comparison: Comparison) -> str:
    """Every part of a comparison, line by line."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    whole = comparison.overall
    yield f"reference    {printable(comparison.reference)}"
    yield f"run          {printable(comparison.run)}"
    yield f"logits       {extent(comparison)}"
    if not comparison.exact:
        yield TOP_K
    yield from _singles(comparison)
    yield ""
    ranges = (whole, *comparison.phases, *comparison.buckets, *comparison.edges)
    yield from table([_HEAD, *map(_row, ranges)])
    if comparison.floor is not None:
        yield ""
        yield f"floor        {printable(comparison.floor.run)}"
        yield from table(_floor_rows(comparison, comparison.floor))
    if comparison.worst:
        yield ""
        yield "worst positions"
        yield from (place.text() for place in comparison.worst)
    if comparison.gates:
        yield ""
        yield from (gate.text() for gate in comparison.gates)


def extent(comparison: Comparison) -> str:
    """How much was compared."""
    of = "" if comparison.dumps == 1 else f", of {comparison.dumps} dumps"
    return f"{comparison.overall.count} positions x {comparison.vocab}{of}"


def _singles(comparison: Comparison) -> Iterator[str]:
    whole = comparison.overall
    if comparison.correlation is not None:
        yield f"correlation  {comparison.correlation:.9f}"
    elif not comparison.alike:
        yield "correlation  none: one side holds log p, the other logits"
    elif comparison.exact:
        yield "correlation  undefined, a side is constant"
    if whole.ppl_reference is not None and whole.ppl_run is not None:
        yield (
            f"perplexity   reference {_with(whole, 'ppl_reference')}, run {_with(whole, 'ppl_run')}"
        )
    elif whole.scored:
        yield "perplexity   not computable: next tokens are outside the kept logits"
    if whole.top5 is not None and whole.top10 is not None:
        yield f"overlap      top-5 {_percent(whole.top5)}, top-10 {_percent(whole.top10)}"
    if whole.flips is not None:
        yield f"flips        {whole.flips} of {whole.clear} positions with a clear first token"
    if whole.nmse is not None:
        yield f"NMSE         {whole.nmse:.4g}"
    yield f"largest KL   {whole.kl_max:.4g} at position {whole.kl_max_position}"
    if whole.max_difference is not None:
        yield (
            f"largest difference of a logit  {whole.max_difference:.4g}"
            f" at position {whole.max_difference_position}, token {whole.max_difference_token}"
        )


def _floor_rows(comparison: Comparison, floor: Comparison) -> Iterator[tuple[str, ...]]:
    yield ("", "KL mean", "of the floor", "times")
    for figures, noise in zip(comparison.ranges, floor.ranges, strict=True):
        times = f"{figures.kl_mean / noise.kl_mean:.3g}" if noise.kl_mean else "-"
        yield (figures.name, f"{figures.kl_mean:.3e}", f"{noise.kl_mean:.3e}", times)


def _row(figures: Figures) -> tuple[str, ...]:
    quantiles = (figures.kl_median, figures.kl_p99, figures.kl_p999, figures.kl_max)
    return (
        figures.name,
        str(figures.count),
        f"{figures.kl_mean:.3e}",
        scientific(figures.errors["kl_mean"]),
        *(f"{value:.3e}" for value in quantiles),
        _percent(figures.same_top1),
        "-" if figures.dp_rms is None else f"{100 * figures.dp_rms:.3f} %",
        "-" if figures.ppl_ratio is None else f"{figures.ppl_ratio:.5f}",
        "-" if figures.errors["ppl_ratio"] is None else f"{figures.errors['ppl_ratio']:.5f}",
    )


def scientific(value: float | None) -> str:
    """A number of a table."""
    return "-" if value is None else f"{value:.1e}"


def table(rows: Sequence[tuple[str, ...]] | Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Lines of cells: the first column to the left, the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _with(figures: Figures, name: str) -> str:
    """A value with its standard error."""
    value, error = getattr(figures, name), figures.errors[name]
    return f"{value:.5g}" if error is None else f"{value:.5g} +- {error:.2g}"
