"""Shell: what both commands share: a group with a default command, help, and the way out.

`run` is the one place that turns outcomes into exit codes:

    0, 1   what the command returned
    2      wrong usage
    3      the input is refused, or the machine refuses (no file, no space, no memory)
    4      a fault of ours
    130    interrupted; 141 the reader of our output went away
    143    asked to end by SIGTERM, 129 by SIGHUP, while there was something to remove
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

import click

from packimport.errors import PackimportError, printable

TRACEBACK = "PACKIMPORT_TRACEBACK"


class DefaultGroup(click.Group):
    """A group whose command `default` runs when the first argument names no command.

    Its help is the default command's, followed by the other commands. A folder
    that is named like a command is passed as `./NAME`.
    """

    def __init__(self, *, default: str, **settings: Any) -> None:  # click's own settings
        super().__init__(**settings)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front, unless a command or the group's own option comes."""
        known = {name for name, command in self.commands.items() if not command.hidden}
        known |= {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if not args or args[0] not in known:
            self._refuse_misspelt(ctx, args)
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, ctx: click.Context, args: list[str]) -> None:
        """A first word that is nearly a command, and no path, is a command misspelt."""
        # What is written as a path is one: `./chek`.
        if not args or not args[0].isalpha() or os.path.lexists(args[0]):
            return
        import difflib

        names = [name for name, command in self.commands.items() if not command.hidden]
        near = difflib.get_close_matches(args[0], names, n=1, cutoff=0.75)
        if near:
            message = f"there is no command or path {printable(args[0])}; did you mean {near[0]}?"
            raise click.UsageError(message, ctx)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A usage line for each command."""
        for name, command in self.commands.items():
            pieces = command.collect_usage_pieces(click.Context(command, ctx, name))
            program = ctx.command_path if name == self.default else f"{ctx.command_path} {name}"
            formatter.write_usage(program, " ".join(pieces))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the default command, then the commands."""
        default = self.commands[self.default]
        default.format_options(click.Context(default, ctx, self.default), formatter)
        self.format_commands(ctx, formatter)


class SectionedCommand(click.Command):
    """A command whose help shows its options under headings.

    sections: the names of the options that stand under each heading, in that order. Those
    that none names, such as --help, stand under "Options" at the end.
    """

    def __init__(self, *, sections: Mapping[str, Sequence[str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by section, in columns of one width."""
        records = {
            name: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
            for name in parameter.opts[-1:]
        }
        width = max(len(left) for left, _ in records.values())
        named = {name for names in self.sections.values() for name in names}
        others = [name for name in records if name not in named]
        for heading, names in {**self.sections, "Options": others}.items():
            with formatter.section(heading):
                rows = [(left.ljust(width), text) for left, text in map(records.__getitem__, names)]
                formatter.write_dl(rows)


def run(command: click.Command, name: str, args: Sequence[str] | None = None) -> NoReturn:
    """Run `command` under the program name `name` and exit.

    args: None for those of the process. The command returns its exit code, or
    None for 0; it raises PackimportError for what it refuses. Errors are one
    line on standard error; with PACKIMPORT_TRACEBACK=1 their traceback stands
    above it.
    """
    # Python has None for a stream that was closed before it started.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        # A Windows console or a redirect may be cp1252: print \u2265 rather than fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_outcome(command, name, args))


def _outcome(command: click.Command, name: str, args: Sequence[str] | None) -> int:
    try:
        # Not command.main: that ends the process itself where a pipe breaks.
        given = list(sys.argv[1:] if args is None else args)
        with command.make_context(name, given, terminal_width=_help_width()) as context:
            result = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except click.ClickException as error:
        text = error.format_message()
        stop = "" if text.endswith((".", "?", "!")) else "."
        return _fail(name, f"{text}{stop} {_hint(error, name)}", 2, error)
    except PackimportError as error:
        return _fail(name, str(error), error.exit_code, error)
    except OSError as error:
        if _is_broken_pipe(error):
            return _reader_left()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(name, f"{where}{error.strerror or error}", 3, error)
    except MemoryError as error:
        return _fail(name, "not enough memory", 3, error)
    except Exception as error:
        text = f"{type(error).__name__}: {error}; this is a fault of {name}. "
        return _fail(name, f"{text}Set {TRACEBACK}=1 to see where, and report it.", 4, error)
    return result if isinstance(result, int) else 0


def _help_width() -> int:
    """Columns of a help text, as click finds them; it imports shutil for it, which takes 2 ms."""
    columns = os.environ.get("COLUMNS", "")
    found = int(columns) if columns.isdecimal() else 0
    if not found:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            found = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]  # may be None
    return max(min(found or 80, 80) - 2, 50)


def _hint(error: click.ClickException, name: str) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    named = context is not None and not context.command.hidden
    return f"Try '{context.command_path if context and named else name} --help'."


def _fail(name: str, text: str, code: int, error: BaseException) -> int:
    if os.environ.get(TRACEBACK, "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{name}: error: {printable(' '.join(text.splitlines()))}", err=True)
    return code


def _interrupted() -> int:
    click.echo(err=True)
    return 130


def _is_broken_pipe(error: OSError) -> bool:
    # Windows says EINVAL of a pipe without a reader.
    windows = os.name == "nt" and error.errno == errno.EINVAL and error.filename is None
    return isinstance(error, BrokenPipeError) or windows


def _reader_left() -> int:
    # What is still buffered has no reader; Python would complain about it at exit.
    sys.stdout = _nowhere()
    return 141


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # pathlib takes 3 ms
