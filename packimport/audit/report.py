"""Report: what a check found, as a frozen record and as JSON; `report_text` has its text."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.audit.checks import Finding
from packimport.audit.exporters import exporter_of
from packimport.audit.judge import JudgedSite
from packimport.audit.report_text import findings_lines, sites_lines
from packimport.errors import PackimportError, printable
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
        declaration = self.semantics.declaration
        lines = [f"{printable(self.path)}: {self.verdict}", f"  layout: {self.layout}"]
        if declaration is not None:
            lines.append(f"  declared by {printable(declaration.named)}")
        lines += sites_lines(self.sites, self.semantics)
        others = [graph for graph in self.graphs if graph not in self.semantics.graphs]
        if others and self.semantics.graphs:
            lines += ["", f"  not judged (not the decoder): {printable(', '.join(others))}"]
        return "\n".join((*lines, *findings_lines(self.findings)))


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
