"""Explain: what the documentation says of a check."""

from __future__ import annotations

import re
from pathlib import Path

from packimport.audit.checks import CHECKS
from packimport.errors import DependencyError, UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_PAGE = "checks.md"


def explain(code: str) -> str:
    """The section of docs/checks.md for a code such as "RPE001": a line for each paragraph.

    Raises UsageError for a code that there is none of, and DependencyError where
    the installation lacks the page.
    """
    wanted = code.upper()
    if wanted not in CHECKS:
        raise UsageError("no such check", found=code, allowed=f"{min(CHECKS)} to {max(CHECKS)}")
    sections = re.split(r"^## ", _page(), flags=re.MULTILINE)
    found = next(section for section in sections if section.startswith(f"{wanted}:"))
    return _plain(found.rstrip())


def _plain(markdown: str) -> str:
    """Without the marks of Markdown; a page that is linked is named by its path."""
    title, *paragraphs = re.split(r"\n+(?=\*\*)", markdown)
    text = "\n".join((title, *(" ".join(part.split()) for part in paragraphs)))
    text = re.sub(r"\*\*(.+?)\*\*", r"\1", text)
    return re.sub(r"\[[^\]]*\]\(([^)]*)\)", r"docs/\1", text)


def _page() -> str:
    # A wheel carries the page within the package; a checkout has it in docs/.
    for folder in (_PACKAGE / "_docs", _PACKAGE.parent / "docs"):
        path = folder / _PAGE
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise DependencyError(
        "this installation of packimport lacks a file of its own",
        place=f"docs/{_PAGE}",
        fix="Install packimport again.",
    )
