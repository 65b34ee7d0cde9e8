"""Carriers: the nodes that read a state and write the one that follows it."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.body import Body
from packimport.graph.constants import Constants
from packimport.graph.frame import Frame, resolve
from packimport.graph.node import MICROSOFT, STANDARD, Node
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.spans import Spans

# com.microsoft's, by which a chunk behind a past is what its tokens are one by one ─▶ the
# input of the past. Their second output is the present.
_OPS = {"CausalConvWithState": 3, "LinearAttention": 3}
_LENGTH = 2  # the axis of [batch, channels, length]


def find_carried(file: OnnxFile) -> dict[str, str]:
    """Past ─▶ present of each state whose nodes take any number of tokens behind it.

    They are ops of onnxruntime, or the short convolution of plain ops that
    onnxruntime-genai 0.14 and 0.15 write for LFM2.
    """
    body, constants = file.main, Constants(file, Spans(file))
    return {**dict(_by_ops(body)), **dict(_by_windows(body, constants))}


def readers(body: Body, name: str) -> tuple[str, ...]:
    """The types of the ops that take a value."""
    return tuple(sorted({body.node(index).op for index in body.consumers.get(name, ())}))


def _by_ops(body: Body) -> Iterator[tuple[str, str]]:
    for op, index in _OPS.items():
        for node in body.nodes(MICROSOFT, op):
            past, outputs = node.input(index), node.outputs
            whole = not node.integer("state_window", 0) and len(outputs) > 1
            if whole and body.is_fed(past) and len(body.consumers[past]) == 1:
                yield past, outputs[1]


def _by_windows(body: Body, constants: Constants) -> Iterator[tuple[str, str]]:
    """States behind which a Concat puts what is new, for a Conv; the present is its end."""
    for node in body.nodes(STANDARD, "Concat"):
        past = node.input(0)
        if not body.is_fed(past) or len(node.inputs) != 2 or node.integer("axis", 0) != _LENGTH:
            continue
        takers = [body.node(index) for index in body.consumers.get(node.outputs[0], ())]
        ends = [taker for taker in takers if _is_end(taker, body, constants)]
        others = [taker for taker in takers if taker not in ends]
        alone = len(body.consumers[past]) == 1 and len(ends) == 1
        if alone and all(_slides(taker) for taker in others):
            yield past, ends[0].outputs[0]


def _is_end(node: Node, body: Body, constants: Constants) -> bool:
    """Whether a Slice keeps the last entries along the length, up to the end."""
    if (node.domain, node.op, len(node.inputs)) != (STANDARD, "Slice", 4):
        return False
    frame = Frame(body, {})
    starts, ends, axes = (
        constants.integers(resolve(frame, node.input(index))) or (0, 0) for index in (1, 2, 3)
    )
    # A step of another size would be a fifth input; 2^31 and more stand for the end.
    return len(starts) == 1 and starts[0] < 0 and axes == (_LENGTH,) and ends[0] >= 2**31 - 1


def _slides(node: Node) -> bool:
    """Whether it is a Conv without padding, of which each row looks at its own window."""
    plain = (node.domain, node.op) == (STANDARD, "Conv") and not node.text("auto_pad")
    return plain and not any(node.integers("pads") or ())
