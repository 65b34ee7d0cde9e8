"""Lines are folded to a width, and what does not fit stands as far left as it may."""

from __future__ import annotations

import pytest

from packimport.wrapping import wrapped


def test_what_is_folded_stands_where_the_values_do() -> None:
    text = "  model.onnx: cos\n    declared    llama3 (theta 500000, factor 32, low 1)"
    assert wrapped(text, 40).splitlines() == [
        "  model.onnx: cos",
        "    declared    llama3 (theta 500000,",
        "                factor 32, low 1)",
    ]


def test_a_word_too_wide_for_that_stands_further_left() -> None:
    word = "w" * 30
    assert wrapped(f"    do          run {word} now", 40).splitlines() == [
        "    do          run",
        f"        {word}",
        "                now",
    ]


def test_a_word_is_never_cut() -> None:
    word = "w" * 90
    assert word in wrapped(f"    do          {word}", 40).splitlines()[1]


def test_nothing_is_folded_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = "word " * 60
    assert wrapped(line) == line
