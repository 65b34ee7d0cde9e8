"""The command `packimport`. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from packimport.errors import PackimportError, UsageError
from packimport.parameters import FOLDER, declaration_options
from packimport.shell import DefaultGroup, run
from packimport.version import __version__
from packimport.wrapping import wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from packimport.audit.report import Report
    from packimport.dry_run import DryRun

_Function = TypeVar("_Function", bound=Callable[..., object])
# Of a text off a terminal; and where what is folded of a list of changes goes on.
_COLUMNS, _INSET = 80, 8


def output_options(function: _Function) -> _Function:
    """How the result is shown."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors."),
        click.option(
            "--format",
            "form",
            type=click.Choice(("text", "json")),
            default="text",
            show_default=True,
        ),
    ):
        function = option(function)
    return function


@click.group(
    cls=DefaultGroup, default="check", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="packimport")
def group() -> None:
    """Check and mend the rotary position tables of an ONNX LLM pack.

    CONTAINER is the folder of a pack, or an archive of one: .zip, .tar, .tar.gz,
    .tar.zst. Exit codes: 0 right, 1 findings, 2 wrong
    usage, 3 refused or not supported.
    """


@group.command(name="check")
@click.argument("container", type=FOLDER)
@declaration_options
@output_options
def check_command(
    *, container: Path, config: Path | None, model: str | None, form: str, quiet: bool
) -> int:
    """Say what each table holds, what is declared and how they differ."""
    from packimport.audit.audit import check
    from packimport.progress_bar import progress_bar

    _refuse_both(config, model)
    try:
        # A folder is read too quickly for a bar.
        with progress_bar("unpacking", quiet or container.is_dir()) as on_progress:
            report = check(container, config, model, on_progress=on_progress)
    except PackimportError as error:
        _print_refusal(error, form, quiet)
        raise
    _print_report(report, form, quiet)
    return report.exit_code


@group.command(
    name="patch", short_help="Write the pack with the declared tables: a copy, or in place."
)
@click.argument("container", type=FOLDER)
@click.option("-o", "--out", type=FOLDER, metavar="OUT", help="A new folder.")
@click.option("--bytes-only", is_flag=True, help="Rewrite tables in place; change no graph.")
@click.option("--in-place", is_flag=True, help="Change the pack's own files; `undo` takes it back.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print the edits and write nothing.")
@declaration_options
@output_options
def patch_command(
    *,
    container: Path,
    out: Path | None,
    in_place: bool,
    bytes_only: bool,
    is_dry: bool,
    config: Path | None,
    model: str | None,
    form: str,
    quiet: bool,
) -> int:
    """Write the pack to OUT with the declared tables, or into the pack itself with --in-place."""
    _refuse_both(config, model)
    if (out is None) != in_place and not (is_dry and out is None):
        raise UsageError("say where to write", allowed="-o OUT or --in-place")
    try:
        if is_dry:
            from packimport.dry_run import dry_run

            planned = dry_run(
                container, out, config, model, in_place=in_place, bytes_only=bytes_only
            )
            _print_plan(planned, form, quiet)
            return 0
        if out is None:
            from packimport.in_place import patch_in_place

            mended = patch_in_place(container, config, model, bytes_only=bytes_only)
            _say(mended.recovered, quiet)
            after, text = mended.after, wrapped(mended.text(), values=_INSET)
        else:
            from packimport.patching import patch
            from packimport.progress_bar import progress_bar

            with progress_bar("copying", quiet) as on_progress:
                patched = patch(
                    container, out, config, model, bytes_only=bytes_only, on_progress=on_progress
                )
            after, text = patched.after, wrapped(patched.text(), values=_INSET)
    except PackimportError as error:
        _print_refusal(error, form, quiet)
        raise
    if form == "json":
        _print_report(after, form, quiet)
    elif not quiet:
        click.echo(text)
    return 0


@group.command(name="undo")
@click.argument("container", type=FOLDER)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def undo_command(*, container: Path, quiet: bool) -> int:
    """Take the last patch in place back, or one that did not end."""
    from packimport.in_place import undo

    done = undo(container)
    if not quiet:
        click.echo(f"{container}: {done}")
    return 0


@group.command(name="verify", short_help="Hold the files against packimport.json.")
@click.argument("container", type=FOLDER)
@output_options
def verify_command(*, container: Path, form: str, quiet: bool) -> int:
    """Hold the files against packimport.json: extra, missing and changed ones."""
    from packimport.pack.archive import opened
    from packimport.pack.signals import interruptible
    from packimport.pack.verification import verify_container
    from packimport.progress_bar import progress_bar

    try:
        with (
            opened(container) as pack,
            interruptible(),
            progress_bar("hashing", quiet) as on_progress,
        ):
            verified = verify_container(pack, on_progress)
    except PackimportError as error:
        _print_refusal(error, form, quiet)
        raise
    if form == "json":
        click.echo(_json(verified.to_dict()))
    elif not quiet:
        click.echo(wrapped(f"{container}: {verified.text()}"))
    return verified.exit_code


@group.command(name="show")
@click.argument("container", type=FOLDER, required=False)
@click.option("--models", is_flag=True, help="Print the ids of the known models instead.")
@declaration_options
@output_options
def show_command(
    *,
    container: Path | None,
    models: bool,
    config: Path | None,
    model: str | None,
    form: str,
    quiet: bool,
) -> int:
    """Print what was read of a pack or a config.json, and from where."""
    from packimport.audit.show import show
    from packimport.semantics.models import known_models

    if models != (container is None):
        raise UsageError("say what to show", allowed="CONTAINER, or --models alone")
    if container is None:
        ids = known_models()
        click.echo(_json(list(ids)) if form == "json" else "\n".join(ids))
        return 0
    _refuse_both(config, model)
    shown = show(container, config, model)
    if not quiet:
        # A pointer that does not fit stands below the name of its field, and not below a value.
        text = wrapped(shown.text(), values=8)
        click.echo(_json(shown.to_dict()) if form == "json" else text)
    return 0


@group.command(name="table", short_help="Write the frequencies and tables that a config declares.")
@click.argument("source", metavar="CONFIG", required=False, type=FOLDER)
@click.option("--model", metavar="ID", help="A known model in place of CONFIG.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    metavar="N",
    default=4096,
    show_default=True,
    help="Positions 0 to N - 1.",
)
@click.option(
    "--dtype",
    type=click.Choice(("float32", "float16", "bfloat16", "float64")),
    metavar="DTYPE",
    default="float32",
    show_default=True,
    help="Of cos and sin: float32, float16, bfloat16 or float64.",
)
@click.option(
    "--layout",
    type=click.Choice(("pairs", "duplicated", "repeated", "row", "complex")),
    metavar="NAME",
    default="pairs",
    show_default=True,
    help="pairs: [rows, pairs]; duplicated: [cos cos]; repeated: each value twice;"
    " row: cos then sin; complex: cos + i sin.",
)
@click.option(
    "--seq-len",
    type=click.IntRange(min=1),
    metavar="N",
    help="Length of the call, for dynamic and longrope. Without it: the unscaled base, and the"
    " short list of longrope.",
)
@click.option(
    "-o", "--out", type=FOLDER, metavar="FILE", required=True, help=".npz, .safetensors or .json."
)
def table_command(
    *,
    source: Path | None,
    model: str | None,
    rows: int,
    dtype: str,
    layout: str,
    seq_len: int | None,
    out: Path,
) -> int:
    """Write the frequencies and tables that a config.json, or a pack, declares."""
    from packimport.export import export
    from packimport.semantics.reader import read_model, read_semantics

    if (source is None) == (model is None):
        raise UsageError("say which config", allowed="CONFIG or --model ID")
    if model is not None:
        semantics = read_model(model)
    else:
        assert source is not None
        semantics = read_semantics(source)
    made = export(semantics, rows, dtype=dtype, layout=layout, seq_len=seq_len)
    made.write(out)
    for name, array in made.arrays.items():
        click.echo(f"{name}: {array.dtype.name} {list(array.shape)}")
    for note in made.notes:
        click.echo(f"note: {note}")
    return 0


@group.command(name="explain")
@click.argument("code", metavar="CODE")
def explain_command(*, code: str) -> int:
    """Print cause, effect and cure of a check, such as RPE001."""
    import sys

    from packimport.audit.explain import explain

    # Its lines are paragraphs: too long to be left whole in a file.
    click.echo(wrapped(explain(code), None if sys.stdout.isatty() else _COLUMNS))
    return 0


@group.command(name="demo")
@click.option("--keep", type=FOLDER, metavar="DIR", help="Keep the packs in this new folder.")
def demo_command(*, keep: Path | None) -> int:
    """Find, mend and prove the fault of a small embedded pack."""
    from packimport.demo import story

    return story.run(keep, click.echo)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point of `packimport`; args: None for those of the process."""
    run(group, "packimport", args)


def _refuse_both(config: Path | None, model: str | None) -> None:
    if config is not None and model is not None:
        raise UsageError("--config and --model both declare the schedule", fix="Pass one of them.")


def _print_plan(planned: DryRun, form: str, quiet: bool) -> None:
    if form == "json":
        click.echo(_json(planned.to_dict()))
    elif not quiet:
        click.echo(wrapped(planned.text(), values=_INSET))


def _say(note: str | None, quiet: bool) -> None:
    if note is not None and not quiet:
        click.echo(f"packimport: {note}", err=True)


def _print_report(report: Report, form: str, quiet: bool) -> None:
    if form == "json":
        click.echo(_json(report.to_dict()))
    elif not quiet:
        click.echo(wrapped(report.text()))


def _print_refusal(error: PackimportError, form: str, quiet: bool) -> None:
    # Programs that read the JSON get an object even where there is no report.
    if form == "json" and not quiet:
        from packimport.audit.report import refusal

        click.echo(_json(refusal(error)))


def _json(value: object) -> str:
    import json

    return json.dumps(value, indent=2, allow_nan=False)
