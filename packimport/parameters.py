"""Parameters: types and options that the commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from pathlib import Path

_Function = TypeVar("_Function", bound=Callable[..., object])


class PathType(click.Path):
    """A `pathlib.Path`, whose module `--help` need not import: it takes 3 of 40 ms."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """The path, which need not exist."""
        from pathlib import Path

        return Path(os.fsdecode(super().convert(value, param, ctx)))


FOLDER = PathType()
FILE = PathType(dir_okay=False)


def declaration_options(function: _Function) -> _Function:
    """The options that say which schedule is meant, where the pack does not."""
    for option in (
        click.option("--model", metavar="ID", help="A known model declares the schedule."),
        click.option(
            "--config",
            type=FOLDER,
            metavar="PATH",
            help="The source model's config.json, or its folder; wins over the pack's own.",
        ),
    ):
        function = option(function)
    return function
