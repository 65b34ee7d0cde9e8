"""docs/api.md and docs/schedules.md: examples run, names and tables are those of the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import packimport
from packimport.rope.fields import FIELDS
from packimport.semantics.blocks import ALIASES
from packimport.semantics.families import knowledge, spellings

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_every_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    lines: list[str] = []
    count = 0
    for number, block in enumerate(BLOCKS):
        example = doctest.DocTestParser().get_doctest(block, names, f"block {number}", None, 0)
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        runner.run(example, out=lines.append, clear_globs=False)
        names = example.globs
        count += len(example.examples)
    assert not lines, "".join(lines)
    assert count > 50


@pytest.mark.parametrize("name", packimport.__all__)
def test_every_public_name(name: str) -> None:
    assert re.search(rf"\b{name}\b", TEXT)


SCHEDULES = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def keys(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_the_table_of_types_is_that_of_the_code() -> None:
    rows = [cells(row) for row in SCHEDULES.splitlines() if re.match(r"\| `\w+` \|", row)]
    assert [keys(row[0]) for row in rows] == [{kind} for kind in FIELDS]
    for kind, row in zip(FIELDS, rows, strict=True):
        assert keys(row[1]) == FIELDS[kind].required
        # freq_factors is no key of a config: the API alone takes it.
        assert keys(row[2]) == FIELDS[kind].optional - {"freq_factors"}
    for spelling, kind in ALIASES.items():
        assert f"`{spelling}` is {kind}" in SCHEDULES


def test_spellings_and_kinds_of_pairs_are_those_of_the_families() -> None:
    for name in ("theta", "partial", "rotary_dim"):
        assert set(spellings(name)) <= keys(SCHEDULES)
    families = knowledge().require("families").fields()
    kinds = {pairs.text() for entry in families.values() if (pairs := entry.get("pairs"))}
    assert kinds == {"interleaved", "de-interleaved"}
    restricted = {name for name, entry in families.items() if entry.has("types")}
    assert restricted == {"internlm2", "internlm3", "hunyuan"}
