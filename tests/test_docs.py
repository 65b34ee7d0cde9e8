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
    lines = text.splitlines()
    for part in ("Cause. ", "Effect. ", "Cure. "):
        assert sum(line.startswith(part) for line in lines) == 1
    assert not re.search(r"## |\*\*|\]\(", text)
    pages = re.findall(r"docs/[^ ,;:)]+\.md", text)
    assert all((DOCS.parent / page).is_file() for page in pages)


def test_explain_names_a_page_by_its_path() -> None:
    assert "see docs/forms.md. Or" in explain("RPE003")


def test_explain_says_what_the_numbers_of_a_report_are() -> None:
    text = explain("RPE001")
    for name in ("wrong pairs", "ratio", "max error", "angle off", "first beyond 0.1 rad"):
        assert name in text


def test_explain_knows_no_other_code() -> None:
    with pytest.raises(UsageError, match="RPE999"):
        explain("RPE999")


def test_checks_are_well_formed() -> None:
    for code, check in CHECKS.items():
        assert code == check.code
        assert check.severity in ("error", "warning", "note")
        assert check.verdict in VERDICTS
        assert (check.verdict == "ok") == (check.severity != "error")
