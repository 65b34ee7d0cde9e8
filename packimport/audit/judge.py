"""Semantics × GraphFacts ─▶ judged sites, and the Findings about a graph as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packimport.audit.checks import PATCH, Finding, finding
from packimport.audit.measure import Measurement
from packimport.graph.changes.uses import is_changeable
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

    def seq_len(self, rope: Rope) -> int | None:
        """The length of the calls that the site serves, as `frequencies` takes it."""
        return seq_len_of(self.site, rope)


def declared_ropes(site: Site, semantics: Semantics) -> tuple[Rope | None, ...]:
    """The distinct declarations of the layers that `site` serves, in layer order."""
    layers = semantics.layers
    return tuple(dict.fromkeys(layers[i] for i in site.layers if i < len(layers)))


def seq_len_of(site: Site, rope: Rope) -> int | None:
    """The length of call by which a site is to be judged; None for the short ones, and for all."""
    if site.waves is not None and site.waves.growth is not None:
        return site.waves.growth.sample
    if site.length is None or not site.length.long:
        return None
    return max(site.length.limit, fixed_length(rope) or 0) + 1


def graph_findings(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    """Every check that looks at one graph as a whole."""
    yield from _unread(facts)
    yield from _dangling(facts, semantics)
    if semantics.declaration is not None:
        yield from _unrotated(facts, semantics)


def place_of(judged: JudgedSite) -> dict[str, str]:
    """Graph and place of a finding about a site."""
    return {"graph": judged.site.graph, "where": where(judged.site)}


def cure_of(judged: JudgedSite, otherwise: str) -> str:
    """What to do about a fault that other table bytes can't cure."""
    if is_changeable(judged.site):
        return f"{PATCH} changes the graph: see docs/mending.md"
    return otherwise


def where(site: Site) -> str:
    """The place of a site in one line: its tensors and its first node."""
    return f"{site.names} at {site.nodes[0]}"


def used_length(site: Site, rope: Rope, semantics: Semantics) -> int:
    """Up to how many positions a site is used, as far as anything says it."""
    known = semantics.usable_length
    if known is None and site.table is not None:
        known = site.rows
    return known or rope.max_position_embeddings or 0


def fixed_length(rope: Rope) -> int | None:
    """Up to how many positions the schedule is one table; None: for all."""
    if rope.type == "dynamic" and rope.alpha is None:
        return rope.max_position_embeddings
    if rope.type == "longrope":
        return rope.original_max_position_embeddings
    return None


def rows_in_use(site: Site, rope: Rope | None, semantics: Semantics) -> int:
    """How many rows of a site's table count.

    All, but for LongRoPE within its original length: the rows beyond may well be the long
    table's, which nothing reads.
    """
    limit = None if rope is None or rope.type != "longrope" else fixed_length(rope)
    usable = semantics.usable_length
    is_within = limit is not None and usable is not None and usable <= limit
    if limit is None or site.length is not None or not is_within:
        return site.rows
    return min(limit, site.rows)


def _unread(facts: GraphFacts) -> Iterator[Finding]:
    # A pack has a layer's fault in every layer: one finding says it for all.
    alike: dict[tuple[str, str, bool, bool], list[Unread]] = {}
    for item in facts.unread:
        key = (item.op, item.reason, item.own_table, item.offloaded)
        alike.setdefault(key, []).append(item)
    for (op, reason, own_table, offloaded), items in alike.items():
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        if own_table:
            yield finding(
                "RPE023",
                f"{op} {reason}",
                graph=facts.graph,
                where=items[0].node + more,
                expected="an op that takes its table as an input",
                found=op,
                fix="export the model again, with attention ops that take cos and sin",
            )
            continue
        if offloaded:
            yield finding(
                "RPE030",
                f"{op}: {reason}",
                graph=facts.graph,
                where=items[0].node + more,
                expected="a table [rows, pairs] in the graph, or in its data file",
                found="a tensor with the shape [0]",
                fix="no header of offloaded weights is read: export again, with its table kept",
            )
            continue
        yield finding(
            "RPE003",
            f"{op}: {reason}",
            graph=facts.graph,
            where=items[0].node + more,
            expected="a form that packimport understands",
            found=op,
            fix="this pack can't be judged; see docs/forms.md for what is understood",
        )


def _dangling(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    if not facts.dangling:
        return
    layers = sorted({item.layer for item in facts.dangling if item.layer is not None})
    first = facts.dangling[0]
    more = len(facts.dangling) - 1
    place = first.node + (f" and {more} more" if more else "")
    rotating = [i for i in layers if i >= len(semantics.layers) or semantics.layers[i] is not None]
    if rotating:
        yield finding(
            "RPE003",
            f"{first.op}: {first.reason}",
            graph=facts.graph,
            where=place,
            expected="positions that the graph is fed or makes",
            found="a name that stands for nothing",
            fix="no runtime loads this graph: export the model again",
        )
    else:
        yield finding(
            "RPE016",
            counted(
                layers,
                "is declared without RoPE, and nodes rotate it by positions",
                "are declared without RoPE, and nodes rotate them by positions",
            )
            + " that nothing makes",
            graph=facts.graph,
            where=place,
            expected="no rotation",
            found=first.reason,
            fix=f"{PATCH} takes the nodes out of the graph",
        )


def _unrotated(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    layers = [i for i in facts.unrotated if i < len(semantics.layers) and semantics.layers[i]]
    if layers:
        yield finding(
            "RPE006",
            counted(
                layers,
                "is declared with RoPE and nothing rotates it",
                "are declared with RoPE and nothing rotates them",
            ),
            graph=facts.graph,
            expected=describe(semantics.layers[layers[0]]),
            found="no rotation",
            fix="the exporter left the rotation out: export the model again",
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


def counted(layers: list[int] | tuple[int, ...], one: str = "", more: str = "") -> str:
    """Layers as text, with what is said of them: `layer 5 is wrong`, `layers 0-3, 5 are wrong`."""
    name, said = ("layer", one) if len(layers) == 1 else ("layers", more)
    return f"{name} {spans(layers)} {said}".rstrip()
