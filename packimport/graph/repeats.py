"""Repeats: values whose entries lie twice each, side by side, as repeat_interleave leaves them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packimport.graph.constants import Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Repeats:
    """Finds the values behind doublings of one file."""

    constants: Constants
    ranks: Ranks

    def flattened(self, value: Value, trail: Trail) -> Value | None:
        """x where a value is x and x stacked along a new last axis, which a Reshape then merges.

        value: what the Reshape takes. None for another value.
        """
        node = value.node
        if node is None or node.domain != STANDARD or node.op not in {"Concat", "Expand", "Tile"}:
            return None
        names = node.inputs if node.op == "Concat" else node.inputs[:1]
        nodes, sources = {(value.frame.body, node.index)}, set()
        for name in names:
            part = resolve(value.frame, name)
            made = part.node
            if made is None or (made.domain, made.op) != (STANDARD, "Unsqueeze"):
                return None
            inner = resolve(part.frame, made.input(0), trail)
            rank = self.ranks.of(inner)
            axes = self._axes(part, made)
            stacked = None if rank is None else rank + len(axes)
            if not self._is_stacked(axes, stacked):
                return None
            nodes.add((part.frame.body, made.index))
            sources.add(inner)
            axis = node.integer("axis", 0)
            if node.op == "Concat" and not self.ranks.is_axis(axis, stacked, -1):
                return None
        if len(sources) != 1 or (node.op == "Concat" and len(names) != 2):
            return None
        if node.op == "Tile" and not self._is_last_twice(resolve(value.frame, node.input(1))):
            return None
        trail.nodes.update(nodes)
        return sources.pop()

    def _is_stacked(self, axes: tuple[int, ...], stacked: int | None) -> bool:
        """Whether an Unsqueeze makes a new last axis; others lie before the entries."""
        last = [axis for axis in axes if self.ranks.is_axis(axis, stacked, -1)]
        others = [axis for axis in axes if axis not in last]
        if len(last) != 1 or (others and stacked is None):
            return False
        return not any(self.ranks.is_axis(axis, stacked, -2) for axis in others)

    def _is_last_twice(self, counts: Value) -> bool:
        """Whether a Tile with these counts repeats the last axis alone, twice."""
        known = self.constants.integers(counts)
        return known is not None and known[-1:] == (2,) and set(known[:-1]) <= {1}

    def around(self, value: Value, trail: Trail) -> Value | None:
        """x [..., entries] where a value is x with each entry twice, by way of its rows.

        Entries are made rows by a Transpose, picked twice each, and taken back by another one.
        None for another value.
        """
        node = value.node
        if node is None or (node.domain, node.op) != (STANDARD, "Transpose"):
            return None
        passed = Trail()
        picked = resolve(value.frame, node.input(0), passed)
        rows = self.gathered(picked, passed)
        made = None if rows is None else rows.node
        if rows is None or made is None or (made.domain, made.op) != (STANDARD, "Transpose"):
            return None
        back, there = node.integers("perm"), made.integers("perm")
        if back is None or there is None or len(back) != len(there):
            return None
        if there[0] != len(there) - 1 or [there[i] for i in back] != list(range(len(there))):
            return None
        found = resolve(rows.frame, made.input(0), passed)
        trail.nodes.update(
            {*passed.nodes, (value.frame.body, node.index), (rows.frame.body, made.index)}
        )
        trail.values.update(passed.values)
        return found

    def along_last(self, value: Value, like: Value, width: int) -> Value | None:
        """x where a value is x[..., None], as wide as `like`; None for another value.

        width: entries of the last dim of `like`.
        """
        is_wide = False
        for op in ("Tile", "Expand"):
            node = value.node
            if node is not None and (node.domain, node.op) == (STANDARD, op):
                shape = resolve(value.frame, node.input(1))
                is_wide = is_wide or self._ends_in(shape, like, width)
                value = resolve(value.frame, node.input(0))
        return self.ranks.columns(value) if is_wide else None

    def _ends_in(self, shape: Value, like: Value, width: int) -> bool:
        """Whether the last entry of a shape is the last dim of `like`."""
        known = self.constants.integers(shape)
        if known is not None:
            return known[-1:] == (width,)
        node = shape.node
        if node is None or (node.domain, node.op) != (STANDARD, "Concat"):
            return False
        last = resolve(shape.frame, node.inputs[-1])
        known = self.constants.integers(last)
        if known is not None:
            return known[-1:] == (width,)
        number = self._behind_value(last, "Unsqueeze")
        return number is not None and self.ranks.is_last_dim(number, like)

    def is_by_batch(self, value: Value, node: Node) -> bool:
        """Whether a Tile repeats the first of three dims alone, once for each of a batch."""
        counts = resolve(value.frame, node.input(1)).node
        if counts is None or (counts.domain, counts.op) != (STANDARD, "Concat"):
            return False
        frame = value.frame
        others = [self.constants.integers(resolve(frame, name)) for name in counts.inputs[1:]]
        is_three = self.ranks.of(resolve(frame, node.input(0))) == 3
        return is_three and others == [(1,), (1,)]

    def gathered(self, value: Value, trail: Trail) -> Value | None:
        """x [entries, ...] where a GatherND picks each of its rows twice; None for another value.

        torch's older exporter writes repeat_interleave so: rows 0 .. n of x, spread over a new
        second axis, at the places (row, turn) with turn below 2.
        """
        node = value.node
        if node is None or (node.domain, node.op) != (STANDARD, "GatherND"):
            return None
        if node.integer("batch_dims", 0):
            return None
        spread = self._behind(value, node, 0, "Expand", trail)
        new = None if spread is None else self._behind(spread[0], spread[1], 0, "Unsqueeze", trail)
        if new is None or self._axes(*new) != (1,):
            return None
        if not self._is_every_row_twice(resolve(value.frame, node.input(1))):
            return None
        trail.nodes.add((value.frame.body, node.index))
        return resolve(new[0].frame, new[1].input(0), trail)

    def _is_every_row_twice(self, places: Value) -> bool:
        """Whether GatherND's places are (0, 0), (0, 1), (1, 0), (1, 1), ..."""
        found = self.constants.array(places)
        if found is not None:
            is_pairs = found.ndim == 2 and found.shape[1] == 2 and len(found) % 2 == 0
            return is_pairs and np.array_equal(found, np.argwhere(np.ones((len(found) // 2, 2))))
        steps = [places]
        for op in ("Transpose", "NonZero", "Less"):
            node = steps[-1].node
            if node is None or (node.domain, node.op) != (STANDARD, op):
                return False
            if op == "Transpose" and node.integers("perm") not in {None, (1, 0)}:
                return False
            steps.append(resolve(steps[-1].frame, node.input(0)))
        less = steps[2].node
        assert less is not None
        turns, column = steps[3], resolve(steps[2].frame, less.input(1))
        count = self._behind_value(column, "Unsqueeze")
        if count is None or self._axes(column, column.node) != (1,) or not self._is_twos(count):
            return False
        return self._is_from_zero(turns, count)

    def _is_from_zero(self, turns: Value, count: Value) -> bool:
        """Whether a Range counts 0, 1 up to the largest of `count`."""
        node = turns.node
        if node is None or (node.domain, node.op) != (STANDARD, "Range"):
            return False
        start, stop, step = (resolve(turns.frame, name) for name in node.inputs)
        if self.constants.integer(start) != 0 or self.constants.integer(step) != 1:
            return False
        if self.constants.integer(stop) == 2:
            return True
        while (made := stop.node) is not None and made.op in {"Cast", "Squeeze", "Reshape"}:
            stop = resolve(stop.frame, made.input(0))
        return self._behind_value(stop, "ReduceMax") == count

    def _is_twos(self, value: Value) -> bool:
        """Whether every entry is 2, however many there are."""
        found = self.constants.array(value)
        if found is not None:
            return bool((found == 2).all())
        node = value.node
        if node is None or (node.domain, node.op) != (STANDARD, "ConstantOfShape"):
            return False
        filled = node.tensor("value")
        entries = None if filled is None else self.constants.values(filled)
        return entries is not None and entries.ravel().tolist() == [2]

    def _behind(
        self, value: Value, node: Node, index: int, op: str, trail: Trail
    ) -> tuple[Value, Node] | None:
        before = resolve(value.frame, node.input(index), trail)
        made = before.node
        if made is None or (made.domain, made.op) != (STANDARD, op):
            return None
        trail.nodes.add((before.frame.body, made.index))
        return before, made

    def _behind_value(self, value: Value, op: str) -> Value | None:
        node = value.node
        if node is None or (node.domain, node.op) != (STANDARD, op):
            return None
        return resolve(value.frame, node.input(0))

    def _axes(self, value: Value, node: Node | None) -> tuple[int, ...]:
        assert node is not None
        if node.input(1):
            return self.constants.integers(resolve(value.frame, node.input(1))) or ()
        return node.integers("axes") or ()
