"""A bar is drawn on a terminal alone, from the first byte on, and is gone before an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packimport.cli import main
from packimport.progress_bar import progress_bar

PACK = Path(__file__).parent / "packs" / "oga-0.11.2-llama3"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("copying", quiet=False) as on_progress:
        assert on_progress is None
    assert capsys.readouterr() == ("", "")


def test_nothing_where_it_is_not_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    with progress_bar("copying", quiet=True) as on_progress:
        assert on_progress is None
    assert capsys.readouterr() == ("", "")


def test_a_bar_comes_with_the_first_bytes_and_goes_with_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    with progress_bar("copying", quiet=False) as on_progress:
        assert on_progress is not None
        assert capsys.readouterr() == ("", "")
        on_progress(1000, 4000)
        on_progress(4000, 4000)
    out, err = capsys.readouterr()
    assert out == ""
    assert "copying" in err
    assert "4.0/4.0 kB" in err
    erase_line = "\x1b[2K"
    assert err.endswith(erase_line)


def test_a_refusal_shows_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_a_terminal(monkeypatch)
    with pytest.raises(SystemExit) as caught:
        main(["patch", str(PACK), "-o", str(tmp_path)])
    assert caught.value.code == 3
    err = capsys.readouterr().err
    assert err.startswith("packimport: error: ")
    assert err.count("\n") == 1
