"""Report: what a check found, as a frozen record, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packimport.audit.checks import Finding
from packimport.audit.exporters import exporter_of
from packimport.audit.judge import JudgedSite, counted
from packimport.errors import PackimportError, printable
from packimport.graph.site import Site
from packimport.rope.naming.mistakes import MISTAKES
from packimport.semantics.model import Semantics
from packimport.version import __version__

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that a check says. `to_dict()` is the JSON of schemas/report.schema.json.

    path:    the container as the user named it.
    format:  how it lies on disk, e.g. "folder".
    layout:  whose files it has: one of `layout.LAYOUTS`.
    graphs:  every ONNX file of the container; only the decoder's are judged.
    verdict: "ok", "mismatch", "undeclared" or "unsupported".
    """

    path: str
    format: str
    layout: str
    graphs: tuple[str, ...]
    verdict: str
    semantics: Semantics
    sites: tuple[JudgedSite, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 where the pack is right, 3 where it can't be judged, else 1."""
        return {"ok": 0, "unsupported": 3}.get(self.verdict, 1)

    def to_dict(self) -> dict[str, object]:
        """The JSON report."""
        declaration = self.semantics.declaration
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "packimport", "version": __version__},
            "container": {
                "path": self.path,
                "format": self.format,
                "layout": self.layout,
                "graphs": list(self.graphs),
                "config": declaration.file if declaration else None,
            },
            "verdict": self.verdict,
            "semantics": self.semantics.to_dict(),
            "sites": [_site(judged, exporter_of(judged, self.semantics)) for judged in self.sites],
            "findings": [f.to_dict() for f in self.findings],
        }

    def text(self) -> str:
        """The report for a person: short lines, no colour."""
        return "\n".join(_lines(self))


def refusal(error: PackimportError) -> dict[str, object]:
    """The JSON that stands in place of a report where the pack can't be read."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "packimport", "version": __version__},
        "verdict": "unsupported",
        "error": error.to_dict(),
    }


def _site(judged: JudgedSite, exporter: str | None) -> dict[str, object]:
    site, m = judged.site, judged.measurement
    return {
        "graph": site.graph,
        "where": site.names,
        "branch": site.branch,
        "nodes": list(site.nodes),
        "form": site.form,
        "encoding": site.encoding,
        "dtype": site.dtype,
        "rows": None if site.table is None else site.rows,
        "pairs": site.pairs,
        "layers": list(site.layers),
        "length": None
        if site.length is None
        else {"limit": site.length.limit, "long": site.length.long},
        "attention_factor": None if site.waves is None else site.waves.cos_factor,
        "declared": judged.declared,
        "baked_as": m.baked_as,
        "mistake": m.mistake,
        "exporter": exporter,
        "equivalents": list(m.equivalents),
        "ambiguous": list(m.ambiguous),
        "wrong_pairs": m.wrong_pairs,
        "max_ratio": m.max_ratio,
        "max_abs_cos_error": m.max_abs_cos_error,
        "max_abs_sin_error": m.max_abs_sin_error,
        "angle_error": {str(position): value for position, value in m.angle_error},
        "first_bad_position": m.first_bad_position,
    }


def _lines(report: Report) -> Iterator[str]:
    yield f"{printable(report.path)}: {report.verdict}"
    yield f"  layout: {report.layout}"
    declaration = report.semantics.declaration
    if declaration is not None:
        yield f"  declared by {printable(declaration.named)}"
    for judged in report.sites:
        yield ""
        yield from _site_lines(judged, exporter_of(judged, report.semantics))
    others = [g for g in report.graphs if g not in report.semantics.graphs]
    if others and report.semantics.graphs:
        yield ""
        yield f"  not judged (not the decoder): {printable(', '.join(others))}"
    for f in report.findings:
        yield ""
        yield from _finding_lines(f)


def _site_lines(judged: JudgedSite, exporter: str | None) -> Iterator[str]:
    site, m = judged.site, judged.measurement
    yield printable(f"  {site.graph}: {site.names}")
    yield from _fields(
        ("serves", f"{site.form} in {counted(site.layers)}; {_constants(site)}"),
        ("in", site.branch),
        ("for", _length(site)),
        ("declared", judged.declared or "nothing"),
        ("baked as", m.baked_as),
        ("fault", "" if m.mistake is None else MISTAKES[m.mistake].text),
        ("known of", exporter or ""),
        ("could be", " or ".join(m.ambiguous)),
        ("same as", ", ".join(m.equivalents)),
    )
    if m.wrong_pairs is None:
        return
    ratio = "unknown ratio" if m.max_ratio is None else f"up to {m.max_ratio:.4g}x"
    wrong = f"{m.wrong_pairs} of {site.pairs}" + (f", {ratio}" if m.wrong_pairs else "")
    first = m.first_bad_position
    yield from _fields(
        ("wrong pairs", wrong),
        ("max error", f"cos {_number(m.max_abs_cos_error)}, sin {_number(m.max_abs_sin_error)}"),
        ("angle off", _angles(judged) if m.wrong_pairs else ""),
        ("", f"first beyond 0.1 rad at position {first}" if first is not None else ""),
    )


def _constants(site: Site) -> str:
    if site.waves is None:
        # Its values are of float16's precision, which the dtype of the tensor does not tell.
        dtype = f"{site.dtype} hi + lo" if site.encoding == "hi-lo" else site.dtype
        return f"{dtype}, {site.rows} rows x {site.pairs} pairs"
    factor = site.waves.cos_factor
    return f"{site.dtype}, {site.pairs} frequencies" + (f" x {factor:.7g}" if factor != 1 else "")


def _length(site: Site) -> str:
    if site.length is None:
        return ""
    return f"calls {'above' if site.length.long else 'up to'} {site.length.limit} tokens"


def _number(error: float | None) -> str:
    return "not a number" if error is None else f"{error:.2g}"


def _angles(judged: JudgedSite) -> str:
    known = [
        f"{'unknown' if value is None else f'{value:.4g}'} at {position}"
        for position, value in judged.measurement.angle_error
    ]
    return "rad: " + ", ".join(known)


def _fields(*fields: tuple[str, str]) -> Iterator[str]:
    for name, value in fields:
        if value:
            yield f"    {name:<12}{printable(value)}"


def _finding_lines(f: Finding) -> Iterator[str]:
    yield printable(f"  {f.severity} {f.code}: {f.message}")
    place = ", ".join(x for x in (f.graph, f.where, f.pointer) if x)
    yield from _fields(
        ("where", place),
        ("expected", f.expected or ""),
        ("found", f.found or ""),
        ("do", f.fix or ""),
    )
