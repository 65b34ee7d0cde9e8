"""Checks of graphs after AMD's passes, whose nodes and runtime use tables in ways of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packimport.audit.checks import Finding, finding
from packimport.audit.judge import JudgedSite, fixed_length, place_of, used_length, where
from packimport.audit.options import rotates_by_node
from packimport.graph.forms import ryzen_ai, ryzen_ai_dispatch
from packimport.pack.container import Container
from packimport.semantics.model import Semantics

_CONCATENATED = "longrope-concatenated"


def ryzen_ai_findings(
    container: Container, sites: Sequence[JudgedSite], semantics: Semantics
) -> Iterator[Finding]:
    """Every check of this module."""
    yield from _first_only(container, sites)
    for judged in sites:
        if judged.site.form in {*ryzen_ai.FORMS, ryzen_ai_dispatch.FORM}:
            yield from _without_positions(judged, semantics)
        if judged.site.form == ryzen_ai_dispatch.FORM:
            yield _taken_from_file(judged)


def _first_only(container: Container, sites: Sequence[JudgedSite]) -> Iterator[Finding]:
    """A session whose nodes have different tables, of which the device takes the first."""
    by_graph: dict[str, list[JudgedSite]] = {}
    for judged in sites:
        if judged.site.form in ryzen_ai.FORMS:
            by_graph.setdefault(judged.site.graph, []).append(judged)
    for group in by_graph.values():
        first = group[0]
        others = [judged for judged in group if _told(judged) != _told(first)]
        if not others or rotates_by_node(container):
            continue
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield finding(
            "RPE028",
            "the device rotates all layers by the table of the first node",
            graph=first.site.graph,
            where=where(others[0].site) + more,
            expected=f"one table in the whole graph, as {where(first.site)}",
            found=f"{_schedule(others[0])}, and {_schedule(first)} there",
            fix="set hybrid_dbg_use_aie_rope to 0 among the options in genai_config.json: each"
            " node then rotates by its own table, off the device",
        )


def _told(judged: JudgedSite) -> object:
    """What tells two tables apart: what they are meant to be, or else how they were made.

    Tables that are meant to be one and are not are cured by their bytes; and those that are
    meant to differ will, once they are right.
    """
    return judged.ropes or (judged.measurement.baked_as, judged.site.pairs)


def _schedule(judged: JudgedSite) -> str:
    return judged.declared or judged.measurement.baked_as


def _without_positions(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    """The short and the long table one after the other, and nothing that picks the long one."""
    site = judged.site
    if judged.measurement.mistake != _CONCATENATED or site.length is not None:
        return
    for rope in judged.ropes:
        limit = None if rope is None else fixed_length(rope)
        if rope is None or limit is None or used_length(site, rope, semantics) <= limit:
            continue
        yield finding(
            "RPE029",
            f"row {limit} starts the table for long calls, and no position ids lead there",
            **place_of(judged),
            expected="position ids that are shifted for long calls, or one table",
            found=f"a table of {site.rows} rows, read by position",
            fix=f"limit search.max_length in genai_config.json to {limit} and patch, or export"
            " the model again",
        )


def _taken_from_file(judged: JudgedSite) -> Finding:
    return finding(
        "RPE031",
        "the table is taken to be what the device gets: not run on hardware",
        **place_of(judged),
        fix="other bytes here should need no recompile: real packs name this table as an input"
        " that no other file holds. Prove a patched pack on the device with long prompts",
    )
