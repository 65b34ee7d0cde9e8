"""The commands of `forward-serve` that need no engine: compare, import, export."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import click

from packimport.errors import PackimportError, UsageError
from packimport.parameters import FILE, FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from forward.comparison import Comparison
    from forward.data_set import DataSet
    from forward.form import Form

_LIMIT = click.FloatRange(min=0)


class _Result(Protocol):
    """What a comparison of any kind ends in."""

    @property
    def passed(self) -> bool: ...

    def to_dict(self) -> dict[str, object]: ...

    def text(self) -> str: ...


def form_options(function: Callable[..., int]) -> Callable[..., int]:
    """The options that say what a dump keeps; the command gets them as `form`, a Form."""

    @functools.wraps(function)
    def command(*, dtype: str, positions: str | None, top_k: int | None, **others: object) -> int:
        from forward.form import Form, parse_positions

        ranges = None if positions is None else parse_positions(positions)
        return function(form=Form(dtype=dtype, positions=ranges, top_k=top_k), **others)

    for option in (
        click.option(
            "--top-k",
            type=click.IntRange(min=1),
            metavar="N",
            help="Keep the N largest logits of each row, and log-sum-exp of the others.",
        ),
        click.option(
            "--positions", metavar="RANGES", help="Keep these rows, such as 0-127,2040-2055."
        ),
        click.option(
            "--dtype",
            type=click.Choice(("float32", "float16")),
            default="float32",
            show_default=True,
            help="Of the dump; float16 rounds: its KL is near 3e-6.",
        ),
    ):
        command = option(command)
    return command


@click.command(name="compare", short_help="Compare the logits of dumps of the same tokens.")
@click.argument("dumps", type=FOLDER, nargs=-1, metavar="REFERENCE RUN | REFERENCE BEFORE AFTER")
@click.option(
    "--nll",
    is_flag=True,
    help="Without a reference: compare BEFORE AFTER by the likelihood that each gives the text.",
)
@click.option("--max-kl", type=_LIMIT, metavar="X", help="Exit 1 if the mean KL is above X.")
@click.option(
    "--max-kl-p999", type=_LIMIT, metavar="X", help="Exit 1 if the 99.9 % quantile is above X."
)
@click.option(
    "--min-top1",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="Exit 1 if the share of equal top-1 is below X, such as 0.999.",
)
@click.option("--by-bucket", is_flag=True, help="Hold each range of positions to the limits, too.")
@click.option(
    "--floor", type=FOLDER, metavar="DUMP", help="The reference in another precision: the noise."
)
@click.option(
    "--max-floor",
    type=_LIMIT,
    metavar="X",
    help="Exit 1 if the mean KL is above X times that of the floor.",
)
@click.option(
    "--max-floor-p999",
    type=_LIMIT,
    metavar="X",
    help="Exit 1 if the 99.9 % quantile of KL is above X times the floor's.",
)
@click.option(
    "--max-floor-top1",
    type=_LIMIT,
    metavar="X",
    help="Exit 1 if the share of other top-1 is above X times the floor's.",
)
@click.option(
    "--edge",
    "edges",
    type=click.IntRange(min=1),
    metavar="N",
    multiple=True,
    help="Show the 16 positions on each side of N, where a table ends; repeatable.",
)
@click.option(
    "--worst", type=click.IntRange(min=0), metavar="N", default=0, help="List N worst positions."
)
@click.option("--tokenizer", type=FILE, help="A tokenizer.json: decode the worst positions.")
@click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True
)
def compare_command(
    *,
    dumps: tuple[Path, ...],
    nll: bool,
    max_kl: float | None,
    max_kl_p999: float | None,
    min_top1: float | None,
    by_bucket: bool,
    floor: Path | None,
    max_floor: float | None,
    max_floor_p999: float | None,
    max_floor_top1: float | None,
    edges: tuple[int, ...],
    worst: int,
    tokenizer: Path | None,
    form: str,
) -> int:
    """Compare the logits of dumps of the same tokens: KL(REFERENCE || RUN) and more.

    A folder of dumps, as --prompts or import makes, is compared with another as one.
    """
    over_floor = {
        "--max-floor": max_floor,
        "--max-floor-p999": max_floor_p999,
        "--max-floor-top1": max_floor_top1,
    }
    limits = {"--max-kl": max_kl, "--max-kl-p999": max_kl_p999, **over_floor}
    for name, limit in limits.items():
        if limit is not None and not math.isfinite(limit):
            raise UsageError(f"{name} is a number", found=limit, allowed="0 or more")
    if min_top1 is not None and math.isnan(min_top1):
        raise UsageError("--min-top1 is a share", found=min_top1, allowed="0 to 1")
    if len(dumps) not in ((2,) if nll else (2, 3)):
        what = "BEFORE AFTER" if nll else "REFERENCE RUN, or REFERENCE BEFORE AFTER"
        raise UsageError("compare takes other dumps", found=f"{len(dumps)} folders", allowed=what)
    for name, limit in over_floor.items():
        if limit is not None and floor is None:
            raise UsageError(f"{name} needs a noise floor", fix="Pass --floor DUMP.")
    gated = any(value is not None for value in (*limits.values(), min_top1))
    if by_bucket and not gated:
        raise UsageError("--by-bucket needs a limit", allowed="such as --max-kl X")
    if tokenizer is not None and not worst:
        raise UsageError("--tokenizer belongs to --worst N")
    if nll and (gated or floor or edges or worst):
        raise UsageError("--nll has no reference", allowed="--format beside it")

    def held(comparison: Comparison, noise: Comparison | None) -> Comparison:
        if noise is not None:
            comparison = comparison.over(noise)
        return comparison.held_to(
            max_kl,
            min_top1,
            max_kl_p999=max_kl_p999,
            max_floor=max_floor,
            max_floor_p999=max_floor_p999,
            max_floor_top1=max_floor_top1,
            by_bucket=by_bucket,
        )

    def result() -> _Result:
        from forward.data_set import read_data_set

        opened = [read_data_set(folder) for folder in dumps]
        if nll:
            from forward.likelihood import likelihood

            return likelihood(*opened)
        noise = None if floor is None else read_data_set(floor)
        return _compared(opened, noise, held, edges=edges, worst=worst, tokenizer=tokenizer)

    return _print(result, form)


def _compared(
    dumps: list[DataSet],
    floor: DataSet | None,
    held: Callable[[Comparison, Comparison | None], Comparison],
    *,
    edges: tuple[int, ...],
    worst: int,
    tokenizer: Path | None,
) -> _Result:
    from forward.compare import compare
    from forward.three import Three
    from forward.tokenizer import Tokenizer

    reader = None if tokenizer is None else Tokenizer(tokenizer)
    reference, *runs = dumps
    asked = edges
    edges = tuple(sorted({*edges, *(e for run in runs for dump in run.dumps for e in dump.edges)}))
    noise = None if floor is None else compare(reference, floor)
    done = [compare(reference, run, edges, worst) for run in runs]
    if reader is not None:
        done = [comparison.decoded(reader) for comparison in done]
    for edge in asked:
        if not done[-1].has_edge(edge):
            raise UsageError(
                "no position near this edge was compared",
                place="--edge",
                found=edge,
                allowed=f"up to 16 beyond {done[-1].overall.stop - 1}, the last position compared",
            )
    last = held(done[-1], noise)
    return last if len(done) == 1 else Three(before=done[0], after=last)


def _print(result: Callable[[], _Result], form: str) -> int:
    from forward.comparison import refusal

    try:
        value = result()
    except PackimportError as error:
        if form == "json":
            _print_json(refusal(error))
        raise
    if form == "json":
        _print_json(value.to_dict())
    else:
        click.echo(value.text())
    return 0 if value.passed else 1


@click.command(name="import")
@click.argument("file", type=FILE)
@click.option("-o", "--output", type=FOLDER, metavar="DIR", required=True, help="A new folder.")
@click.option("--tokens", type=FILE, help="The tokens of a .npy file of logits: .npy or JSON.")
@form_options
def import_command(
    *,
    file: Path,
    output: Path,
    tokens: Path | None,
    form: Form,
) -> int:
    """Make a dump of logits made elsewhere.

    FILE is a .npy file of float32 or float16 logits, [tokens, vocab], or the file of
    llama.cpp's --kl-divergence-base, which becomes a folder of one dump for each chunk.
    """
    from forward.exchange import import_base, import_npy
    from forward.form import ALL
    from forward.kld_base import is_base
    from forward.prompt import read_tokens
    from packimport.errors import DumpError

    if not file.is_file():
        raise DumpError("no such file", place=str(file))
    if is_base(file):
        if tokens is not None or form != ALL:
            raise UsageError("a base of llama.cpp has its own tokens, rows and dtype")
        chunks, rows = import_base(file, output)
        made = "1 dump" if chunks == 1 else f"{chunks} dumps"
        click.echo(f"{output}: {made} of {rows} rows, chunk-0000{' and on' * (chunks > 1)}")
        return 0
    if tokens is None:
        raise UsageError("a .npy file of logits needs the tokens", fix="Pass --tokens FILE.")
    shape = import_npy(file, read_tokens(tokens), output, form)
    click.echo(f"{output}: logits of {shape[0]} positions x {shape[1]}, {form.dtype}")
    return 0


@click.command(
    name="export", short_help="Write dumps as the file of llama.cpp's --kl-divergence-base."
)
@click.argument("dumps", type=FOLDER, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", required=True, help="A new file.")
def export_command(*, dumps: tuple[Path, ...], output: Path) -> int:
    """Write dumps as the file of llama.cpp's --kl-divergence-base, each as one chunk."""
    from forward.exchange import export_base

    chunks, count = export_base(dumps, output)
    click.echo(f"{output}: {chunks} chunk{'s' * (chunks > 1)} of {count} tokens")
    return 0


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2, allow_nan=False))
