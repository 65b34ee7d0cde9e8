"""Across: what only several sites, or several graphs, show together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from packimport.audit.checks import PATCH, Finding, finding
from packimport.audit.judge import JudgedSite, counted, where
from packimport.errors import shorten
from packimport.graph.encodings import decode
from packimport.graph.site import ByLength, GraphFacts, Site
from packimport.pack.container import Container
from packimport.rope.identify import UNKNOWN
from packimport.semantics.model import Semantics


def across_sites(container: Container, sites: Sequence[JudgedSite]) -> Iterator[Finding]:
    """Every check that compares the sites of one layer."""
    yield from _query_and_key(container, sites)
    yield from _graphs(container, sites)


def _alike(container: Container, one: JudgedSite, other: JudgedSite) -> bool:
    """Whether two sites rotate the layers that they share alike, as far as their dtypes tell."""
    first, second = one.measurement, other.measurement
    right = [None if m.wrong_pairs is None else not m.wrong_pairs for m in (first, second)]
    if one.site.pairs != other.site.pairs or right[0] != right[1]:
        return False
    if right[0] or one.site.tensors == other.site.tensors != ():
        return True
    same_name = first.baked_as == second.baked_as
    if same_name and not first.baked_as.startswith(UNKNOWN):
        return True
    # A name may say less of the shorter dtype, and an unknown table has none.
    if one.site.table is None or other.site.table is None:
        return same_name
    return _same_values(container, one.site, other.site)


def _same_values(container: Container, one: Site, other: Site) -> bool:
    """Whether two tables hold the same values in the rows that both have.

    Each is rounded to its dtype, and its angles to float32.
    """
    rows = min(one.rows, other.rows)
    angles = np.arange(rows, dtype=np.float32)[:, None] * 2.0**-21
    for tables in zip(decode(one, container), decode(other, container), strict=True):
        step = sum(float(ml_dtypes.finfo(values.dtype).eps) for values in tables)
        first, second = (values[:rows].astype(np.float32) for values in tables)
        with np.errstate(all="ignore"):
            near = np.abs(first - second) <= (step + angles) * np.maximum(1, np.abs(first))
        near |= (first == second) | (np.isnan(first) & np.isnan(second))
        if not near.all():
            return False
    return True


def _query_and_key(container: Container, sites: Sequence[JudgedSite]) -> Iterator[Finding]:
    """Query and key of a layer, rotated by tables that differ: one finding per two sites."""
    seen: set[tuple[int, int]] = set()
    for at, one in enumerate(sites):
        for after, other in enumerate(sites[at + 1 :], at + 1):
            same = _same_graph(one, other) and one.site.length == other.site.length
            layers = sorted({*one.site.layers} & {*other.site.layers})
            if not same or not layers or (at, after) in seen or _alike(container, one, other):
                continue
            seen.add((at, after))
            yield finding(
                "RPE019",
                f"query and key of {counted(layers)} are rotated by different tables",
                graph=one.site.graph,
                where=where(other.site),
                expected=one.measurement.baked_as,
                found=other.measurement.baked_as,
                fix=f"{PATCH} writes the declared table for both",
            )


def _same_graph(one: JudgedSite, other: JudgedSite) -> bool:
    return (one.site.graph, one.site.branch) == (other.site.graph, other.site.branch)


def _graphs(container: Container, sites: Sequence[JudgedSite]) -> Iterator[Finding]:
    """A layer whose graphs, or branches, rotate it by tables that differ."""
    first: dict[tuple[int, ByLength | None], JudgedSite] = {}
    told: set[tuple[str, str]] = set()
    for judged in sites:
        for layer in judged.site.layers:
            one = first.setdefault((layer, judged.site.length), judged)
            place = (judged.site.graph, judged.site.branch)
            if place in told or _same_graph(one, judged) or _alike(container, one, judged):
                continue
            told.add(place)
            yield finding(
                "RPE020",
                f"layer {layer} is rotated by other tables than in {_name(one)}",
                graph=judged.site.graph,
                where=where(judged.site),
                expected=one.measurement.baked_as,
                found=judged.measurement.baked_as,
                fix=f"{PATCH} writes the declared table in all graphs",
            )


def _name(judged: JudgedSite) -> str:
    return ", ".join(filter(None, (judged.site.graph, judged.site.branch)))


def layer_findings(facts: Sequence[GraphFacts], semantics: Semantics) -> Iterator[Finding]:
    """Layers that the declaration promises and no graph has, and the reverse.

    Every graph has all layers, or graphs with some of them have all together; graphs
    beside those may have none, such as the embedding of a pipeline.
    """
    promised = _promised(semantics)
    seen = [_seen(graph) for graph in facts]
    parts = [found for graph, found in zip(facts, seen, strict=True) if graph.layers]
    is_split = bool(promised) and _is_split(parts, promised)
    for graph, found in zip(facts, seen, strict=True):
        if graph.unread or graph.dangling:
            # What could not be read may well be the missing layers.
            if semantics.declaration is not None and not is_split:
                yield from _count(graph, semantics)
        elif graph.layers:
            if semantics.declaration is not None and not is_split:
                yield from _count(graph, semantics)
            whole = promised or tuple(range(graph.layers))
            lost = [] if is_split else [i for i in whole if i not in found]
            if lost:
                yield _lost(graph, lost, len(whole), len(found))
        elif not parts:
            yield _lost(graph, list(promised), len(promised), 0)


def _promised(semantics: Semantics) -> tuple[int, ...]:
    """The layers that have attention by the declaration; () where nothing says how many."""
    count = len(semantics.layers) or semantics.num_hidden_layers or 0
    without = {*semantics.without_attention}
    return tuple(i for i in range(count) if i not in without)


def _seen(graph: GraphFacts) -> set[int]:
    return {i for site in graph.sites for i in site.layers} | set(graph.unrotated)


def _is_split(parts: Sequence[set[int]], promised: tuple[int, ...]) -> bool:
    """Whether several graphs have some layers each and all of them together."""
    together = [layer for part in parts for layer in part]
    return len(parts) > 1 and sorted(together) == list(promised)


def _count(graph: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    declared = len(_promised(semantics))
    beside = sorted(_seen(graph) & {*semantics.without_attention})
    if beside or (graph.layers and graph.layers != declared):
        which = f", the first in {counted(beside[:1])}" if beside else ""
        plural = "" if graph.layers == 1 else "s"
        none = f", and none in {shorten(counted(semantics.without_attention), 200)}"
        yield finding(
            "RPE013",
            f"the graph has {graph.layers} attention layer{plural}{which}, the declaration"
            f" {declared}{none if beside else ''}",
            graph=graph.graph,
            expected=f"{declared} layers",
            found=f"{graph.layers} layers",
            fix="the declaration belongs to another model (pass its own with --config), or the"
            " model has layers without attention that the declaration does not tell",
        )


def _lost(graph: GraphFacts, lost: list[int], promised: int, seen: int) -> Finding:
    return finding(
        "RPE004",
        f"no rotation was found for {counted(lost)}" if lost else "no layer was found",
        graph=graph.graph,
        expected=f"{promised} layers" if promised else "at least one attention layer",
        found=f"{seen} layers",
        fix="this pack can't be judged; see docs/forms.md for what is understood",
    )
