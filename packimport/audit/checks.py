"""The checks: a stable code, a severity, a verdict and one line of text each.

A check judges facts and changes nothing. `docs/checks.md` has a section per
code with cause, effect and cure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# From best to worst; a report takes the worst of its error findings.
VERDICTS = ("ok", "undeclared", "mismatch", "unsupported")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that can be wrong.

    severity: "error" counts for the verdict; "warning" and "note" do not.
    verdict:  what an error of this check makes of the pack.
    mendable: whether new bytes for the table cure it.
    """

    code: str
    severity: str
    verdict: str
    title: str
    mendable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A check that fired: the place, what was expected, what was found, what to do."""

    code: str
    severity: str
    message: str
    graph: str | None = None
    where: str | None = None
    pointer: str | None = None
    expected: str | None = None
    found: str | None = None
    fix: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """The finding as the JSON report shows it."""
        return {name: getattr(self, name) for name in self.__slots__}


def _table(*checks: Check) -> Mapping[str, Check]:
    return MappingProxyType({check.code: check for check in checks})


CHECKS = _table(
    Check("RPE001", "error", "mismatch", "the table is not the declared one", mendable=True),
    Check("RPE002", "error", "undeclared", "nothing declares which schedule is meant"),
    Check("RPE003", "error", "unsupported", "a node that may rotate can't be read"),
    Check("RPE004", "error", "unsupported", "a layer was not found in the graph"),
    Check("RPE005", "error", "mismatch", "a layer without RoPE is rotated"),
    Check("RPE006", "error", "mismatch", "a layer that should rotate is not rotated"),
    Check("RPE007", "error", "mismatch", "the node pairs entries otherwise than declared"),
    Check("RPE008", "error", "mismatch", "the table or the node has another width"),
    Check("RPE009", "error", "mismatch", "the table has fewer rows than the usable length"),
    Check("RPE010", "note", "ok", "context_length lies beyond the table"),
    Check("RPE011", "error", "mismatch", "one table serves layers that need different ones"),
    Check("RPE012", "error", "mismatch", "one table, but the schedule changes with length"),
    Check("RPE013", "error", "unsupported", "the graph has another number of layers"),
    Check("RPE014", "note", "ok", "a remark on the declaration"),
    Check("RPE015", "error", "unsupported", "no decoder graph was found"),
)


def finding(  # one keyword per field of the record, so that no call site repeats severities
    code: str,
    message: str,
    *,
    graph: str | None = None,
    where: str | None = None,
    pointer: str | None = None,
    expected: str | None = None,
    found: str | None = None,
    fix: str | None = None,
) -> Finding:
    """A Finding of check `code`, with the severity that its check has."""
    return Finding(
        code=code,
        severity=CHECKS[code].severity,
        message=message,
        graph=graph,
        where=where,
        pointer=pointer,
        expected=expected,
        found=found,
        fix=fix,
    )


def verdict(findings: tuple[Finding, ...]) -> str:
    """The worst verdict among the findings of severity `error`; "ok" without any."""
    errors = [CHECKS[f.code].verdict for f in findings if f.severity == "error"]
    return max(errors, key=VERDICTS.index, default="ok")
