"""Tasks: what `forward-serve CONTAINER` does with a pack, and what it prints of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from forward import ryzen_ai
from forward.dump import Tokens
from forward.dump_pack import dump_pack, dump_prompts
from forward.form import Form
from forward.genai_config import Decoder, read_decoder
from forward.generate import first_difference, generate
from forward.limits import check_length
from forward.prompt import Given, read_prompts, read_tokens
from forward.runner import Runner, open_runner
from forward.self_check import LENGTH, sample_tokens, self_check
from forward.session import Settings, require_runtime
from forward.terminal import dumps_line, print_columns, print_pieces, progress, safe
from forward.tokenizer import TOKENIZER, Tokenizer
from packimport.errors import UsageError
from packimport.pack.container import Container, open_container


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack, and how it is to be run.

    tokenizer: its tokenizer.json, which may be missing.
    """

    container: Container
    decoder: Decoder
    settings: Settings
    tokenizer: Tokenizer

    def open(self) -> Runner:
        """Its graph in onnxruntime."""
        return open_runner(self.container, self.decoder, self.settings)


def open_pack(path: Path, settings: Settings) -> Pack:
    """The pack at `path`; its graph is not loaded yet.

    A runtime that is missing is said now: before a text is asked for what it needs.
    """
    container = open_container(path)
    decoder = read_decoder(container, settings.custom_ops)
    if decoder.ryzen_ai is not None and settings.provider in (None, ryzen_ai.PROVIDER):
        require_runtime(decoder.ryzen_ai)
    return Pack(container, decoder, settings, Tokenizer(container.path / TOKENIZER))


def dump(
    pack: Pack, folder: Path, given: Given, *, decode: int, chunk: int | None, form: Form
) -> int:
    """Dump the logits of one text."""
    tokens = given.read(pack.tokenizer)
    with progress() as watch:
        shape = dump_pack(
            pack.container,
            pack.decoder,
            folder,
            tokens,
            decode=decode,
            chunk=chunk,
            settings=pack.settings,
            form=form,
            watch=watch,
        )
    click.echo(f"{folder}: logits of {shape[0]} positions x {shape[1]}, {form.dtype}")
    return 0


def dump_all(
    pack: Pack,
    folder: Path,
    prompts: Path,
    *,
    decode: int,
    chunk: int | None,
    batch: int | None,
    form: Form,
) -> int:
    """Dump the logits of every line of a file of prompts."""
    texts = read_prompts(prompts, pack.tokenizer)
    dump_prompts(
        pack.container,
        pack.decoder,
        folder,
        texts,
        decode=decode,
        chunk=chunk,
        batch=batch,
        settings=pack.settings,
        form=form,
    )
    click.echo(dumps_line(folder, texts, form))
    return 0


def check(pack: Pack, given: Given | None) -> int:
    """Print a self-check, over the given text or a sample of tokens."""
    runner = pack.open()
    if given is not None:
        tokens = given.read(pack.tokenizer)
    else:
        most = min(n for n in (LENGTH, pack.decoder.context_length, runner.most) if n)
        tokens = sample_tokens(pack.decoder, most)
    check_length(pack.container, pack.decoder, len(tokens))
    checks = self_check(runner, pack.decoder, tokens)
    for one in checks:
        click.echo(one.text())
    failed = [one.name for one in checks if not one.passed]
    if not failed and all(one.difference is None for one in checks):
        click.echo("nothing was compared: this pack takes these tokens in one way alone")
        return 3
    click.echo(f"FAILED: {', '.join(failed)}" if failed else f"passed over {len(tokens)} tokens")
    return 1 if failed else 0


def write(
    pack: Pack,
    count: int,
    given: Given,
    *,
    chunk: int | None,
    other: Pack | None,
    expect: Path | None,
) -> int:
    """Print greedy text of a pack, and hold it to another pack's and to an oracle's ids."""
    prompt = given.read(pack.tokenizer)
    expected = None if expect is None else read_tokens(expect).tolist()
    if expected is not None and not expected:
        raise UsageError("--expect holds no id, so there is nothing to compare", place=str(expect))
    if expected is not None and len(expected) > count:
        raise UsageError(
            "--expect holds more ids than --generate makes", found=len(expected), allowed=str(count)
        )
    texts = [_Text(one, prompt, count, chunk) for one in (pack, other) if one is not None]
    ids = texts[0].ids
    code = 0
    if other is None:
        print_pieces(texts[0].pieces())
    else:
        print_columns([(str(text.pack.container.path), text.pieces()) for text in texts])
        code |= _compared(pack, ids, texts[1].ids, f"{other.container.path}")
    if expected is not None:
        code |= _compared(pack, ids[: len(expected)], expected, f"{expect}")
    return code


class _Text:
    """Greedy text of a pack; ids: those that were made so far."""

    def __init__(self, pack: Pack, prompt: Tokens, count: int, chunk: int | None) -> None:
        self.pack = pack
        self.ids: list[int] = []
        self._prompt, self._count, self._chunk = prompt, count, chunk

    def pieces(self) -> Iterator[str]:
        """The text as it comes; the pack is loaded by the first piece, and let go by the end."""
        check_length(self.pack.container, self.pack.decoder, len(self._prompt) + self._count)
        if self.pack.container.has(TOKENIZER):
            yield from self.pack.tokenizer.stream(self._made())
        else:
            yield from (f"{token} " for token in self._made())

    def _made(self) -> Iterator[int]:
        runner = self.pack.open()
        for token in generate(runner, self.pack.decoder, self._prompt, self._count, self._chunk):
            self.ids.append(token)
            yield token


def _compared(pack: Pack, ids: list[int], others: list[int], name: str) -> int:
    """Say where two lists of ids part; 1 where they do."""
    at = first_difference(ids, others)
    if not ids and not others:
        click.echo(f"nothing was generated, here or by {name}: there is nothing to compare")
        return 1
    if at is None:
        click.echo(f"same {len(ids)} tokens as {name}")
        return 0
    here, there = (_shown(pack, tokens, at) for tokens in (ids, others))
    click.echo(f"parts from {name} after {at} equal tokens: {here}, there {there}")
    return 1


def _shown(pack: Pack, ids: list[int], at: int) -> str:
    if at >= len(ids):
        return "the end"
    token = ids[at]
    if not pack.container.has(TOKENIZER) or not 0 <= token < pack.decoder.vocab_size:
        return str(token)
    return f"{token} {safe(pack.tokenizer.decode([token]))!r}"
