"""Refusals: what can't be mended, told by the first finding that stays."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.audit.checks import CHECKS, Finding
from packimport.audit.judge import JudgedSite, where
from packimport.audit.report import Report
from packimport.errors import PatchError
from packimport.graph.changes.uses import is_changeable
from packimport.mending.needs import lacks_factor

DANGLING = "RPE016"
FACTOR = "RPE024"


def refuse_unmendable(report: Report, *, bytes_only: bool) -> None:
    """Raises PatchError where an error of the report is no matter of tables or nodes.

    bytes_only: nor of nodes.
    """
    places = {
        (code, judged.site.graph, where(judged.site))
        for judged in report.sites
        for code in _mendable_codes(judged)
    }
    stuck = [
        finding
        for finding in report.findings
        if finding.severity == "error" and not _is_mendable(finding, places, bytes_only)
    ]
    if stuck:
        more = f" (and {len(stuck) - 1} more)" if len(stuck) > 1 else ""
        by_graph = bytes_only and CHECKS[stuck[0].code].changes_graph
        raise _refusal(report, stuck[0], more, "leave --bytes-only out" if by_graph else None)


def cause_in(report: Report, graph: str, why: str) -> PatchError:
    """The refusal of a graph that can't be changed, by its first error."""
    errors = [f for f in report.findings if f.severity == "error" and f.graph == graph]
    return _refusal(report, errors[0], f"; {why}", "export the model again")


def has_dangling(report: Report, graph: str) -> bool:
    """Whether a graph has rotations that can't run."""
    return any(f.code == DANGLING and f.graph == graph for f in report.findings)


def _is_mendable(finding: Finding, places: set[tuple[str, str, str]], bytes_only: bool) -> bool:
    check = CHECKS[finding.code]
    if check.mendable:
        return True
    if bytes_only or not check.changes_graph:
        return False
    return finding.code == DANGLING or (finding.code, finding.graph, finding.where) in places


def _mendable_codes(judged: JudgedSite) -> Iterator[str]:
    """The codes of what a change of the graph can cure at a site."""
    if lacks_factor(judged):
        yield FACTOR
    if is_changeable(judged.site):
        yield from (code for code, check in CHECKS.items() if check.changes_graph)


def _refusal(report: Report, finding: Finding, more: str, todo: str | None) -> PatchError:
    return PatchError(
        f"{finding.code}: {finding.message}{more}",
        place=finding.graph or report.path,
        found=finding.found,
        allowed=finding.expected,
        fix=f"Nothing was written. To do: {todo or finding.fix}.",
    )
