"""Sharing: who else uses the bytes of a table. Rewriting them would change that as well."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.body import Body
from packimport.graph.ops import GROUP_QUERY_ATTENTION, ROTARY_EMBEDDING
from packimport.graph.rotation import Rotation, Scene
from packimport.graph.site import TensorSpan, Unread

# Their own records say whether they are read.
_ROTATING = frozenset({GROUP_QUERY_ATTENTION, ROTARY_EMBEDDING})


def shared(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every other use of the tables of `rotations`: one record per table and user."""
    yield from _two_roles(scene, rotations)
    yield from _other_takers(scene, rotations)
    yield from _other_tensors(scene, rotations)


def _two_roles(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    cos = {_bytes(rotation.tables.cos) for rotation in rotations}
    for rotation in rotations:
        if _bytes(rotation.tables.sin) in cos:
            reason = f"its sin table {rotation.tables.sin.name} is a cos table as well"
            yield scene.unread(rotation.node, reason, _first(rotation))


def _other_takers(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    main = scene.file.main
    tables = {name: rotation for rotation in rotations for name in rotation.tables.names}
    takers = main.takers(frozenset(tables))
    rotating = {index for kind in _ROTATING for index in main.ops.get(kind, ())}
    for name, rotation in tables.items():
        for index in takers.get(name, ()):
            if index in rotating:
                continue
            node = main.node(index)
            # An Identity or Cast on the way to a node that rotates.
            if not all(output in tables for output in node.outputs):
                yield _used(scene, rotation, name, f"the {node.op} node {node.label}")
        if name in main.outputs:
            yield _used(scene, rotation, name, "an output of the graph")
        for body in _nested(main):
            if name in body.consumers or name in body.outputs:
                yield _used(scene, rotation, name, body.scope.where)


def _other_tensors(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every table that shares bytes with a tensor, or some bytes with another table."""
    tables = {
        (span.name, _bytes(span)): rotation
        for rotation in rotations
        for span in (rotation.tables.cos, rotation.tables.sin)
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
