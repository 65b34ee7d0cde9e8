"""The commands that run a pack or a checkpoint: `run`, which needs no name, and `reference`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from forward.cli_compare import form_options
from packimport.errors import PackimportError, UsageError
from packimport.parameters import FILE, FOLDER, declaration_options
from packimport.shell import SectionedCommand
from packimport.wrapping import wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from forward.form import Form

_Function = TypeVar("_Function", bound=Callable[..., object])

COUNT = click.IntRange(min=1)


def tokens_options(function: _Function) -> _Function:
    """The options that say what is run; exactly one of them."""
    for option in (
        click.option(
            "--messages",
            type=FILE,
            help="Run chat messages, a JSON list of role and content, by the chat template.",
        ),
        click.option("--prompt-file", type=FILE, help="Run the text of a UTF-8 file."),
        click.option("--prompt", help="Run this text."),
        click.option(
            "--tokens", type=FILE, help="Run the token ids of a .npy file or a JSON list."
        ),
    ):
        function = option(function)
    return function


def prompts_option(function: _Function) -> _Function:
    """The option for many texts; the command says what belongs to it."""
    return click.option(
        "--prompts",
        type=FOLDER,
        help="Dump each line of a JSONL file, with prompt, tokens or messages, as DIR/00000 and"
        " so on; or the tokens of each dump in a folder.",
    )(function)


_SECTIONS = {
    "What to do with the pack, one of": ("--dump-logits", "--generate", "--self-check", "--probe"),
    "What it is fed, one of; --probe takes none": (
        "--tokens",
        "--prompt",
        "--prompt-file",
        "--messages",
        "--prompts",
    ),
    "How it is run, but for --probe": ("--chunk", "--threads", "--ep", "--allow-custom-ops"),
    "Of --dump-logits": ("--decode", "--batch", "--dtype", "--positions", "--top-k"),
    "Of --generate": ("--beside", "--expect"),
    "Of --probe": ("--config", "--model", "--format"),
}


@click.command(name="run", hidden=True, cls=SectionedCommand, sections=_SECTIONS)
@click.argument("container", type=FOLDER)
@click.option("--dump-logits", type=FOLDER, metavar="DIR", help="Write the logits to a new folder.")
@click.option("--generate", type=COUNT, metavar="N", help="Print up to N greedy tokens as text.")
@click.option(
    "--self-check",
    is_flag=True,
    help="Feed the same tokens, 96 of its own or yours, in every way; exit 1 if their logits"
    " differ.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Rotate by each table alone, without running the pack, and compare with the declared"
    " schedule; exit 1 where one is wrong.",
)
@declaration_options
@click.option(
    "--format",
    "output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Of the report.",
)
@tokens_options
@prompts_option
@click.option("--batch", type=COUNT, metavar="N", help="Run N of --prompts at once.")
@click.option("--beside", type=FOLDER, metavar="OTHER", help="Generate with another pack, too.")
@click.option(
    "--expect", type=FILE, help="Token ids to hold --generate to; exit 1 where they part."
)
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
    help="Feed N tokens at a time, which bounds the memory; default: 256, or all at once where"
    " the graph needs it. A graph that picks its table by length (longrope) sees the length so"
    " far.",
)
@click.option("--threads", type=COUNT, metavar="N", help="Threads of onnxruntime.")
@click.option(
    "--ep",
    metavar="NAME",
    help="Execution provider of onnxruntime, such as cuda, dml or ryzenai; there is no falling"
    " back. Default: the Ryzen AI runtime where genai_config.json names it, else cpu.",
)
@click.option(
    "--allow-custom-ops",
    metavar="SHA256",
    help="Load the pack's library of custom operators, native code, if it has this sha256.",
)
@form_options
def run_command(
    *,
    container: Path,
    dump_logits: Path | None,
    generate: int | None,
    self_check: bool,
    probe: bool,
    config: Path | None,
    model: str | None,
    output: str,
    tokens: Path | None,
    prompt: str | None,
    prompt_file: Path | None,
    messages: Path | None,
    prompts: Path | None,
    batch: int | None,
    beside: Path | None,
    expect: Path | None,
    decode: int,
    chunk: int | None,
    threads: int | None,
    ep: str | None,
    allow_custom_ops: str | None,
    form: Form,
) -> int:
    """Run a pack."""
    actions = (dump_logits is not None, generate is not None, self_check, probe)
    if sum(actions) != 1:
        raise UsageError(
            "do one thing at a time" if any(actions) else "say what to do with the pack",
            allowed="--dump-logits DIR or --generate N or --self-check or --probe",
            fix="Or compare two dumps: forward-serve compare REFERENCE RUN.",
        )
    for option, given, owner, there in (
        ("--decode", decode, "--dump-logits", dump_logits),
        ("--prompts", prompts, "--dump-logits", dump_logits),
        ("--batch", batch, "--prompts", prompts),
        ("--beside", beside, "--generate", generate),
        ("--expect", expect, "--generate", generate),
        ("--config", config, "--probe", probe or None),
        ("--model", model, "--probe", probe or None),
        ("--format json", output != "text", "--probe", probe or None),
    ):
        if given and there is None:
            raise UsageError(f"{option} belongs to {owner}")
    if self_check and chunk is not None:
        raise UsageError("--chunk belongs to --dump-logits or --generate")
    if batch is not None and (decode or chunk):
        raise UsageError("--batch feeds its prompts whole", allowed="no --decode and no --chunk")
    named = (tokens, prompt, prompt_file, messages)
    if probe:
        runs = any(value is not None for value in (*named, chunk, threads, allow_custom_ops))
        if runs or ep is not None:
            raise UsageError(
                "--probe runs nothing of the pack", allowed="--config, --model, --format"
            )
        return _probe(container, config, model, output)
    if prompts is not None and any(value is not None for value in named):
        raise UsageError("--prompts names all that is run")
    from forward import tasks
    from forward.advice import advised
    from forward.form import ALL
    from forward.prompt import Given
    from forward.session import Settings, find_provider

    if form != ALL and dump_logits is None:
        raise UsageError("each of --dtype, --positions and --top-k belongs to --dump-logits")
    settings = Settings(
        threads=threads,
        provider=None if ep is None else find_provider(ep),
        custom_ops=allow_custom_ops,
    )
    with advised(container):
        pack = tasks.open_pack(container, settings)
        if self_check:
            free = all(value is None for value in named)
            return tasks.check(pack, None if free else Given(*named))
        if prompts is not None and dump_logits is not None:
            return tasks.dump_all(
                pack, dump_logits, prompts, decode=decode, chunk=chunk, batch=batch, form=form
            )
        text = Given(*named)
        if dump_logits is not None:
            return tasks.dump(pack, dump_logits, text, decode=decode, chunk=chunk, form=form)
        assert generate is not None
        other = None if beside is None else tasks.open_pack(beside, settings)
        return tasks.write(pack, generate, text, chunk=chunk, other=other, expect=expect)


def _probe(container: Path, config: Path | None, model: str | None, output: str) -> int:
    import json

    from forward.probe import probe
    from forward.probe_report import VALUES, refusal

    if config is not None and model is not None:
        raise UsageError("--config and --model both declare the schedule", fix="Pass one of them.")
    try:
        found = probe(container, config, model)
    except PackimportError as error:
        if output == "json":
            click.echo(json.dumps(refusal(error), indent=2))
        raise
    text = json.dumps(found.to_dict(), indent=2, allow_nan=False)
    click.echo(text if output == "json" else wrapped(found.text(), values=VALUES))
    return found.exit_code


@click.command(name="reference", short_help="Dump the logits of a transformers model, offline.")
@click.argument("model_dir", type=FOLDER)
@click.option(
    "--dump-logits",
    type=FOLDER,
    metavar="DIR",
    required=True,
    help="Write the logits to a new folder.",
)
@tokens_options
@prompts_option
@click.option(
    "--config",
    type=FOLDER,
    metavar="PATH",
    help="Obey this config.json (or the one in this folder) instead of MODEL_DIR's.",
)
@click.option(
    "--precision",
    type=click.Choice(("float32", "bfloat16")),
    default="float32",
    show_default=True,
    help="Of weights and sums.",
)
@click.option("--device", default="cpu", show_default=True, help="Of torch, such as cuda.")
@click.option("--chunk", type=COUNT, metavar="N", help="Positions of one pass.")
@click.option("--threads", type=COUNT, metavar="N", help="Threads of torch.")
@form_options
def reference_command(
    *,
    model_dir: Path,
    dump_logits: Path,
    tokens: Path | None,
    prompt: str | None,
    prompt_file: Path | None,
    messages: Path | None,
    prompts: Path | None,
    config: Path | None,
    precision: str,
    device: str,
    chunk: int | None,
    threads: int | None,
    form: Form,
) -> int:
    """Dump the logits of a transformers model, offline; no code of the model is run."""
    from forward.prompt import Given, read_prompts
    from forward.reference import Torch, dump_reference, dump_references
    from forward.terminal import dumps_line
    from forward.tokenizer import TOKENIZER, Tokenizer

    named = (tokens, prompt, prompt_file, messages)
    if prompts is not None and any(value is not None for value in named):
        raise UsageError("--prompts names all that is run")
    declared = config / "config.json" if config is not None and config.is_dir() else config
    settings = Torch(threads=threads, precision=precision, device=device)
    tokenizer = Tokenizer(model_dir / TOKENIZER)
    if prompts is not None:
        texts = read_prompts(prompts, tokenizer)
        dump_references(
            model_dir,
            dump_logits,
            texts,
            config=declared,
            chunk=chunk,
            torch_settings=settings,
            form=form,
        )
        click.echo(dumps_line(dump_logits, texts, form))
        return 0
    shape = dump_reference(
        model_dir,
        dump_logits,
        Given(*named).read(tokenizer),
        config=declared,
        chunk=chunk,
        torch_settings=settings,
        form=form,
    )
    click.echo(f"{dump_logits}: logits of {shape[0]} positions x {shape[1]}, {form.dtype}")
    return 0
