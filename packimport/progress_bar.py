"""A progress bar on standard error, drawn only where a person looks on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from packimport.pack.progress import OnProgress


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[OnProgress | None]:
    """Yields what a long job calls with bytes done and bytes in all; None off a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show
