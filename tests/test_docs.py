"""What the docs promise: a section for each check, and text of no other code."""

from __future__ import annotations

import re
from pathlib import Path

from packimport.audit.checks import CHECKS, VERDICTS

DOCS = Path(__file__).parent.parent / "docs"


def test_every_check_has_a_section_and_no_other_has() -> None:
    text = (DOCS / "checks.md").read_text(encoding="utf-8")
    titles = dict(re.findall(r"^## (RPE\d{3}): (.+)$", text, re.MULTILINE))
    assert titles == {check.code: check.title for check in CHECKS.values()}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for part in ("**Cause.**", "**Effect.**", "**Cure.**"):
            assert part in section, section.splitlines()[0]


def test_checks_are_well_formed() -> None:
    for code, check in CHECKS.items():
        assert code == check.code
        assert check.severity in ("error", "warning", "note")
        assert check.verdict in VERDICTS
        assert (check.verdict == "ok") == (check.severity != "error")
