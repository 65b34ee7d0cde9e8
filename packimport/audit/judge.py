"""Semantics × GraphFacts ─▶ judged sites and Findings: one function per check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packimport.audit.checks import Finding, finding
from packimport.audit.measure import Measurement
from packimport.graph.site import GraphFacts, Site, Unread
from packimport.rope.schedule import Rope
from packimport.semantics.describe import describe
from packimport.semantics.model import Semantics


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedSite:
    """A site with what its layers declare and how far its table is from that.

    ropes: the distinct declarations of its layers, None for a layer without RoPE.
    """

    site: Site
    ropes: tuple[Rope | None, ...]
    measurement: Measurement

    @property
    def declared(self) -> str | None:
        """The declaration as one line; None where nothing is declared."""
        return " / ".join(describe(rope) for rope in self.ropes) or None


def declared_ropes(site: Site, semantics: Semantics) -> tuple[Rope | None, ...]:
    """The distinct declarations of the layers that `site` serves, in layer order."""
    layers = semantics.layers
    return tuple(dict.fromkeys(layers[i] for i in site.layers if i < len(layers)))


def site_findings(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    """Every check that looks at one site."""
    if semantics.declaration is None:
        return
    for check in (_rotated, _shared, _width, _head, _layout, _values, _by_length, _rows):
        yield from check(judged, semantics)


def graph_findings(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    """Every check that looks at one graph as a whole."""
    yield from _unread(facts)
    if semantics.declaration is not None:
        yield from _layer_count(facts, semantics)
        yield from _unrotated(facts, semantics)
    yield from _missing(facts, semantics)


def _place(judged: JudgedSite) -> dict[str, str]:
    return {"graph": judged.site.graph, "where": where(judged.site)}


def where(site: Site) -> str:
    """The place of a site in one line: its tensors and its first node."""
    return f"{site.cos.name}, {site.sin.name} at {site.nodes[0]}"


def _values(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    m = judged.measurement
    if m.wrong_pairs:
        yield finding(
            "RPE001",
            f"{m.wrong_pairs} of {judged.site.pairs} pairs are wrong",
            **_place(judged),
            expected=judged.declared,
            found=m.baked_as,
            fix="packimport patch CONTAINER -o OUT writes a pack with the declared table",
        )


def _rotated(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    if None not in judged.ropes:
        return
    layers = [i for i in judged.site.layers if semantics.layers[i] is None]
    yield finding(
        "RPE005",
        f"layers {spans(layers)} are declared without RoPE and are rotated",
        **_place(judged),
        expected="no rotation",
        found=judged.measurement.baked_as,
        fix="the exporter made a rotation that the model does not have: export it again",
    )


def _shared(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    ropes = [rope for rope in judged.ropes if rope is not None]
    if len(ropes) > 1:
        yield finding(
            "RPE011",
            f"one table serves layers {spans(judged.site.layers)}, which declare {len(ropes)}"
            " different schedules",
            **_place(judged),
            expected=judged.declared,
            found=judged.measurement.baked_as,
            fix="the graph needs one table per schedule: export it again",
        )


def _width(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    site = judged.site
    for rope in judged.ropes:
        if rope is None or (rope.pairs == site.pairs and rope.rotary_dim == site.rotary_dim):
            continue
        yield finding(
            "RPE008",
            f"the node rotates {site.rotary_dim} entries by a table of {site.pairs} pairs",
            **_place(judged),
            expected=f"{rope.rotary_dim} entries, {rope.pairs} pairs",
            found=f"{site.rotary_dim} entries, {site.pairs} pairs",
            fix="other values can't cure a width: export the model again",
        )


def _head(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    site = judged.site
    for rope in judged.ropes:
        if rope is not None and site.head_dim not in (None, rope.head_dim):
            yield finding(
                "RPE008",
                f"the node cuts its input into heads of {site.head_dim} entries",
                **_place(judged),
                expected=f"heads of {rope.head_dim} entries",
                found=f"heads of {site.head_dim} entries",
                fix="the node needs num_heads and rotary_embedding_dim: export the model again",
            )


def _layout(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    names = {True: "interleaved", False: "half-split"}
    for rope in judged.ropes:
        if rope is not None and rope.interleaved != judged.site.interleaved:
            yield finding(
                "RPE007",
                "the node pairs entries otherwise than the model",
                **_place(judged),
                expected=names[rope.interleaved],
                found=names[judged.site.interleaved],
                fix="the node's attribute decides: export the model again",
            )


def _by_length(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    # One table is right for these types only while the run stays within the length
    # up to which the schedule does not change.
    for rope in judged.ropes:
        if rope is None or judged.measurement.wrong_pairs != 0:
            continue
        limit = fixed_length(rope)
        length = semantics.usable_length or judged.site.rows
        if limit is not None and length > limit:
            yield finding(
                "RPE012",
                f"{rope.type} needs another table beyond {limit} positions",
                **_place(judged),
                expected=f"a usable length of at most {limit}, or tables by length",
                found=f"one table, usable length {length}",
                fix=f"limit search.max_length in genai_config.json to {limit}",
            )


def fixed_length(rope: Rope) -> int | None:
    """Up to how many positions the schedule is one table; None: for all."""
    if rope.type == "dynamic" and rope.alpha is None:
        return rope.max_position_embeddings
    if rope.type == "longrope":
        return rope.original_max_position_embeddings
    return None


def _rows(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    rows, usable = judged.site.rows, semantics.usable_length
    if usable is not None and rows < usable:
        yield finding(
            "RPE009",
            f"the table ends at position {rows - 1}, the pack is used up to {usable - 1}",
            **_place(judged),
            pointer="genai_config.json",
            expected=f"at least {usable} rows",
            found=f"{rows} rows",
            fix=f"limit search.max_length in genai_config.json to {rows}, or export with more rows",
        )
    elif semantics.context_length is not None and rows < semantics.context_length:
        yield finding(
            "RPE010",
            f"context_length {semantics.context_length} lies beyond the {rows} rows of the table",
            **_place(judged),
            pointer="genai_config.json#/model/context_length",
            expected=f"at most {rows}",
            found=str(semantics.context_length),
            fix="the usable length is smaller, so nothing breaks; a smaller figure tells the truth",
        )


def _unread(facts: GraphFacts) -> Iterator[Finding]:
    # A pack has a layer's fault in every layer: one finding says it for all.
    alike: dict[tuple[str, str], list[Unread]] = {}
    for item in facts.unread:
        alike.setdefault((item.op, item.reason), []).append(item)
    for (op, reason), items in alike.items():
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        yield finding(
            "RPE003",
            f"{op}: {reason}",
            graph=facts.graph,
            where=items[0].node + more,
            expected="a form that packimport understands",
            found=op,
            fix="this pack can't be judged; see docs/forms.md for what is understood",
        )


def _layer_count(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    declared = len(semantics.layers)
    if facts.layers and facts.layers != declared:
        yield finding(
            "RPE013",
            f"the graph has {facts.layers} attention layers, the declaration {declared}",
            graph=facts.graph,
            expected=f"{declared} layers",
            found=f"{facts.layers} layers",
            fix="the declaration belongs to another model: pass its own with --config",
        )


def _unrotated(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    layers = [i for i in facts.unrotated if i < len(semantics.layers) and semantics.layers[i]]
    if layers:
        yield finding(
            "RPE006",
            f"layers {spans(layers)} are declared with RoPE and nothing rotates them",
            graph=facts.graph,
            expected=describe(semantics.layers[layers[0]]),
            found="no rotation",
            fix="the exporter left the rotation out: export the model again",
        )


def _missing(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    if facts.unread:
        return  # what could not be read may well be the missing layers
    promised = len(semantics.layers) or semantics.num_hidden_layers or facts.layers
    seen = {i for site in facts.sites for i in site.layers} | set(facts.unrotated)
    lost = [i for i in range(promised) if i not in seen]
    if lost or not promised:
        yield finding(
            "RPE004",
            f"no rotation was found for layers {spans(lost)}" if lost else "no layer was found",
            graph=facts.graph,
            expected=f"{promised} layers" if promised else "at least one attention layer",
            found=f"{len(seen)} layers",
            fix="this pack can't be judged; see docs/forms.md for what is understood",
        )


def spans(layers: list[int] | tuple[int, ...]) -> str:
    """Layer numbers as short text: `0-3, 5`."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
