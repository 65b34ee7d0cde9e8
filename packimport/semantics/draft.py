"""Draft: a Rope in the making, field by field, each with the value it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from packimport.pack.documents import Document
from packimport.semantics.blocks import Block
from packimport.semantics.dimensions import Dimensions
from packimport.semantics.families import Family
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

    def note_contradiction(self, loser: Document, winner: Document, why: str) -> None:
        """Say that two keys of one meaning differ, and which one counts."""
        if loser.value != winner.value:
            self.notes.append(
                f"{loser.place} says {loser.value} and {winner.place} says {winner.value}: {why}"
            )
