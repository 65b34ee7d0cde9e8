"""Figures as text, for a person: single ones, and tables of ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forward.figures import Figures
from packimport.errors import printable

_HEAD = ("", "count", "KL mean", "+-", "max", "top-1", "PPL ratio", "+-")
_QUANTILES = ("KL at", "median", "90 %", "95 %", "99 %", "99.9 %", "RMS dp")

TOP_K = "top-k        a dump keeps the largest logits alone: each KL is the least it can be"


def extent(whole: Figures, vocab: int, dumps: int) -> str:
    """How much was compared."""
    return f"{whole.count} positions x {vocab}{'' if dumps == 1 else f', of {dumps} dumps'}"


def lacking(whole: Figures, left_out: int) -> Iterator[str]:
    """A line where the run lacks positions of the reference."""
    if left_out:
        yield f"not compared {left_out} of the reference's {whole.count + left_out} positions"


def singles(whole: Figures, farthest: str | None) -> Iterator[str]:
    """The figures that are given for all positions together.

    farthest: which of several dumps has the largest KL.
    """
    if whole.ppl_reference is not None and whole.ppl_run is not None:
        yield (
            f"perplexity   reference {_with(whole, 'ppl_reference')}, run {_with(whole, 'ppl_run')}"
        )
    elif whole.scored:
        yield "perplexity   not computable: next tokens are outside the kept logits"
    if whole.top5 is not None and whole.top10 is not None:
        yield f"overlap      top-5 {percent(whole.top5)}, top-10 {percent(whole.top10)}"
    if whole.flips is not None:
        yield f"flips        {whole.flips} of {whole.clear} positions with a clear first token"
    if whole.nmse is not None:
        yield f"NMSE         {whole.nmse:.4g}"
    of = "" if farthest is None else f" of {printable(farthest)}"
    yield f"largest KL   {whole.kl_max:.4g} at position {whole.kl_max_position}{of}"
    if whole.max_difference is not None:
        yield (
            f"largest difference of a logit  {whole.max_difference:.4g}"
            f" at position {whole.max_difference_position}, token {whole.max_difference_token}"
        )


def figures_tables(ranges: Sequence[Figures]) -> Iterator[str]:
    """Two tables with a line for each range, each within 80 columns."""
    yield from table([_HEAD, *map(_row, ranges)])
    yield ""
    yield from table([_QUANTILES, *map(_quantiles, ranges)])


def floor_table(ranges: Sequence[Figures], floor: Sequence[Figures]) -> Iterator[str]:
    """Each range beside the same of the floor."""
    rows = [("", "KL mean", "of the floor", "times")]
    for figures, noise in zip(ranges, floor, strict=True):
        times = f"{figures.kl_mean / noise.kl_mean:.3g}" if noise.kl_mean else "-"
        rows.append((figures.name, f"{figures.kl_mean:.3e}", f"{noise.kl_mean:.3e}", times))
    return table(rows)


def _row(figures: Figures) -> tuple[str, ...]:
    return (
        figures.name,
        str(figures.count),
        f"{figures.kl_mean:.2e}",
        scientific(figures.errors["kl_mean"]),
        f"{figures.kl_max:.2e}",
        percent(figures.same_top1),
        "-" if figures.ppl_ratio is None else f"{figures.ppl_ratio:.5f}",
        scientific(figures.errors["ppl_ratio"]),
    )


def _quantiles(figures: Figures) -> tuple[str, ...]:
    values = (
        *(figures.kl_median, figures.kl_p90, figures.kl_p95),
        *(figures.kl_p99, figures.kl_p999),
    )
    return (
        figures.name,
        *(f"{value:.3e}" for value in values),
        "-" if figures.dp_rms is None else f"{100 * figures.dp_rms:.3f} %",
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


def percent(share: float) -> str:
    """A share, for a table."""
    return f"{100 * share:.2f} %"


def _with(figures: Figures, name: str) -> str:
    """A value with its standard error."""
    value, error = getattr(figures, name), figures.errors[name]
    return f"{value:.5g}" if error is None else f"{value:.5g} +- {error:.2g}"
