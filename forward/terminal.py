"""What a person sees while a run goes on: streamed text, and a bar."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from forward.dump import Tokens
from forward.dump_pack import Watch
from forward.form import Form
from forward.steps import Block, Step
from packimport.errors import PackimportError, printable


def print_pieces(pieces: Iterable[str]) -> None:
    """Print pieces of text as they come, and a newline."""
    begun = False
    try:
        for piece in pieces:
            click.echo(safe(piece), nl=False)
            sys.stdout.flush()
            begun = True
    except PackimportError:
        if begun:
            click.echo()  # the error begins a line
        raise
    click.echo()


def print_columns(texts: Sequence[tuple[str, Iterable[str]]]) -> None:
    """Print titles and the pieces of texts as they come, one text after the other.

    On a terminal they stand side by side.
    """
    if not sys.stdout.isatty():
        for title, pieces in texts:
            click.echo(f"--- {printable(title)}")
            print_pieces(pieces)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console, table, cells = Console(), Table(box=None, expand=True), [Text() for _ in texts]
    for title, _ in texts:
        table.add_column(Text(printable(title)), ratio=1, overflow="fold")
    table.add_row(*cells)
    try:
        with Live(table, console=console, transient=True):
            for cell, (_, pieces) in zip(cells, texts, strict=True):
                for piece in pieces:
                    cell.append(safe(piece))
    finally:
        console.print(table)  # whole: what is live ends at the terminal's height


def dumps_line(folder: Path, prompts: Sequence[Tokens], form: Form) -> str:
    """What was dumped of many prompts."""
    positions = sum(map(len, prompts))
    dumps = "1 dump" if len(prompts) == 1 else f"{len(prompts)} dumps"
    return f"{folder}: {dumps}, {positions} positions, {form.dtype}"


def safe(text: str) -> str:
    """A model's text for a terminal: control characters but tab and newline are escaped."""
    return "".join(
        f"\\x{ord(c):02x}" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
        for c in text
    )


@contextmanager
def progress() -> Iterator[Watch]:
    """Yields what hands blocks on and shows, on a terminal, how many of the tokens are done.

    The bar goes with the context, whatever ends it, so that no error is printed beside it.
    """
    with ExitStack() as stack:

        def watch(steps: Sequence[Step], blocks: Iterable[Block]) -> Iterator[Block]:
            if not sys.stderr.isatty() or len(steps) == 1:
                yield from blocks
                return
            from rich.console import Console
            from rich.progress import Progress

            bar = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
            task = bar.add_task("tokens", total=steps[-1].stop)
            for block in blocks:
                yield block
                bar.update(task, completed=block.step.stop)

        yield watch
