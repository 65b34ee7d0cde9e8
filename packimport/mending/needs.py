"""Needs: a table of one graph, the nodes that use it, and what their layers declare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packimport.audit.judge import JudgedSite, fixed_length
from packimport.graph.changes.uses import Use, is_changeable
from packimport.graph.site import Site, TensorSpan
from packimport.rope.schedule import Rope
from packimport.semantics.model import Semantics


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """The sites of one graph that use the same two tensors."""

    sites: tuple[JudgedSite, ...]

    @property
    def site(self) -> Site:
        """Any of them: they have one table."""
        return self.sites[0].site

    @property
    def spans(self) -> tuple[TensorSpan, TensorSpan]:
        """cos and sin."""
        return self.site.cos, self.site.sin

    @property
    def ropes(self) -> tuple[Rope | None, ...]:
        """The distinct declarations of the layers, None for a layer without RoPE."""
        return tuple(dict.fromkeys(rope for judged in self.sites for rope in judged.ropes))

    def rows(self, semantics: Semantics) -> int:
        """Positions that the pack is used for, and at least those that the table has."""
        return max(self.site.rows, semantics.usable_length or 0)


def lacks_factor(judged: JudgedSite) -> bool:
    """Whether the graph computes cos and sin in float32 by another attention factor than
    declared, and has no constant of its own for it.
    """
    waves = judged.site.waves
    return (
        waves is not None
        and waves.dtype == "float32"
        and not waves.factors
        and judged.measurement.wrong_factor is not None
        and all(judged.measurement.wrong_factor[:2])
    )


def shared_tables(sites: Iterable[JudgedSite]) -> tuple[Shared, ...]:
    """The changeable sites of one graph, grouped by their tensors."""
    groups: dict[tuple[object, ...], list[JudgedSite]] = {}
    for judged in sites:
        if not is_changeable(judged.site):
            continue
        spans = (judged.site.cos, judged.site.sin)
        key = tuple((span.file, span.offset) for span in spans)
        groups.setdefault(key, []).append(judged)
    return tuple(Shared(sites=tuple(group)) for group in groups.values())


def needs_a_graph(shared: Shared, semantics: Semantics) -> bool:
    """Whether other bytes in the place of a table's own can't mend all of its sites."""
    ropes = [rope for rope in shared.ropes if rope is not None]
    return bool(shared.ropes) and (
        len(ropes) < len(shared.ropes)
        or len(ropes) > 1
        or shared.site.rows < (semantics.usable_length or 0)
        or any(misfits(judged.site, rope, semantics) for judged in shared.sites for rope in ropes)
        or any(limit_of(rope, shared.site, semantics) for rope in ropes)
    )


def misfits(site: Site, rope: Rope, semantics: Semantics) -> bool:
    """Whether the nodes rotate other entries than declared, or pair them otherwise."""
    return (
        (site.pairs, site.rotary_dim) != (rope.pairs, rope.rotary_dim)
        or site.head_dim not in {None, rope.head_dim}
        or pairs_otherwise(site, rope, semantics)
    )


def pairs_otherwise(site: Site, rope: Rope, semantics: Semantics) -> bool:
    """Whether the nodes pair entries otherwise than declared.

    A de-interleaved model reorders its entries and pairs halves; to pair neighbours of the
    unsorted ones gives the same scores.
    """
    is_told = site.interleaved is not None and semantics.pair_layout != "de-interleaved"
    return is_told and site.interleaved != rope.interleaved


def limit_of(rope: Rope, site: Site, semantics: Semantics) -> int | None:
    """The length up to which one table is right, where the pack is used beyond it."""
    limit = fixed_length(rope)
    length = semantics.usable_length or site.rows
    return limit if limit is not None and length > limit else None


def by_rope(uses: Iterable[Use], semantics: Semantics) -> dict[Rope | None, list[Use]]:
    """The uses by what their layers declare, in the order of the graph."""
    groups: dict[Rope | None, list[Use]] = {}
    for use in sorted(uses, key=lambda use: use.node.index):
        groups.setdefault(semantics.layers[use.layer], []).append(use)
    return groups
