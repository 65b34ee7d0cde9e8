"""The check itself: a container goes in, a Report comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packimport.audit.across import across_sites, layer_findings
from packimport.audit.axes_checks import axes_findings
from packimport.audit.checks import PATCH, Finding, finding, verdict
from packimport.audit.head_checks import head_findings
from packimport.audit.judge import (
    JudgedSite,
    declared_ropes,
    graph_findings,
    rows_in_use,
    seq_len_of,
)
from packimport.audit.known_models import candidates
from packimport.audit.layout import layout_of
from packimport.audit.measure import Measurement, measure, measure_waves
from packimport.audit.named_files import refuse_missing, refuse_missing_weights
from packimport.audit.native_code import native_code
from packimport.audit.options import long_rows
from packimport.audit.report import Report
from packimport.audit.ryzen_ai_checks import ryzen_ai_findings
from packimport.audit.site_checks import site_findings
from packimport.graph.encodings import decode
from packimport.graph.find import find_sites
from packimport.graph.site import GraphFacts, Hints, Site
from packimport.pack.archive import opened
from packimport.pack.container import Container
from packimport.pack.progress import OnProgress
from packimport.pack.signals import interruptible
from packimport.rope.schedule import Rope
from packimport.semantics.model import Semantics
from packimport.semantics.reader import read_semantics

# Positions at which frequencies without a table are compared and named.
_POSITIONS, _LEAST = 8192, 512


def check(
    container: str | Path,
    config: str | Path | None = None,
    model: str | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Report:
    """Check a pack: what its graphs hold against what its config declares.

    container: a folder with genai_config.json and ONNX files, or an archive of one.
    config:    the source model's config.json or its folder; wins over the pack's own.
    model:     a known model of schemas/models.yaml, in place of `config`.
    on_progress: called while an archive is unpacked, with bytes done and bytes in all.

    Raises PackimportError where the pack can't be read at all. Reads the graphs and
    the bytes of the tables, never the weights.
    """
    with opened(container, on_progress=on_progress) as pack, interruptible():
        semantics = read_semantics(pack, Path(config) if config is not None else None, model)
        return judge(pack, semantics)


def judge(
    container: Container, semantics: Semantics, facts: Sequence[GraphFacts] | None = None
) -> Report:
    """The Report of an opened container under given semantics.

    facts: what `find` says of it, where that is known already.
    """
    facts = list(find(container, semantics)) if facts is None else facts
    refuse_missing_weights(container, facts)
    sites = tuple(
        JudgedSite(
            site=site,
            ropes=declared_ropes(site, semantics),
            measurement=_measure(container, site, semantics),
        )
        for graph in facts
        for site in graph.sites
    )
    findings = _told(tuple(_findings(container, semantics, sites, facts)), semantics)
    return Report(
        path=str(container.path),
        format=container.format,
        layout=layout_of(container, facts),
        graphs=onnx_files(container),
        verdict=verdict(findings),
        semantics=semantics,
        sites=sites,
        findings=findings,
    )


def _told(findings: tuple[Finding, ...], semantics: Semantics) -> tuple[Finding, ...]:
    """The findings; a patch that they advise declares what the check was told to declare."""
    declaration = semantics.declaration
    origin = None if declaration is None else declaration.origin
    if declaration is None or origin not in {"--config", "--model"}:
        return findings
    named = "CONFIG" if declaration.model is None else declaration.model
    told = PATCH.replace(" -o", f" {origin} {named} -o")
    return tuple(
        found if found.fix is None else replace(found, fix=found.fix.replace(PATCH, told))
        for found in findings
    )


def find(container: Container, semantics: Semantics) -> Iterator[GraphFacts]:
    """The facts of every decoder graph.

    Raises ContainerError where a file is missing that the pack can't run without.
    """
    refuse_missing(container)
    hints = replace(hints_of(semantics), long_rows=long_rows(container))
    for graph in decoder_graphs(container, semantics):
        yield find_sites(container, graph, hints)


def hints_of(semantics: Semantics) -> Hints:
    """What the configs say about the graphs."""
    return Hints(
        position_ids=semantics.inputs.get("position_ids", "position_ids"),
        attention_mask=semantics.inputs.get("attention_mask", "attention_mask"),
        past_key_names=semantics.inputs.get("past_key_names"),
        layers=semantics.num_hidden_layers,
        without=semantics.without_attention,
    )


def decoder_graphs(container: Container, semantics: Semantics) -> tuple[str, ...]:
    """The graphs to judge: those that genai_config names, else every ONNX file."""
    return semantics.graphs or onnx_files(container)


def onnx_files(container: Container) -> tuple[str, ...]:
    """Every ONNX file of the container."""
    return tuple(name for name in container.files if name.lower().endswith(".onnx"))


def _measure(container: Container, site: Site, semantics: Semantics) -> Measurement:
    others = list(dict.fromkeys(rope for rope in semantics.layers if rope is not None))
    tables = decode(site, container) if site.table is not None else None

    def against(rope: Rope | None) -> Measurement:
        seq_len = None if rope is None else seq_len_of(site, rope)
        if tables is not None:
            rows = rows_in_use(site, rope, semantics)
            cos, sin = (part[:rows] for part in tables)
            return measure(cos, sin, rope, others=others, seq_len=seq_len)
        assert site.waves is not None
        rows = min(max(semantics.usable_length or _POSITIONS, _LEAST), _POSITIONS)
        return measure_waves(site.waves, rope, rows=rows, others=others, seq_len=seq_len)

    measured = [against(r) for r in declared_ropes(site, semantics) if r is not None]
    if not measured:
        return against(None)
    # A site that serves several schedules is reported by the one it fits worst.
    return max(measured, key=lambda m: site.pairs + 1 if m.wrong_pairs is None else m.wrong_pairs)


def _findings(
    container: Container,
    semantics: Semantics,
    sites: tuple[JudgedSite, ...],
    facts: Sequence[GraphFacts],
) -> Iterator[Finding]:
    if semantics.declaration is None:
        yield _undeclared(candidates(container, semantics, sites))
    elif not semantics.family_known:
        yield _unknown_family(semantics)
    if not facts:
        yield finding("RPE015", "the container holds no ONNX file", fix="pass the pack's folder")
    layers = tuple(layer_findings(facts, semantics))
    # Which layer is which is not known of a graph with another number of layers.
    miscounted = {item.graph for item in layers if item.code == "RPE013"}
    for judged in sites:
        for item in site_findings(judged, semantics):
            if item.code != "RPE005" or item.graph not in miscounted:
                yield item
    yield from axes_findings(sites, {graph.graph: graph for graph in facts})
    yield from across_sites(container, sites)
    yield from ryzen_ai_findings(container, sites, semantics)
    for graph in facts:
        yield from graph_findings(graph, semantics)
        yield from head_findings(graph, semantics)
    yield from layers
    yield from native_code(container)
    for note in (*container.notes, *semantics.notes):
        yield finding("RPE014", note)


def _unknown_family(semantics: Semantics) -> Finding:
    return finding(
        "RPE027",
        "which entries this family pairs, and which layers it rotates, is not known",
        pointer="/model_type",
        expected="a family of schemas/families.yaml",
        found=semantics.model_type,
        fix="if it rotates as Llama does (half-split pairs, one schedule for all layers), pass a"
        " copy of its config.json that says model_type llama with --config",
    )


def _undeclared(models: tuple[str, ...]) -> Finding:
    fix = "name the source model's config.json with --config"
    if models:
        fix += f", or with --model one of the known models that fit: {', '.join(models)}"
    return finding("RPE002", "no config declares a RoPE schedule", pointer="config.json", fix=fix)
