"""How a command ends: exit codes, one line on standard error, any console encoding."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from packimport.errors import ContainerError, PackimportError, UsageError
from packimport.shell import DefaultGroup, SectionedCommand, run

ROOT = Path(__file__).parent.parent


def end(
    capsys: pytest.CaptureFixture[str], body: Callable[[], Any], args: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command with this body."""

    @click.command()
    def command() -> Any:
        return body()

    with pytest.raises(SystemExit) as caught:
        run(command, "tool", args)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def raiser(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), ("text", 0)])
def test_what_a_command_returns(
    capsys: pytest.CaptureFixture[str], returned: object, code: int
) -> None:
    assert end(capsys, lambda: returned) == (code, "", "")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (PackimportError("no", place="a\nb"), 3, r"a\nb: no"),
        (ContainerError("no", found="x", fix="Do it."), 3, "no; found x. Do it."),
        (UsageError("both"), 2, "both"),
        (click.UsageError("what"), 2, "what. Try 'tool --help'."),
        (OSError(28, "No space left on device", "out"), 3, "out: No space left on device"),
        (MemoryError(), 3, "not enough memory"),
        (PackimportError("esc \x1b[31m"), 3, r"esc \x1b[31m"),
    ],
)
def test_errors(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    assert end(capsys, raiser(error)) == (code, "", f"tool: error: {text}\n")


def test_a_fault_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = end(capsys, raiser(RuntimeError("two\nlines")))
    assert (code, out) == (4, "")
    assert err.startswith("tool: error: RuntimeError: two lines; this is a fault of tool.")
    assert "PACKIMPORT_TRACEBACK=1" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("PACKIMPORT_TRACEBACK", "1")
    assert "Traceback" in end(capsys, raiser(RuntimeError("x")))[2]
    monkeypatch.setenv("PACKIMPORT_TRACEBACK", "0")
    assert "Traceback" not in end(capsys, raiser(RuntimeError("x")))[2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt(capsys: pytest.CaptureFixture[str], error: BaseException) -> None:
    assert end(capsys, raiser(error))[:2] == (130, "")


def test_click_itself_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = end(capsys, lambda: None, ("--help",))
    assert code == 0
    assert out.startswith("Usage: tool")
    assert end(capsys, lambda: None, ("--bogus",))[0] == 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_leaves() -> None:
    script = """
import click
from packimport.shell import SectionedCommand, run
@click.command()
def command():
    for _ in range(100000):
        click.echo("x" * 100)
run(command, "tool", [])
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "utf-8"])
def test_any_console_shows_any_text(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw_out, raw_err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw_out, encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw_err, encoding=encoding))

    @click.command()
    def command() -> None:
        click.echo("KL ‖ 日本 ≥")
        raise PackimportError("ü ‖ 日本")

    with pytest.raises(SystemExit) as caught:
        run(command, "tool", [])
    assert caught.value.code == 3
    sys.stderr.flush()
    for raw, text in ((raw_out, "KL ‖ 日本 ≥"), (raw_err, "tool: error: ü ‖ 日本")):
        assert raw.getvalue().decode(encoding).strip() == text.encode(
            encoding, "backslashreplace"
        ).decode(encoding)


def group() -> click.Group:
    @click.group(cls=DefaultGroup, default="run")
    @click.version_option("1")
    def tool() -> None:
        """Does things."""

    @tool.command(name="run", hidden=True)
    @click.argument("path")
    @click.option("--deep", is_flag=True, help="Go deep.")
    def run_command(path: str, deep: bool) -> None:
        click.echo(f"run {path} {deep}")

    @tool.command()
    @click.argument("path")
    def other(path: str) -> None:
        """Do another thing."""
        click.echo(f"other {path}")

    return tool


@pytest.mark.parametrize(
    ("args", "out"),
    [
        (["pack"], "run pack False"),
        (["--deep", "pack"], "run pack True"),
        (["pack", "--deep"], "run pack True"),
        (["other", "pack"], "other pack"),
        (["./other"], "run ./other False"),
        (["run"], "run run False"),
        (["--version"], "tool, version 1"),
    ],
)
def test_default_command(capsys: pytest.CaptureFixture[str], args: list[str], out: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(group(), "tool", args)
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"{out}\n"


def test_help_of_a_group_shows_every_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(group(), "tool", ["--help"])
    out = capsys.readouterr().out
    assert "Usage: tool [OPTIONS] PATH\nUsage: tool other [OPTIONS] PATH\n" in out
    assert "--deep" in out
    assert "Do another thing." in out


@pytest.mark.parametrize("args", [[], ["pack", "--bogus"]])
def test_wrong_usage_of_the_default_command(
    capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(group(), "tool", args)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(". Try 'tool --help'.\n")


def test_a_command_that_is_misspelt(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(group(), "tool", ["othr", "pack"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "tool: error: there is no command or path othr; did you mean other? Try 'tool --help'.\n"
    )
    # A folder of that name is one, and a word like no command is a path.
    (tmp_path / "othr").mkdir()
    for path in ("othr", "nothing-like-it"):
        with pytest.raises(SystemExit):
            run(group(), "tool", [path])
        assert capsys.readouterr().out == f"run {path} False\n"


def test_options_stand_under_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    sections = {"First": ("--deep", "--to"), "Second": ("--by",)}

    @click.command(cls=SectionedCommand, sections=sections)
    @click.argument("path")
    @click.option("--by", metavar="NAME", help="By whom.")
    @click.option("-t", "--to", help="Where to.")
    @click.option("--deep", is_flag=True, help="Go deep.")
    def command(path: str, **_: object) -> None: ...

    with pytest.raises(SystemExit):
        run(command, "tool", ["--help"])
    out = capsys.readouterr().out
    assert out.split("\n\n", 1)[1] == (
        "First:\n"
        "  --deep         Go deep.\n"
        "  -t, --to TEXT  Where to.\n"
        "\n"
        "Second:\n"
        "  --by NAME      By whom.\n"
        "\n"
        "Options:\n"
        "  --help         Show this message and exit.\n"
    )
