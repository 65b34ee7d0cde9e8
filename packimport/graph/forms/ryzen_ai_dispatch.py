"""DynamicDispatch of com.ryzenai: a compiled subgraph that is handed cos and sin as one tensor.

Two constants are known, by the names that AMD's passes give their values:
`sin_cos_cache_token` [rows, 2 * pairs], a row's cos and then its sin, for decoding;
`sin_cos_cache_prefill` [2, rows, 4 * pairs], cos and sin in two parts each, of which the
graph slices the rows of the prompt. Both are bfloat16. The node stands for all layers, or
for those whose key caches it takes.

Source: the passes of AMD's ryzenai_onnx_utils that make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packimport.graph import ryzen_ai
from packimport.graph.attention import named_layer
from packimport.graph.frame import Frame, Trail, Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.rotation import Part, Rotation, Scene
from packimport.graph.rows import rows_up_to
from packimport.graph.site import TableSpans, TensorSpan, Unread
from packimport.graph.trace import Unfollowed

FORM = "DynamicDispatch"
TOKEN, PREFILL = "sin_cos_cache_token", "sin_cos_cache_prefill"
_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a known constant lies.

    encoding: its key. rank: of its tensor. rows: which dim counts positions.
    interleaved: how pairs lie; None where the compiled code alone knows.
    """

    encoding: str
    rank: int
    rows: int
    interleaved: bool | None


_KINDS: Mapping[str, _Kind] = {
    TOKEN: _Kind("cos-sin", rank=2, rows=0, interleaved=None),
    # Both halves of a head take the same values: that is half-split.
    PREFILL: _Kind("hi-lo", rank=3, rows=1, interleaved=False),
}


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node."""
    for frame in scene.main.everything():
        for kind in sorted(ryzen_ai.DISPATCH):
            for node in frame.body.nodes(*kind):
                try:
                    yield _read(scene, frame, node)
                except Unfollowed as error:
                    yield scene.unread(node, error)


def _read(scene: Scene, frame: Frame, node: Node) -> Rotation:
    trail = Trail(nodes={(frame.body, node.index)})
    found = [table for name in node.inputs if (table := _table(scene, frame, name, trail))]
    if not found:
        raise Unfollowed(f"is compiled and takes no table that is known: {TOKEN}, {PREFILL}")
    if len(found) > 1:
        raise Unfollowed(f"takes {len(found)} tables: {', '.join(v.name for v, *_ in found)}")
    value, kind, end = found[0]
    part = Part(encoding=kind.encoding, table=_spans(scene, value, kind, end))
    return Rotation(
        form=FORM,
        frame=frame,
        node=node,
        layers=_layers(scene, frame, node),
        sides=("query", "key"),
        interleaved=kind.interleaved,
        rotary_dim=2 * part.pairs,
        parts=(part,),
        trail=trail,
    )


def _table(
    scene: Scene, frame: Frame, name: str, trail: Trail
) -> tuple[Value, _Kind, int | None] | None:
    """The known constant behind an input of a node, and where a Slice ends it.

    None where there is none. The end is None where the length of the prompt decides.
    """
    passed = Trail()
    value = resolve(frame, name, passed)
    node = value.node
    sliced: Node | None = None
    if node is not None and (node.domain, node.op) == (STANDARD, "Slice"):
        passed.nodes.add((value.frame.body, node.index))
        slicing, sliced = value, node
        value = resolve(slicing.frame, node.input(0), passed)
    kind = _KINDS.get(value.name)
    if kind is None:
        return None
    end = _end(scene, slicing, sliced, kind) if sliced is not None else None
    if value.node is not None:
        passed.nodes.add((value.frame.body, value.node.index))
    trail.nodes.update(passed.nodes)
    trail.values.update(passed.values)
    return value, kind, end


def _end(scene: Scene, value: Value, node: Node, kind: _Kind) -> int | None:
    """The constant end of a Slice; None for one that the length of the prompt decides.

    Raises Unfollowed unless it takes the rows from position 0 on.
    """
    starts, ends, axes, steps = (
        scene.constants.integers(resolve(value.frame, node.input(i))) if node.input(i) else None
        for i in (1, 2, 3, 4)
    )
    if starts != (0,) or axes not in {(kind.rows,), (kind.rows - kind.rank,)}:
        raise Unfollowed(f"takes its table through {node.label}, which cuts other than rows 0 ..")
    if node.input(4) and steps != (1,):
        raise Unfollowed(f"takes its table through {node.label}, which leaves rows out")
    return ends[0] if ends else None


def _spans(scene: Scene, value: Value, kind: _Kind, end: int | None) -> TableSpans:
    tensor = value.tensor
    if tensor is None:
        raise Unfollowed(f"its table {value.name} is no constant of the graph")
    try:
        span = scene.spans.table(tensor, flat=kind.rank == 2)
    except Unfollowed as error:
        raise type(error)(f"its table {value.name} {error}") from error
    _check_shape(span, kind)
    rows = span.shape[kind.rows]
    stop = rows if end is None else rows_up_to(end, rows)
    if stop < 1:
        raise Unfollowed(f"its table {value.name} is cut to no row at all")
    return TableSpans(tensors=(span,), start=0, stop=stop)


def _check_shape(span: TensorSpan, kind: _Kind) -> None:
    if span.dtype != _DTYPE:
        raise Unfollowed(f"its table {span.name} has dtype {span.dtype}; it is {_DTYPE}")
    if kind.encoding == "hi-lo":
        fits = len(span.shape) == 3 and span.shape[0] == 2 and span.shape[2] % 4 == 0
        dims = "[2, rows, 4 * pairs]"
    else:
        fits, dims = span.shape[1] % 2 == 0, "[rows, 2 * pairs]"
    if not fits:
        raise Unfollowed(f"its table {span.name} has shape {list(span.shape)}; it is {dims}")


def _layers(scene: Scene, frame: Frame, node: Node) -> tuple[int, ...]:
    """The layers whose key caches a node takes; where it takes none, all that have attention."""
    fed = [value.name for name in node.inputs if (value := resolve(frame, name)).is_graph_input]
    named = {named_layer(name, scene.hints) for name in fed} - {None}
    if not named and scene.hints.layers is None:
        raise Unfollowed("is compiled, and no config says how many layers it stands for")
    return tuple(sorted(layer for layer in named if layer is not None)) or scene.hints.attending
