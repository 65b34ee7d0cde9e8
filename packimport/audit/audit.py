"""The check itself: a container goes in, a Report comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packimport.audit.checks import Finding, finding, verdict
from packimport.audit.judge import (
    JudgedSite,
    declared_ropes,
    graph_findings,
    site_findings,
)
from packimport.audit.measure import Measurement, measure
from packimport.audit.report import Report
from packimport.graph.encodings import decode
from packimport.graph.find import find_sites
from packimport.graph.site import GraphFacts, Hints, Site
from packimport.pack.container import Container, open_container
from packimport.rope.schedule import Rope
from packimport.semantics.model import Semantics
from packimport.semantics.models import fitting_models
from packimport.semantics.reader import read_semantics


def check(
    container: str | Path, config: str | Path | None = None, model: str | None = None
) -> Report:
    """Check a pack: what its graphs hold against what its config declares.

    container: a folder with genai_config.json and ONNX files.
    config:    the source model's config.json or its folder; wins over the pack's own.
    model:     a known model of schemas/models.yaml, in place of `config`.

    Raises PackimportError where the pack can't be read at all. Reads the graphs and
    the bytes of the tables, never the weights.
    """
    opened = open_container(Path(container))
    semantics = read_semantics(opened, Path(config) if config is not None else None, model)
    return judge(opened, semantics)


def judge(container: Container, semantics: Semantics) -> Report:
    """The Report of an opened container under given semantics."""
    facts = list(find(container, semantics))
    sites = tuple(
        JudgedSite(
            site=site,
            ropes=declared_ropes(site, semantics),
            measurement=_measure(container, site, semantics),
        )
        for graph in facts
        for site in graph.sites
    )
    findings = tuple(_findings(container, semantics, sites, facts))
    return Report(
        path=str(container.path),
        format=container.format,
        graphs=onnx_files(container),
        verdict=verdict(findings),
        semantics=semantics,
        sites=sites,
        findings=findings,
    )


def find(container: Container, semantics: Semantics) -> Iterator[GraphFacts]:
    """The facts of every decoder graph."""
    hints = Hints(
        position_ids=semantics.inputs.get("position_ids", "position_ids"),
        past_key_names=semantics.inputs.get("past_key_names"),
    )
    for graph in decoder_graphs(container, semantics):
        yield find_sites(container, graph, hints)


def decoder_graphs(container: Container, semantics: Semantics) -> tuple[str, ...]:
    """The graphs to judge: those that genai_config names, else every ONNX file."""
    return semantics.graphs or onnx_files(container)


def onnx_files(container: Container) -> tuple[str, ...]:
    """Every ONNX file of the container."""
    return tuple(name for name in container.files if name.lower().endswith(".onnx"))


def _measure(container: Container, site: Site, semantics: Semantics) -> Measurement:
    cos, sin = decode(site, container)
    ropes = [rope for rope in declared_ropes(site, semantics) if rope is not None]
    everything: dict[Rope, None] = dict.fromkeys(r for r in semantics.layers if r is not None)
    measured = [measure(cos, sin, rope, others=list(everything)) for rope in ropes]
    if not measured:
        return measure(cos, sin, None, others=list(everything))
    # A site that serves several schedules is reported by the one it fits worst.
    return max(measured, key=lambda m: site.pairs + 1 if m.wrong_pairs is None else m.wrong_pairs)


def _findings(
    container: Container,
    semantics: Semantics,
    sites: tuple[JudgedSite, ...],
    facts: list[GraphFacts],
) -> Iterator[Finding]:
    if semantics.declaration is None:
        yield _undeclared(semantics)
    if not facts:
        yield finding("RPE015", "the container holds no ONNX file", fix="pass the pack's folder")
    for judged in sites:
        yield from site_findings(judged, semantics)
    for graph in facts:
        yield from graph_findings(graph, semantics)
    for note in (*container.notes, *semantics.notes):
        yield finding("RPE014", note)


def _undeclared(semantics: Semantics) -> Finding:
    models = fitting_models(semantics)
    fix = "name the source model's config.json with --config"
    if models:
        fix += f", or with --model one of the known models that fit: {', '.join(models)}"
    return finding("RPE002", "no config declares a RoPE schedule", pointer="config.json", fix=fix)
