"""A progress bar on standard error, drawn only where a person looks on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from packimport.pack.progress import OnProgress

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[OnProgress | None]:
    """Yields what a long job calls with bytes done and bytes in all; None off a terminal.

    Nothing is drawn before the first call: what is refused at once shows no bar.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as stack:
        bar: Progress | None = None

        def show(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                bar = stack.enter_context(_bar())
                bar.add_task(what, total=total)
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield show


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
