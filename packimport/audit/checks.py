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
    changes_graph: whether a change of the graph cures it, in the forms that allow one.
    """

    code: str
    severity: str
    verdict: str
    title: str
    mendable: bool = False
    changes_graph: bool = False


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
    Check("RPE005", "error", "mismatch", "a layer without RoPE is rotated", changes_graph=True),
    Check("RPE006", "error", "mismatch", "a layer that should rotate is not rotated"),
    Check(
        "RPE007",
        "error",
        "mismatch",
        "the node pairs entries otherwise than declared",
        changes_graph=True,
    ),
    Check(
        "RPE008", "error", "mismatch", "the table or the node has another width", changes_graph=True
    ),
    Check(
        "RPE009",
        "error",
        "mismatch",
        "the table has fewer rows than the usable length",
        changes_graph=True,
    ),
    Check("RPE010", "note", "ok", "context_length lies beyond the table"),
    Check(
        "RPE011",
        "error",
        "mismatch",
        "one table serves layers that need different ones",
        changes_graph=True,
    ),
    Check(
        "RPE012",
        "error",
        "mismatch",
        "one table, but the schedule changes with length",
        changes_graph=True,
    ),
    Check("RPE013", "error", "unsupported", "the graph has another number of layers"),
    Check("RPE014", "note", "ok", "a remark on the declaration"),
    Check("RPE015", "error", "unsupported", "no decoder graph was found"),
    Check(
        "RPE016",
        "error",
        "mismatch",
        "a layer without RoPE is rotated by nodes that can't run",
        changes_graph=True,
    ),
    Check("RPE017", "note", "ok", "the pack asks for native code to be loaded"),
    Check(
        "RPE018",
        "error",
        "mismatch",
        "the node rotates another number of entries",
        changes_graph=True,
    ),
    Check("RPE019", "error", "mismatch", "query and key use different tables", mendable=True),
    Check("RPE020", "error", "mismatch", "prefill and decode use different tables", mendable=True),
    Check("RPE021", "error", "mismatch", "angles are computed in half precision"),
    Check("RPE022", "error", "mismatch", "the tables change at another length than declared"),
    Check("RPE023", "error", "mismatch", "an op makes a table of its own"),
    Check(
        "RPE024",
        "error",
        "mismatch",
        "the attention factor is not the declared one",
        changes_graph=True,
    ),
    Check("RPE025", "error", "mismatch", "the graph computes other frequencies than declared"),
    Check("RPE026", "error", "mismatch", "M-RoPE sections are not the declared ones"),
    Check("RPE027", "error", "unsupported", "the model's family is not known"),
    Check("RPE028", "error", "mismatch", "the device uses the first of several tables"),
    Check("RPE029", "error", "mismatch", "the long table follows the short one, out of reach"),
    Check("RPE030", "error", "unsupported", "the values of a table were moved out of the graph"),
    Check("RPE031", "note", "ok", "that the device takes its table from the file is inferred"),
    Check("RPE040", "error", "mismatch", "no kernel takes a table of this width"),
    Check("RPE041", "error", "unsupported", "the graph has other heads than declared"),
)


# How a fix begins that is a patch.
PATCH = "packimport patch CONTAINER -o OUT"


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
