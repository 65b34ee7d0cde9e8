"""Plan: the changes of a pack that give it what it declares, worked out before any is made."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.audit.audit import hints_of
from packimport.audit.report import Report
from packimport.graph.attention import attentions
from packimport.graph.changes.draft import Draft, Unchangeable
from packimport.graph.changes.room import Room
from packimport.graph.changes.uses import is_changeable, uses
from packimport.graph.dangling import is_dangling
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.trace import Unfollowed
from packimport.mending.graphs import GraphMending
from packimport.mending.in_place import edits_of
from packimport.mending.needs import lacks_factor, needs_a_graph, shared_tables
from packimport.mending.refusals import DANGLING, cause_in, has_dangling, refuse_unmendable
from packimport.pack.additions import Change, Replacement
from packimport.pack.container import Container
from packimport.pack.edits import Edit, merged
from packimport.pack.manifest import GraphChangeRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Mending:
    """What to write. graph_changes: what else than table bytes changes in graphs, and why."""

    changes: tuple[Change, ...] = ()
    graph_changes: tuple[GraphChangeRecord, ...] = ()


def mending(container: Container, report: Report, *, bytes_only: bool = False) -> Mending:
    """The changes that mend what `report` found; none where it found nothing.

    bytes_only: graphs may not be changed, only the bytes of tables in their place.
    Raises PatchError for what can't be mended, and where nothing is declared.
    """
    refuse_unmendable(report, bytes_only=bytes_only)
    room = Room(container)
    edits: list[Edit] = []
    replacements: list[Replacement] = []
    log: list[GraphChangeRecord] = []
    for graph in _graphs(report):
        judged = [judged for judged in report.sites if judged.site.graph == graph]
        tables = shared_tables(judged)
        stuck = any(needs_a_graph(shared, report.semantics) for shared in tables)
        stuck = stuck or any(map(lacks_factor, judged))
        if not stuck and not has_dangling(report, graph):
            edits += [edit for site in judged for edit in edits_of(container, site)]
            continue
        try:
            changed = _changed(container, report, graph, room)
            replacement = changed.draft.replacement()
        except (Unchangeable, Unfollowed) as error:
            raise cause_in(report, graph, str(error)) from error
        edits += changed.edits
        log += changed.draft.log
        replacements += [] if replacement is None else [replacement]
    return Mending(
        changes=(*merged(edits), *room.additions, *replacements), graph_changes=tuple(log)
    )


def _changed(container: Container, report: Report, graph: str, room: Room) -> GraphMending:
    """The changes of one graph. Raises Unchangeable or Unfollowed where it allows none."""
    semantics = report.semantics
    file = OnnxFile(container, graph)
    found = list(uses(file, attentions(file, hints_of(semantics))))
    changed = GraphMending(container, Draft(file, room), semantics)
    lost = [use for use in found if is_dangling(file.main, use.node)]
    changed.take_out([use for use in lost if semantics.layers[use.layer] is None], DANGLING)
    judged = [judged for judged in report.sites if judged.site.graph == graph]
    for shared in shared_tables(judged):
        changed.mend(shared, found)
    for site in judged:
        if not is_changeable(site.site):
            changed.rewrite(edits_of(container, site))
        if lacks_factor(site):
            changed.scale(site)
    return changed


def _graphs(report: Report) -> tuple[str, ...]:
    graphs = (judged.site.graph for judged in report.sites)
    named = (finding.graph for finding in report.findings if finding.graph is not None)
    return tuple(dict.fromkeys((*graphs, *named)))
