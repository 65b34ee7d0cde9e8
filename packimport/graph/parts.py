"""Parts: cos and sin of a node, put together from the strands behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packimport.graph.frame import Trail, Value
from packimport.graph.positions import Positions
from packimport.graph.rotation import Part, Scene, split_rows
from packimport.graph.site import TableSpans, TensorSpan, Waves
from packimport.graph.strand import Strand
from packimport.graph.trace import Unfollowed


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How a node takes cos and sin.

    layout:    how the entries of a row lie: "pairs", "halves" or "repeated".
    per_token: whether it takes one row per token; else a table of which it picks rows.
    from_zero: whether the first token of a call is position 0, as without a key cache.
    """

    layout: str
    per_token: bool
    from_zero: bool = False


def read_parts(scene: Scene, cos: Value, sin: Value, wanted: Wanted, trail: Trail) -> list[Part]:
    """The constants behind cos and sin. Raises Unfollowed where they are not understood."""
    strands = []
    for what, value in (("cos", cos), ("sin", sin)):
        try:
            found = scene.strands.read(value, trail)
        except Unfollowed as error:
            raise Unfollowed(f"its {what} table {error}") from error
        strands.append({strand.length: strand for strand in found})
    if strands[0].keys() != strands[1].keys():
        raise Unfollowed("its cos and sin are chosen by different lengths")
    return [
        part
        for length, strand in strands[0].items()
        for part in _parts(scene, strand, strands[1][length], wanted)
    ]


def _parts(scene: Scene, cos: Strand, sin: Strand, wanted: Wanted) -> tuple[Part, ...]:
    if cos.mrope != sin.mrope:
        raise Unfollowed("its cos and sin have different sections of positions in three axes")
    if (cos.tensor is None) != (sin.tensor is None):
        raise Unfollowed("of its cos and sin one is stored and one computed")
    if cos.tensor is None:
        return (_computed(scene, cos, sin, wanted),)
    return _stored(scene, cos, sin, wanted)


def _stored(scene: Scene, cos: Strand, sin: Strand, wanted: Wanted) -> tuple[Part, ...]:
    joint = _joint(cos, sin)
    spans = []
    for what, strand in (("cos", cos), ("sin", sin)):
        assert strand.tensor is not None
        try:
            spans.append(scene.spans.table(strand.tensor, flat=not wanted.per_token))
        except Unfollowed as error:
            raise type(error)(f"its {what} table {error}") from error
    cos_span, sin_span = spans
    if (cos_span.dtype, cos_span.shape) != (sin_span.dtype, sin_span.shape):
        raise Unfollowed(
            f"its tables differ: cos is {cos_span.dtype} {list(cos_span.shape)},"
            f" sin is {sin_span.dtype} {list(sin_span.shape)}"
        )
    if (cos.positions, cos.layout) != (sin.positions, sin.layout) or (
        not joint and cos.side != sin.side
    ):
        raise Unfollowed("its cos and sin are taken from their tables in different ways")
    if not wanted.per_token and cos.positions is not None:
        raise Unfollowed("its tables are picked by position twice")
    if wanted.per_token and not _starts_right(cos.positions, wanted):
        raise Unfollowed("its tables are not picked by position")
    if cos.rows != sin.rows:
        raise Unfollowed("its cos and sin are cut to different numbers of rows")
    rows = cos.rows or int(np.prod(cos_span.shape[:-1]))
    length = cos.length
    stop = rows if length is None or length.long else min(rows, length.limit)
    part = Part(
        encoding=_joined(joint, cos, wanted) if joint else _encoding(cos, wanted),
        length=length,
        table=TableSpans(tensors=tuple(spans[:1] if joint else spans), start=0, stop=stop),
        mrope=cos.mrope or None,
    )
    return shifted(part, cos.positions)


def shifted(part: Part, positions: Positions | None) -> tuple[Part, ...]:
    """A part whose positions may be shifted to a second table behind the first."""
    if positions is None or positions.shift is None:
        return (part,)
    rows, switch = positions.shift
    if not switch.above:
        raise Unfollowed("its positions are shifted for short calls")
    return split_rows(part, rows, switch.limit)


def _joint(cos: Strand, sin: Strand) -> str:
    """How cos and sin lie in one table, a half of each row each; "" where they have two."""
    assert cos.tensor is not None
    assert sin.tensor is not None
    sides = {(0, 1): "cos-sin", (1, 0): "sin-cos"}
    if cos.side is None or sin.side is None or cos.tensor.path != sin.tensor.path:
        return ""
    return sides.get((cos.side, sin.side), "")


def _joined(joint: str, strand: Strand, wanted: Wanted) -> str:
    if strand.layout != wanted.layout:
        raise Unfollowed(f"its tables lie in {strand.layout}, and it takes {wanted.layout}")
    return joint


def _encoding(strand: Strand, wanted: Wanted) -> str:
    """How the stored rows lie: what is doubled behind the table is stored once."""
    if strand.side is not None:
        if strand.side != 0:
            raise Unfollowed("takes the second half of a row of its tables")
        if strand.layout != wanted.layout or strand.layout not in {"pairs", "halves"}:
            raise Unfollowed("takes half of a row that does not lie in halves")
        return "halves"
    if strand.layout == wanted.layout:
        return "pairs"
    if strand.layout != "pairs":
        raise Unfollowed(f"its tables lie in {strand.layout}, and it takes {wanted.layout}")
    return wanted.layout


def _starts_right(positions: Positions | None, wanted: Wanted) -> bool:
    """Whether rows picked so are those of the tokens."""
    if positions is None or positions.start == "zero":
        return wanted.from_zero
    return True


def _computed(scene: Scene, cos: Strand, sin: Strand, wanted: Wanted) -> Part:
    first, second = cos.angles, sin.angles
    assert first is not None
    assert second is not None
    if (cos.function, sin.function) != ("Cos", "Sin"):
        raise Unfollowed(f"takes {cos.function} as its cos and {sin.function} as its sin")
    assert first.values is not None
    assert second.values is not None
    if (first.values.tolist(), first.dtype, first.growth) != (
        second.values.tolist(),
        second.dtype,
        second.growth,
    ):
        raise Unfollowed("computes cos and sin from different frequencies")
    if not cos.layout == sin.layout == wanted.layout:
        raise Unfollowed(f"its cos and sin lie in {cos.layout}, and it takes {wanted.layout}")
    for angles in (first, second):
        if wanted.per_token and not _starts_right(angles.positions, wanted):
            raise Unfollowed("computes cos and sin of positions that start anew at each call")
        if not wanted.per_token and (angles.positions is None or angles.positions.start != "zero"):
            raise Unfollowed("takes a table by row, and cos and sin are computed by token")
    span = scene.spans.frequencies(first.tensor) if first.tensor is not None else None
    return Part(
        encoding="frequencies",
        length=cos.length,
        mrope=cos.mrope or None,
        waves=Waves(
            values=tuple(first.values.tolist()),
            span=span,
            dtype=first.dtype,
            cos_factor=_product(cos),
            sin_factor=_product(sin),
            factors=_factors(scene, cos, sin),
            trig=(cos.label, sin.label),
            growth=first.growth,
        ),
    )


def _product(strand: Strand) -> float:
    return float(np.prod([factor.value for factor in strand.factors]))


def _factors(scene: Scene, cos: Strand, sin: Strand) -> tuple[TensorSpan, ...]:
    """The constants that hold the factor of cos and of sin, where each has one of its own."""
    if not len(cos.factors) == len(sin.factors) == 1:
        return ()
    spans = []
    for strand in (cos, sin):
        at = strand.factors[0].at
        # Scalars are often one constant for many nodes.
        takers = at.frame.body.consumers.get(at.name, [])
        nodes = [at.frame.body.node(index) for index in takers]
        tensor = at.tensor
        if tensor is None or any(node.op != "Mul" for node in nodes) or len(nodes) > 2:
            return ()
        span = scene.spans.frequencies(tensor)
        if span is None:
            return ()
        spans.append(span)
    return tuple(dict.fromkeys(spans))
