"""The report of a probe: frozen records, as JSON and as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packimport.audit.judge import counted
from packimport.errors import PackimportError, printable
from packimport.graph.site import Site
from packimport.semantics.model import Declaration
from packimport.version import __version__

SCHEMA = "probe.schema.json"
TOOL = {"name": "forward-serve", "version": __version__}
WITHIN, WRONG, NOT_PROBED = "within", "wrong", "not probed"
# The column where the values of the text begin.
VALUES = 14
_EXIT = {WITHIN: 0, WRONG: 1, NOT_PROBED: 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """One site against one schedule that its layers declare.

    op:        what rotated in onnxruntime.
    verdict:   WITHIN, WRONG or NOT_PROBED; reason: why, where figures don't say it.
    positions: that were rotated, ascending.
    max_abs_error: the largest error of an entry of the rotated q or k, whose entries are
               normally distributed; inf where it is not a number. `allowed`: at that
               entry. worst_position, side ("query" or "key") and length (of the call): of it.
    times_allowed: the largest error in parts of what is allowed at its entry.
    first_wrong_position: the first one with an entry beyond what is allowed.
    """

    site: Site
    declared: str
    op: str
    verdict: str
    reason: str | None = None
    positions: tuple[int, ...] = ()
    max_abs_error: float | None = None
    allowed: float | None = None
    worst_position: int | None = None
    side: str | None = None
    length: int | None = None
    times_allowed: float | None = None
    first_wrong_position: int | None = None

    def joined(self, **changes: Any) -> Probed:
        """The same with other figures; positions are added to the known ones."""
        more = changes.pop("positions", ())
        positions = tuple(sorted({*self.positions, *more}))
        return replace(self, positions=positions, **changes)

    def to_dict(self) -> dict[str, object]:
        """As JSON; a figure that is not a finite number is null."""
        site = self.site
        return {
            "graph": site.graph,
            "where": site.names,
            "branch": site.branch,
            "nodes": list(site.nodes),
            "form": site.form,
            "encoding": site.encoding,
            "dtype": site.dtype,
            "layers": list(site.layers),
            "interleaved": site.interleaved,
            "rotary_dim": site.rotary_dim,
            "op": self.op,
            "declared": self.declared,
            "positions": list(self.positions),
            "max_abs_error": _finite(self.max_abs_error),
            "allowed": _finite(self.allowed),
            "worst_position": self.worst_position,
            "side": self.side,
            "length": self.length,
            "times_allowed": _finite(self.times_allowed),
            "first_wrong_position": self.first_wrong_position,
            "verdict": self.verdict,
            "reason": self.reason,
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        site = self.site
        yield f"  {printable(f'{site.graph}: {site.names}')}"
        yield from _fields(
            rotates=f"{site.form} in {counted(site.layers)}; {site.dtype}"
            + (", pairs taken as declared" if site.interleaved is None else ""),
            **{"in": site.branch, "for": _calls(site)},
            declared=self.declared,
            by=f"{self.op}, {len(self.positions)} positions from 0 to {self.positions[-1]}"
            if self.positions
            else "",
        )
        if self.max_abs_error is not None:
            error = _number(self.max_abs_error)
            yield from _fields(
                error=f"{error} at position {self.worst_position} ({self.side}),"
                f" allowed {_number(self.allowed)}"
            )
        first = self.first_wrong_position
        start = "" if first is None else f", from position {first} on"
        yield from _fields(verdict=self.verdict + start, why=self.reason or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """What rotates, or should, and is no site; or an error that no rotation shows.

    verdict: WRONG or NOT_PROBED; reason: why. code: of the check that says so; None where
             the probe itself does.
    """

    graph: str | None
    where: str | None
    verdict: str
    reason: str
    code: str | None = None

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {
            "graph": self.graph,
            "where": self.where,
            "verdict": self.verdict,
            "reason": self.reason,
            "code": self.code,
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        place = ", ".join(part for part in (self.graph, self.where) if part)
        yield f"  {printable(place)}" if place else "  the pack"
        yield from _fields(verdict=self.verdict, check=self.code or "", why=self.reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A whole probe. `to_dict()` obeys schemas/probe.schema.json.

    path, format: of the container. declaration: what declares the schedule.
    engine:       onnxruntime's version. cures: by the code of a check that is an error, what
                  it says is to be done; for the text alone, as `packimport` has it in its JSON.
    """

    path: str
    format: str
    declaration: Declaration
    engine: str
    sites: tuple[Probed, ...]
    gaps: tuple[Gap, ...]
    cures: Mapping[str, str]

    @property
    def parts(self) -> tuple[Probed | Gap, ...]:
        """All that has a verdict."""
        return (*self.sites, *self.gaps)

    @property
    def verdict(self) -> str:
        """NOT_PROBED where anything is, else WRONG where anything is."""
        found = [part.verdict for part in self.parts]
        return max(found, key=lambda verdict: _EXIT[verdict], default=WITHIN)

    @property
    def exit_code(self) -> int:
        """0 within, 1 wrong, 3 not probed."""
        return _EXIT[self.verdict]

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {
            "schema_version": 1,
            "tool": TOOL,
            "container": {
                "path": self.path,
                "format": self.format,
                "config": self.declaration.file,
            },
            "engine": {"name": "onnxruntime", "version": self.engine},
            "verdict": self.verdict,
            "sites": [site.to_dict() for site in self.sites],
            "gaps": [gap.to_dict() for gap in self.gaps],
        }

    def text(self) -> str:
        """For a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{printable(self.path)}: {self.verdict}"
        yield f"  declared by {printable(self.declaration.named)}"
        yield f"  rotated by onnxruntime {self.engine} on the CPU, each site alone"
        for part in self.parts:
            yield ""
            yield from part.lines()
        if self.cures:
            yield ""
            yield "  what to do, by the checks of packimport:"
            yield from _fields(**self.cures)


def refusal(error: PackimportError) -> Mapping[str, object]:
    """The JSON where there is nothing to report."""
    return {"schema_version": 1, "tool": TOOL, "error": error.to_dict()}


def _calls(site: Site) -> str:
    if site.length is None:
        return ""
    return f"calls {'above' if site.length.long else 'up to'} {site.length.limit} tokens"


def _fields(**fields: str) -> Iterator[str]:
    for name, value in fields.items():
        if value:
            yield f"    {name}".ljust(VALUES) + printable(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _number(value: float | None) -> str:
    return "not a number" if _finite(value) is None else f"{value:.2g}"
