"""Sections: rows of cos or sin whose parts follow positions in three axes, as Qwen2-VL has them.

cos and sin are [axes, batch, tokens, entries]; a part of each row is taken of one axis, and
the parts are joined again: Split, a Gather of each part, Concat. Source: graphs of torch 2.13
(both exporters) from transformers 5.24.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph.constants import Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.ranks import Ranks
from packimport.graph.trace import Unfollowed, origin

# Time, height and width.
AXES = 3
# The parts of a row that are joined: each axis once, or twice where rows lie doubled.
COUNTS = frozenset({AXES, 2 * AXES})


@dataclass(frozen=True, slots=True)
class SectionReader:
    """Reads the sections of one file."""

    constants: Constants
    ranks: Ranks

    def read(self, value: Value, node: Node, trail: Trail) -> tuple[Value, tuple[int, ...]]:
        """What a Concat of parts is made of, and the entries of each part.

        Raises Unfollowed where part i is not the one of axis i, or the parts are not all.
        """
        parts = [resolve(value.frame, name, trail) for name in node.inputs]
        found = {self._part(part, index, trail) for index, part in enumerate(parts)}
        is_last = self.ranks.is_axis(node.integer("axis", 0), self.ranks.of(parts[0]), -1)
        if len(found) != 1 or not is_last:
            raise Unfollowed(origin(value))
        source, sizes = found.pop()
        if len(sizes) != len(parts):
            raise Unfollowed(origin(value))
        return source, sizes

    def _part(self, picked: Value, index: int, trail: Trail) -> tuple[Value, tuple[int, ...]]:
        """What part `index` is taken of, and how that is cut."""
        gather = picked.node
        if gather is None or (gather.domain, gather.op) != (STANDARD, "Gather"):
            raise Unfollowed(origin(picked))
        axis = self.constants.integer(resolve(picked.frame, gather.input(1)))
        part = resolve(picked.frame, gather.input(0), trail)
        split = part.node
        if split is None or (split.domain, split.op) != (STANDARD, "Split"):
            raise Unfollowed(origin(part))
        trail.nodes.update({(picked.frame.body, gather.index), (part.frame.body, split.index)})
        source = resolve(part.frame, split.input(0), trail)
        sizes = None
        if split.input(1):
            sizes = self.constants.integers(resolve(part.frame, split.input(1)))
        is_own = (axis, part.output, gather.integer("axis", 0)) == (index % AXES, index, 0)
        is_last = self.ranks.is_axis(split.integer("axis", 0), self.ranks.of(source), -1)
        if not is_own or sizes is None or not is_last:
            raise Unfollowed(origin(picked))
        return source, sizes


def sections_of(sizes: tuple[int, ...], layout: str, pairs: int) -> tuple[int, ...]:
    """The sections of rows of `pairs` that lie so and are cut into parts of these sizes."""
    times = len(sizes) // AXES
    sections = sizes[:AXES]
    if layout != {1: "pairs", 2: "halves"}[times] or sizes != sections * times:
        raise Unfollowed("is cut into parts that are no sections of positions in three axes")
    if sum(sections) != pairs:
        raise Unfollowed(f"has sections of {sum(sections)} pairs, and {pairs} frequencies")
    return sections
