"""Graphs: the changes of one graph, the smallest that give each layer what it declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packimport.audit.judge import JudgedSite, counted
from packimport.graph.changes.by_length import Lengths, choose, computed, rows_in_use
from packimport.graph.changes.draft import Draft, Unchangeable
from packimport.graph.changes.factor import multiply
from packimport.graph.changes.new_tables import pair_of
from packimport.graph.changes.settings import pair, rotate_entries
from packimport.graph.changes.take_out import bypass, stop_rotating
from packimport.graph.changes.uses import Use
from packimport.graph.forms import group_query_attention
from packimport.graph.node import Node
from packimport.graph.site import Site
from packimport.mending.needs import Shared, by_rope, limit_of, pairs_otherwise
from packimport.mending.tables import Work, is_right
from packimport.pack.container import Container
from packimport.pack.edits import Edit
from packimport.rope.schedule import Rope
from packimport.semantics.describe import describe
from packimport.semantics.model import Semantics


class GraphMending:
    """Changes of one graph. `edits` are those of other files; `draft` has the rest."""

    def __init__(self, container: Container, draft: Draft, semantics: Semantics) -> None:
        self.draft = draft
        self.edits: list[Edit] = []
        self._container = container
        self._semantics = semantics
        self._lengths = Lengths(draft)
        # The first node that rotates: what several of them take stands before it.
        self._start: Node | None = None
        self._scaled: dict[tuple[str, str], float] = {}

    def mend(self, shared: Shared, uses: Sequence[Use]) -> None:
        """Give the nodes that use one table what their layers declare.

        uses: of the whole graph. Raises Unchangeable or Unfollowed where that can't be.
        """
        labels = {label for judged in shared.sites for label in judged.site.nodes}
        groups = by_rope((use for use in uses if use.node.label in labels), self._semantics)
        _refuse_split(groups)
        self.take_out(groups.pop(None, []))
        if not groups:
            return
        self._start = self._start or min((use.node for use in uses), key=lambda node: node.index)
        ropes = [rope for rope in groups if rope is not None]
        for rope in ropes:
            self._set(shared, rope, groups[rope])
        first = groups[ropes[0]][0]
        inputs = [first.node.input(index) for index in first.table_inputs]
        work = Work(
            self._container, self.draft, pair_of(self.draft, inputs, shared.spans), shared.site
        )
        owner = self._owner(shared.site, ropes)
        for rope in ropes:
            self._tables(work, shared, rope, groups[rope], is_owner=rope is owner)
        self.edits += work.edits

    def rewrite(self, edits: Iterable[Edit]) -> None:
        """Other bytes for tables that stay as they are in the graph."""
        for edit in edits:
            if edit.file != self.draft.file.name:
                self.edits.append(edit)
            else:
                self.draft.splices.written[edit.offset] = edit.new
                change = f"{edit.length} bytes of values are rewritten"
                name, _, reason = edit.reason.partition(": ")
                self.draft.note(name, change, reason)

    def scale(self, judged: JudgedSite) -> None:
        """Multiply the cos and sin that the graph computes until they have the declared factor."""
        waves, wrong = judged.site.waves, judged.measurement.wrong_factor
        assert waves is not None
        assert wrong is not None
        *found, declared = wrong
        reason = f"RPE024: the attention factor {declared:.9g} is declared"
        for op, label, factor in zip(("Cos", "Sin"), waves.trig, found, strict=True):
            ratio = declared / factor
            known = self._scaled.get((op, label))
            if known is None:
                multiply(self.draft, op, label, ratio, reason)
            elif known != ratio:
                raise Unchangeable(f"{label} serves layers that declare different factors")
            self._scaled[op, label] = ratio

    def take_out(self, uses: Sequence[Use], code: str = "RPE005") -> None:
        """Let some nodes rotate nothing. code: of the finding that this cures."""
        for use in uses:
            reason = f"{code}: layer {use.layer} is declared without RoPE"
            if use.form == group_query_attention.FORM:
                stop_rotating(self.draft, use.node, reason)
            else:
                bypass(self.draft, use.node, reason)

    def _owner(self, site: Site, ropes: Sequence[Rope]) -> Rope:
        """Whose table stays in the tensors: one that it is right for, else one of its width."""
        right = [rope for rope in ropes if is_right(self._container, site, rope)]
        wide = [rope for rope in ropes if rope.pairs == site.pairs]
        return (right or wide or list(ropes))[0]

    def _set(self, shared: Shared, rope: Rope, uses: Sequence[Use]) -> None:
        sites = {label: j.site for j in shared.sites for label in j.site.nodes}
        for use in uses:
            site = sites[use.node.label]
            if pairs_otherwise(site, rope, self._semantics):
                pair(self.draft, use, rope.interleaved, "RPE007: pairs lie otherwise than declared")
            if (site.pairs, site.rotary_dim) != (rope.pairs, rope.rotary_dim) or (
                site.head_dim not in {None, rope.head_dim}
            ):
                reason = f"RPE008: {rope.rotary_dim} of {rope.head_dim} entries are to rotate"
                rotate_entries(self.draft, use, rope.rotary_dim, rope.head_dim, reason)

    def _tables(
        self, work: Work, shared: Shared, rope: Rope, uses: list[Use], *, is_owner: bool
    ) -> None:
        rows = shared.rows(self._semantics)
        limit = limit_of(rope, shared.site, self._semantics)
        if limit is not None:
            self._by_length(work, rope, uses, (rows, limit), is_owner=is_owner)
        elif is_owner:
            work.give(rope, rows, self._reason(shared, rope))
        else:
            layers = sorted({use.layer for use in uses})
            reason = f"RPE011: {counted(layers, 'declares', 'declare')} {describe(rope)}"
            _rewire(self.draft, uses, work.add("of_other_layers", rope, rows, reason))

    def _reason(self, shared: Shared, rope: Rope) -> str:
        usable = self._semantics.usable_length or 0
        if shared.site.pairs != rope.pairs:
            return f"RPE008: {rope.pairs} pairs are declared"
        if shared.site.rows < usable:
            return f"RPE009: the pack is used for {usable} positions"
        return f"RPE001: {shared.sites[0].measurement.baked_as} becomes {describe(rope)}"

    def _by_length(
        self,
        work: Work,
        rope: Rope,
        uses: list[Use],
        lengths: tuple[int, int],
        *,
        is_owner: bool,
    ) -> None:
        """Two tables, or one and a formula, and an If that chooses by the length of the call."""
        rows, limit = lengths
        reason = f"RPE012: {rope.type} needs another table beyond {limit} positions"
        before, dtype = uses[0].node, work.site.cos.dtype
        assert self._start is not None
        length = self._lengths.of(uses, self._start)

        def held(what: str, needed: int, seq_len: int | None) -> tuple[str, str]:
            if is_owner and what == kept:
                work.give(rope, needed, reason, seq_len)
                return work.pair.names
            return work.add(what, rope, needed, reason, seq_len=seq_len)

        # The table that is right stays; else the long one takes its place, for it has the rows.
        is_short = is_right(self._container, work.site, rope)
        kept = "short" if is_short or rope.type == "dynamic" else "long"
        short = rows_in_use(self.draft, held("short", limit, None), length, "short", dtype)
        if rope.type == "dynamic":
            beyond = computed(self.draft, rope, length, dtype)
        else:
            tables = held("long", rows, limit + 1)
            beyond = rows_in_use(self.draft, tables, length, "long", dtype)
        names = choose(
            self.draft, before, length, limit=limit, branches=(beyond, short), reason=reason
        )
        _rewire(self.draft, uses, names)


def _refuse_split(groups: Mapping[Rope | None, Sequence[Use]]) -> None:
    """Raises Unchangeable where one node serves layers that declare different schedules."""
    seen: set[int] = set()
    for uses in groups.values():
        here = {use.node.index: use.node for use in uses}
        if twice := seen & here.keys():
            raise Unchangeable(f"{here[min(twice)].label} serves layers that declare otherwise")
        seen |= here.keys()


def _rewire(draft: Draft, uses: Sequence[Use], names: tuple[str, str]) -> None:
    for use in uses:
        for index, name in zip(use.table_inputs, names, strict=True):
            draft.set_input(use.node, index, name)
