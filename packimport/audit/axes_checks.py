"""Checks of positions in three axes (M-RoPE) where nodes rotate by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from packimport.audit.checks import Finding, finding
from packimport.audit.judge import JudgedSite, place_of
from packimport.graph.site import GraphFacts


def axes_findings(
    sites: Sequence[JudgedSite], facts: Mapping[str, GraphFacts]
) -> Iterator[Finding]:
    """Sections that are declared, and sites that have none; facts: of each graph, by its name."""
    told: set[str] = set()
    for judged in sites:
        graph = facts[judged.site.graph]
        declared = [rope.mrope_section for rope in judged.ropes if rope and rope.mrope_section]
        if judged.site.mrope is not None or not declared:
            continue
        sections = f"sections {list(declared[0])}"
        if graph.axes > 1:
            yield finding(
                "RPE026",
                f"the graph is fed positions in {graph.axes} axes, and the node rotates by one",
                **place_of(judged),
                expected=sections,
                found="no sections",
                fix="images and videos are rotated by the wrong axes: export the model again",
            )
        elif graph.graph not in told:
            told.add(graph.graph)
            yield finding(
                "RPE014",
                "text only: the graph takes one position per token, and the model counts images"
                " by three",
                **place_of(judged),
                expected=f"{sections} for images and videos; one axis is right for text",
                found="no sections",
                fix="feed it text, or export again with position ids [3, batch, tokens]",
            )
