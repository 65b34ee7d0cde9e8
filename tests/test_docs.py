"""What the docs promise: a section for each check, and text of no other code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from packimport.audit.checks import CHECKS, VERDICTS
from packimport.audit.explain import explain
from packimport.errors import UsageError

DOCS = Path(__file__).parent.parent / "docs"


def test_every_check_has_a_section_and_no_other_has() -> None:
    text = (DOCS / "checks.md").read_text(encoding="utf-8")
    titles = dict(re.findall(r"^## (RPE\d{3}): (.+)$", text, re.MULTILINE))
    assert titles == {check.code: check.title for check in CHECKS.values()}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for part in ("**Cause.**", "**Effect.**", "**Cure.**"):
            assert part in section, section.splitlines()[0]


@pytest.mark.parametrize("code", sorted(CHECKS))
def test_explain_prints_the_section(code: str) -> None:
    text = explain(code.lower())
    assert text.startswith(f"{code}: {CHECKS[code].title}\n")
    for part in ("**Cause.**", "**Effect.**", "**Cure.**"):
        assert text.count(part) == 1
    assert "## " not in text


def test_explain_knows_no_other_code() -> None:
    with pytest.raises(UsageError, match="RPE999"):
        explain("RPE999")


def test_checks_are_well_formed() -> None:
    for code, check in CHECKS.items():
        assert code == check.code
        assert check.severity in ("error", "warning", "note")
        assert check.verdict in VERDICTS
        assert (check.verdict == "ok") == (check.severity != "error")
