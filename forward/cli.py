"""The command `forward-serve`. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from packimport import __version__
from packimport.errors import PackimportError, UsageError
from packimport.shell import DefaultGroup, run

if TYPE_CHECKING:
    from forward.prompt import Given

_Function = TypeVar("_Function", bound=Callable[..., object])

FOLDER = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)


def tokens_options(function: _Function) -> _Function:
    """The options that say what is run; exactly one of them."""
    for option in (
        click.option("--prompt-file", type=FILE, help="Run the text of a UTF-8 file."),
        click.option("--prompt", help="Run this text."),
        click.option(
            "--tokens", type=FILE, help="Run the token ids of a .npy file or a JSON list."
        ),
    ):
        function = option(function)
    return function


@click.group(
    cls=DefaultGroup, default="run", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="forward-serve")
def group() -> None:
    """Run an ONNX LLM pack through onnxruntime, dump its logits, compare dumps.

    CONTAINER is the folder of a pack. Texts become tokens by its tokenizer.json.
    """


@group.command(name="run", hidden=True)
@click.argument("container", type=FOLDER)
@click.option("--dump-logits", type=FOLDER, metavar="DIR", help="Write the logits to a new folder.")
@click.option("--generate", type=COUNT, metavar="N", help="Print up to N greedy tokens as text.")
@tokens_options
@click.option(
    "--decode",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Feed the last N tokens one at a time, as generation does.",
)
@click.option(
    "--chunk",
    type=COUNT,
    metavar="N",
    help="Feed the others by N, which bounds the memory; default: all at once. A graph that picks"
    " its table by length (longrope) sees the length so far.",
)
@click.option("--threads", type=COUNT, metavar="N", help="Threads of onnxruntime.")
def run_command(
    *,
    container: Path,
    dump_logits: Path | None,
    generate: int | None,
    tokens: Path | None,
    prompt: str | None,
    prompt_file: Path | None,
    decode: int,
    chunk: int | None,
    threads: int | None,
) -> int:
    """Run a pack."""
    if (dump_logits is None) == (generate is None):
        raise UsageError(
            "say what to do with the pack" if generate is None else "do one thing at a time",
            allowed="--dump-logits DIR or --generate N",
            fix="Or compare two dumps: forward-serve compare REFERENCE RUN.",
        )
    if generate is not None and decode:
        raise UsageError("--decode belongs to --dump-logits")
    given = _given(tokens, prompt, prompt_file)
    if dump_logits is not None:
        return _dump(container, dump_logits, given, decode=decode, chunk=chunk, threads=threads)
    assert generate is not None
    return _generate(container, generate, given, chunk, threads)


@group.command(name="compare")
@click.argument("reference", type=FOLDER)
@click.argument("other", type=FOLDER, metavar="RUN")
@click.option(
    "--max-kl", type=click.FloatRange(min=0), metavar="X", help="Exit 1 if the mean KL is above X."
)
@click.option(
    "--min-top1",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="Exit 1 if the share of equal top-1 is below X, such as 0.999.",
)
@click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True
)
def compare_command(
    *, reference: Path, other: Path, max_kl: float | None, min_top1: float | None, form: str
) -> int:
    """Compare the logits of two dumps of the same tokens: KL(REFERENCE || RUN) and more."""
    from forward.compare import compare
    from forward.comparison import refusal
    from forward.dump import read_dump

    try:
        comparison = compare(read_dump(reference), read_dump(other))
    except PackimportError as error:
        if form == "json":
            _print_json(refusal(error))
        raise
    comparison = comparison.held_to(max_kl, min_top1)
    if form == "json":
        _print_json(comparison.to_dict())
    else:
        click.echo(comparison.text())
    return 0 if comparison.passed else 1


@group.command(name="reference")
@click.argument("model_dir", type=FOLDER)
@click.option(
    "--dump-logits",
    type=FOLDER,
    metavar="DIR",
    required=True,
    help="Write the logits to a new folder.",
)
@tokens_options
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Obey this config.json (or the one in this folder) instead of MODEL_DIR's.",
)
@click.option("--chunk", type=COUNT, metavar="N", help="Positions of one pass.")
@click.option("--threads", type=COUNT, metavar="N", help="Threads of torch.")
def reference_command(
    *,
    model_dir: Path,
    dump_logits: Path,
    tokens: Path | None,
    prompt: str | None,
    prompt_file: Path | None,
    config: Path | None,
    chunk: int | None,
    threads: int | None,
) -> int:
    """Dump the logits of a transformers model: float32, offline, no code of the model run."""
    from forward.prompt import TOKENIZER
    from forward.reference import dump_reference

    given = _given(tokens, prompt, prompt_file)
    shape = dump_reference(
        model_dir,
        dump_logits,
        given.read(model_dir / TOKENIZER),
        config=config / "config.json" if config is not None and config.is_dir() else config,
        chunk=chunk,
        threads=threads,
    )
    _print_dump(dump_logits, shape)
    return 0


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point of `forward-serve`; args: None for those of the process."""
    run(group, "forward-serve", args)


def _given(tokens: Path | None, prompt: str | None, prompt_file: Path | None) -> Given:
    from forward.prompt import Given

    return Given(tokens, prompt, prompt_file)


def _dump(
    path: Path,
    folder: Path,
    given: Given,
    *,
    decode: int,
    chunk: int | None,
    threads: int | None,
) -> int:
    from forward.dump_pack import dump_pack
    from forward.genai_config import read_decoder
    from forward.prompt import TOKENIZER
    from forward.terminal import progress
    from packimport.pack.container import open_container

    container = open_container(path)
    decoder = read_decoder(container)
    tokens = given.read(container.path / TOKENIZER)
    shape = dump_pack(
        container,
        decoder,
        folder,
        tokens,
        decode=decode,
        chunk=chunk,
        threads=threads,
        watch=progress,
    )
    _print_dump(folder, shape)
    return 0


def _generate(path: Path, count: int, given: Given, chunk: int | None, threads: int | None) -> int:
    from forward.genai_config import read_decoder
    from forward.generate import generate
    from forward.limits import check_length
    from forward.prompt import TOKENIZER, Tokenizer
    from forward.runner import open_runner
    from forward.terminal import print_pieces
    from packimport.pack.container import open_container

    container = open_container(path)
    decoder = read_decoder(container)
    tokens = given.read(container.path / TOKENIZER)
    check_length(container, decoder, len(tokens) + count)
    runner = open_runner(container, decoder, threads)
    ids = generate(runner, decoder, tokens, count, chunk)
    if container.has(TOKENIZER):
        print_pieces(Tokenizer(container.path / TOKENIZER).stream(ids))
    else:
        print_pieces(f"{token} " for token in ids)
    return 0


def _print_dump(folder: Path, shape: tuple[int, int]) -> None:
    click.echo(f"{folder}: logits of {shape[0]} positions x {shape[1]}, float32")


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))
