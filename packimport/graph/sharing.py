"""Sharing: who else uses the constants of a rotation. Rewriting them would change that as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packimport.graph import ryzen_ai
from packimport.graph.body import Body
from packimport.graph.node import STANDARD, Node
from packimport.graph.ops import ATTENTIONS, ROTATING_OPS
from packimport.graph.rotation import Part, Rotation, Scene
from packimport.graph.site import TensorSpan, Unread

# A value's shape is no use of its entries.
_HARMLESS = frozenset({"Shape", "Size"})
# Nodes that rotate have records of their own, which say whether they are read.
_WITH_RECORDS = frozenset({*ROTATING_OPS, *ATTENTIONS, *ryzen_ai.GROUP_QUERY, *ryzen_ai.DISPATCH})


def shared(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every other use of the constants of `rotations`: one record per constant and user."""
    yield from _two_roles(scene, rotations)
    yield from _other_takers(scene, rotations)
    yield from _other_tensors(scene, rotations)


def _two_roles(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    tables = [(r, part.table) for r in rotations for part in r.parts if part.table is not None]
    cos = {_bytes(table.cos) for _, table in tables}
    for rotation, table in tables:
        if len(table.tensors) > 1 and _bytes(table.sin) in cos:
            reason = f"its sin table {table.sin.name} is a cos table as well"
            yield scene.unread(rotation.node, reason, _first(rotation))


def _other_takers(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    known = {node for rotation in rotations for node in rotation.trail.nodes}
    values: dict[Body, dict[str, Rotation]] = {}
    for rotation in rotations:
        for body, name in rotation.trail.values:
            values.setdefault(body, {}).setdefault(name, rotation)
    for body, names in values.items():
        takers = body.takers(frozenset(names))
        for name, rotation in names.items():
            for index in takers.get(name, ()):
                node = body.node(index)
                is_known = (body, index) in known
                if is_known and _goes_on_unseen(scene, node, name, values):
                    yield _used(scene, rotation, name, f"an input of the call {node.label}")
                elif not (is_known or _is_harmless(node) or _asks_for_shape(body, node)):
                    yield _used(scene, rotation, name, f"the {node.op} node {node.label}")
            if body is scene.file.main and name in body.outputs:
                yield _used(scene, rotation, name, "an output of the graph")
        yield from _captured(scene, body, names, known)


def _goes_on_unseen(
    scene: Scene, node: Node, name: str, values: Mapping[Body, Mapping[str, Rotation]]
) -> bool:
    """Whether a call hands a value to a function under a name that no trace has passed."""
    body = scene.file.callable.get((node.domain, node.op))
    if body is None:
        return False
    formal = {
        formal for formal, actual in zip(body.inputs, node.inputs, strict=False) if actual == name
    }
    unseen = frozenset(formal - set(values.get(body, {})))
    takers = body.takers(unseen)
    return any(takers.get(name) for name in unseen)


def _captured(
    scene: Scene, body: Body, names: Mapping[str, Rotation], known: set[tuple[Body, int]]
) -> Iterator[Unread]:
    """The uses in graphs nested in `body`, which see its names."""
    for child in _nested(body):
        takers = child.takers(frozenset(names))
        for name, rotation in names.items():
            strangers = [i for i in takers.get(name, ()) if (child, i) not in known]
            handed = name in child.outputs and not _is_branch_of(child, known)
            if strangers or handed:
                yield _used(scene, rotation, name, child.scope.where)


def _is_branch_of(child: Body, known: set[tuple[Body, int]]) -> bool:
    """Whether a nested graph is a branch of an If that was followed."""
    return any(child in body.held.get(index, {}).values() for body, index in known)


def _is_harmless(node: Node) -> bool:
    kind = (node.domain, node.op)
    return node.op in _HARMLESS or kind in _WITH_RECORDS


def _asks_for_shape(body: Body, node: Node) -> bool:
    """Whether a node only turns a value round for a Shape behind it."""
    if (node.domain, node.op) != (STANDARD, "Transpose") or _is_seen_outside(body, node):
        return False
    takers = body.takers(frozenset(node.outputs))
    after = [body.node(index) for name in node.outputs for index in takers.get(name, ())]
    return bool(after) and all(taker.op in _HARMLESS for taker in after)


def _is_seen_outside(body: Body, node: Node) -> bool:
    names = frozenset(node.outputs)
    return not names.isdisjoint(body.outputs) or any(
        any(child.takers(names).get(name) for name in names) or not names.isdisjoint(child.outputs)
        for child in _nested(body)
    )


def _spans(part: Part) -> tuple[TensorSpan, ...]:
    if part.table is not None:
        return part.table.tensors
    assert part.waves is not None
    return (*(() if part.waves.span is None else (part.waves.span,)), *part.waves.factors)


def _other_tensors(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every constant that shares bytes with a tensor, or some bytes with another constant."""
    tables = {
        (span.name, _bytes(span)): rotation
        for rotation in rotations
        for part in rotation.parts
        for span in _spans(part)
    }
    by_place = sorted({*tables, *scene.spans.externals()}, key=lambda item: item[1])
    # In this order a tensor overlaps one before it exactly if it overlaps the one that
    # ends last.
    last = None
    for name, span in by_place:
        if last is not None and last[1][0] == span[0] and span[1] < last[1][1] + last[1][2]:
            one, other = tables.get((name, span)), tables.get(last)
            same_table = one is not None and other is not None and span == last[1]
            if one is not None and not same_table:
                yield _used(scene, one, name, f"the tensor {last[0]}, in its bytes")
            elif other is not None and not same_table:
                yield _used(scene, other, last[0], f"the tensor {name}, in its bytes")
        if last is None or last[1][0] != span[0] or span[1] + span[2] > last[1][1] + last[1][2]:
            last = (name, span)


def _used(scene: Scene, rotation: Rotation, table: str, user: str) -> Unread:
    reason = f"its table {table} is also used by {user}, which a rewritten table would change"
    return scene.unread(rotation.node, reason, _first(rotation))


def _nested(body: Body) -> Iterator[Body]:
    for child in body.children:
        yield child
        yield from _nested(child)


def _bytes(span: TensorSpan) -> tuple[str, int, int]:
    return span.file, span.offset, span.length


def _first(rotation: Rotation) -> int | None:
    return rotation.layers[0] if rotation.layers else None
