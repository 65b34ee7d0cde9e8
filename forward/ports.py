"""Ports: whether the inputs and outputs of a graph are such as can be fed and read."""

from __future__ import annotations

from collections.abc import Sequence

from forward.feeds import AXES
from forward.genai_config import Decoder
from forward.kv_cache import Slot
from forward.session import Port, Session
from forward.states import State
from packimport.errors import GraphError

_INTEGERS = ("int64", "int32")
_FLOATS = ("float32", "float16", "bfloat16")


def check_ports(
    session: Session, decoder: Decoder, slots: Sequence[Slot], states: Sequence[State]
) -> None:
    """Raises GraphError for an input that nothing feeds, and for unknown types or layouts."""
    plain = {decoder.input_ids, decoder.attention_mask, decoder.position_ids}
    pasts = {slot.past for slot in slots} | {state.past for state in states}
    for name, port in session.inputs.items():
        if name not in plain | pasts:
            raise GraphError(
                "forward-serve does not know how to feed this input",
                place=f"{session.place}: input {name}",
                found=port.text(),
                allowed=", ".join(sorted(plain)) + " and pasts",
            )
    for name in (decoder.input_ids, decoder.attention_mask, decoder.position_ids):
        if name in session.inputs:
            _check_integer_port(session, session.inputs[name], name == decoder.position_ids)
    for name, there in ((decoder.input_ids, session.inputs), (decoder.logits, session.outputs)):
        if name not in there:
            raise GraphError(
                "the graph lacks what genai_config.json names",
                place=session.place,
                found=", ".join(list(there)[:5]),
                allowed=name,
            )
    logits = session.outputs[decoder.logits]
    if len(logits.shape) != 3 or logits.dtype not in _FLOATS:
        raise GraphError(
            "logits of an unknown type or layout",
            place=f"{session.place}: output {decoder.logits}",
            found=logits.text(),
            allowed="float32, float16 or bfloat16 [batch, positions, vocab]",
        )


def _check_integer_port(session: Session, port: Port, is_positions: bool) -> None:
    shape = port.shape
    if is_positions and len(shape) == 3 and shape[0] == AXES:
        shape = shape[1:]
    batch, length = shape if len(shape) == 2 else (0, 0)
    if port.dtype not in _INTEGERS or batch not in (None, 1) or length is not None:
        axes = f", or [{AXES}, 1 or open, open]" if is_positions else ""
        raise GraphError(
            "this input has a type or shape that forward-serve can't feed yet",
            place=f"{session.place}: input {port.name}",
            found=port.text(),
            allowed=f"int64 or int32 [1 or open, open]{axes}",
        )
