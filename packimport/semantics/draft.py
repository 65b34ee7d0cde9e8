"""Draft: a Rope in the making, field by field, each with the value it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from packimport.pack.documents import Document
from packimport.semantics.blocks import Block
from packimport.semantics.dimensions import Dimensions
from packimport.semantics.families import Family, spellings
from packimport.semantics.labels import Schedule

Value: TypeAlias = float | int | bool | str | tuple[float, ...] | tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Context:
    """What the Rope of one kind of layer is built from.

    theta, partial: entries of per-layer lists, which count before all else.
    """

    config: Document
    family: Family
    dimensions: Dimensions
    block: Block
    schedule: Schedule
    theta: Document | None = None
    partial: Document | None = None


@dataclass(slots=True)
class Draft:
    """The fields of a Rope so far, where they were read, and what a user should know."""

    context: Context
    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[str, Document] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def set(self, name: str, value: Value, node: Document | None) -> None:
        """One field and where it was read."""
        self.values[name] = value
        if node is not None:
            self.nodes[name] = node

    def note_second_block(self, inner: Document | None, key: str) -> None:
        """Say where only the second of two blocks has a base or a part: the first replaces it in
        transformers.
        """
        shape = self.context.block.shape
        second = inner is not None and len(shape) > 1 and shape[0].get(key) is None
        if inner is not None and second and inner.file == self.context.config.file:
            self.notes.append(
                f"{inner.place} counts: transformers 5.24.0 does not read it, as {shape[0].place}"
                " stands in place of the whole block"
            )

    def check_read(self, node: Document | None, fallback: Document | None) -> None:
        """Refuse or note a value at a place that the family's code does not read (`unread` and
        `misread` in families.yaml), unless it is the one that stands without it.
        """
        usual = 1.0 if fallback is None else fallback.value
        if node is None or node.file != self.context.config.file or node.value == usual:
            return
        family = self.context.family
        own = self.context.schedule.get("unread")
        if self._stands_at(node, (*family.texts("unread"), *(own.texts() if own else ()))):
            raise node.error(
                f"transformers' code for {family.name} does not read this, or not in every"
                f" release: 5.24.0 takes {usual}",
                allowed=f"{usual}, or nothing",
                fix="State the value where the model's code reads it.",
            )
        if node.pointer == f"{self.context.config.pointer}/{node.pointer.rpartition('/')[2]}":
            self._note_spelling(node, usual)
        if self._stands_at(node, family.texts("misread")):
            self.notes.append(
                f"{node.place} says {node.value}, which transformers 5.24.0 does not read: it takes"
                f" {usual}; the config counts"
            )

    def _note_spelling(self, node: Document, usual: object) -> None:
        family, key = self.context.family, node.pointer.rpartition("/")[2]
        # The first spelling is the usual one.
        odd = {*spellings("theta")[1:], *spellings("partial")[1:], *spellings("rotary_dim")}
        if family.known and key in odd - set(family.texts("reads")):
            self.notes.append(
                f"{node.place} says {node.value}: family {family.name} is not known to read this"
                f" key, and without it takes {usual}; the config counts"
            )

    def _stands_at(self, node: Document, places: tuple[str, ...]) -> bool:
        return node.pointer in (f"{self.context.config.pointer}{place}" for place in places)

    def note_contradiction(self, loser: Document, winner: Document, why: str) -> None:
        """Say that two keys of one meaning differ, and which one counts."""
        if loser.value != winner.value:
            self.notes.append(
                f"{loser.place} says {loser.value} and {winner.place} says {winner.value}: {why}"
            )
