"""Moves: what ops of layout do to the entries of a head on the way to an attention.

A head's entries may be moved as a whole: heads may change places with tokens, be merged and
split again. Where single entries would change places, a rotation before or behind has other
pairs than it seems to have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from packimport.graph.constants import Constants
from packimport.graph.frame import Value, resolve
from packimport.graph.node import STANDARD, Node

# Dims of [batch, heads, tokens, entries]. More of them have halves or neighbours as a dim.
_DIMS = 4


class Stage(Enum):
    """Where on its way a value is, seen from the attention back.

    BEHIND: between a rotation and the attention, should a rotation come.
    BEFORE: between the projection and a rotation.
    BESIDE: a part of a head that is not rotated.
    """

    BEHIND = auto()
    BEFORE = auto()
    BESIDE = auto()


@dataclass(slots=True)
class Moves:
    """The moves of one way, from the attention back.

    constants: of the file.
    turned_keys: how often the last two dims have to change places behind the rotation: once
               for keys that a MatMul takes, [batch, heads, entries, tokens].
    widths:    the last dims that reshapes behind the rotation make.
    heads:     into how many heads the reshape right behind the rotation splits the value, as a
               constant says: [batch, tokens, heads, entries]; None where none does.
    repeated:  whether heads may be repeated behind the rotation, as for keys of a group.
    sorted:    whether neighbours were sorted apart before the rotation, as DeepSeek does: what
               then turns halves turns neighbours of the projection.
    """

    constants: Constants
    turned_keys: int = 0
    widths: set[int] = field(default_factory=set)
    heads: int | None = None
    repeated: bool = False
    sorted: bool = False

    def refusal(self, value: Value, node: Node, stage: Stage) -> str | None:
        """Why a node of layout may move single entries; None where it can't.

        value: what it makes.
        """
        if stage is Stage.BESIDE:
            return None
        if node.op == "Transpose":
            perm = node.integers("perm")
            if perm is None:
                return "moves its entries: it has no perm"
            if stage is Stage.BEFORE:
                return self._sorted(value, node, perm)
            return self._transposed(perm)
        if node.op in {"Slice", "Split"}:
            return self._cut(value, node, stage)
        if node.op == "Reshape" and stage is Stage.BEHIND:
            made = self._integers(value, node, 1)
            self.heads = made[2] if made is not None and len(made) == _DIMS else None
            return self._reshaped(value, node)
        self.repeated |= stage is Stage.BEHIND and node.op in {"Expand", "Tile"}
        return None

    def picks_heads(self, value: Value, node: Node) -> bool:
        """Whether a Gather or GatherND takes whole heads of what a projection made.

        That is, of [batch, tokens, .., entries], by constant places between the two: one of
        query, key and value where a projection makes them together (Falcon, Persimmon).
        value: what it makes.
        """
        if node.domain != STANDARD or node.op not in {"Gather", "GatherND"}:
            return False
        places = resolve(value.frame, node.input(1))
        if self.constants.integers(places) is None and self.constants.array(places) is None:
            return False
        before = resolve(value.frame, node.input(0))
        made, axis = before.node, node.integer("axis", 0)
        if node.op == "GatherND":
            found = self.constants.array(places)
            if found is None or found.shape[-1:] != (1,) or node.integer("batch_dims", 0):
                return False
            perm = None if made is None or made.op != "Transpose" else made.integers("perm")
            if made is None or perm is None or perm[-1] != len(perm) - 1:
                return False
            axis = perm[0]
            before = resolve(before.frame, made.input(0))
            made = before.node
        if made is None or (made.domain, made.op) != (STANDARD, "Reshape"):
            return False
        count, last = self._shape(before, made) or (0, None)
        axis = axis if axis >= 0 else axis + count
        return last is not None and last > 1 and 2 <= axis < count - 1

    def _sorted(self, value: Value, node: Node, perm: tuple[int, ...]) -> str | None:
        last = len(perm) - 1
        if perm[-1] == last:
            return None
        if self.sorted or perm[-2:] != (last, last - 1) or not self._is_by_two(value, node):
            return "moves single entries of a head before the rotation"
        self.sorted = True
        return None

    def _transposed(self, perm: tuple[int, ...]) -> str | None:
        last = len(perm) - 1
        if len(perm) > _DIMS:
            return f"moves parts of heads: it has {len(perm)} dims"
        if perm[-1] == last and self.turned_keys == 0:
            return None
        # [.., tokens, entries] or [batch, tokens, heads, entries] become keys for a MatMul.
        is_turn = perm[-2:] == (last, last - 1) or perm == (0, 2, 3, 1)
        if self.turned_keys == 0 or not is_turn:
            return "moves single entries of a head behind the rotation"
        self.turned_keys -= 1
        return None

    def _is_by_two(self, value: Value, node: Node) -> bool:
        """Whether a Transpose takes entries in twos: [..., pairs, 2]."""
        before = resolve(value.frame, node.input(0))
        made = before.node
        return made is not None and made.op == "Reshape" and self._last(before, made) == 2

    def _reshaped(self, value: Value, node: Node) -> str | None:
        shape = self._shape(value, node)
        if shape is None or self.turned_keys:
            return None  # keys that were turned: [.., entries, tokens]
        count, last = shape
        if count < _DIMS or last is None or last <= 0:
            return None
        self.widths.add(last)
        if len(self.widths) > 1:
            return f"splits heads: their last dims are {sorted(self.widths)}"
        return None

    def _cut(self, value: Value, node: Node, stage: Stage) -> str | None:
        axes: tuple[int, ...] | None = (node.integer("axis", 0),)
        if node.op == "Slice":
            steps = self._integers(value, node, 4) if node.input(4) else (1,)
            if steps is None or set(steps) != {1}:
                return "may change the order of entries"
            axes = self._integers(value, node, 3)
        if stage is Stage.BEHIND and (axes is None or not {-1, _DIMS - 1}.isdisjoint(axes)):
            return "takes some of the entries of a head behind the rotation"
        return None

    def _integers(self, value: Value, node: Node, index: int) -> tuple[int, ...] | None:
        return self.constants.integers(resolve(value.frame, node.input(index)))

    def _last(self, value: Value, node: Node) -> int | None:
        shape = self._shape(value, node)
        return None if shape is None else shape[1]

    def _shape(self, value: Value, node: Node) -> tuple[int, int | None] | None:
        """How many dims a Reshape makes, and the last one; None where that is not known."""
        shape = resolve(value.frame, node.input(1))
        known = self.constants.integers(shape)
        if known is not None:
            return (len(known), known[-1]) if known else None
        made = shape.node
        if made is None or made.op != "Concat":
            return None
        parts = [self.constants.integers(resolve(shape.frame, name)) for name in made.inputs]
        last = parts[-1]
        # What the graph computes is one number each, as exporters write shapes.
        count = sum(1 if part is None else len(part) for part in parts)
        return count, last[-1] if last else None
