"""Ports: whether the inputs and outputs of a graph are such as can be fed and read."""

from __future__ import annotations

from collections.abc import Sequence

from forward.genai_config import Decoder
from forward.kv_cache import Slot
from forward.session import Port, Session
from packimport.errors import GraphError

_INTEGERS = ("int64", "int32")
_FLOATS = ("float32", "float16", "bfloat16")


def check_ports(session: Session, decoder: Decoder, slots: Sequence[Slot]) -> None:
    """Raises GraphError for an input that nothing feeds, and for unknown types or layouts."""
    known = {decoder.input_ids, decoder.attention_mask, decoder.position_ids}
    known |= {slot.past for slot in slots}
    for name, port in session.inputs.items():
        if name not in known:
            raise GraphError(
                "forward-serve does not know how to feed this input",
                place=f"{session.place}: input {name}",
                found=port.text(),
                allowed=", ".join(sorted(known - {slot.past for slot in slots})) + " and pasts",
            )
    for name in (decoder.input_ids, decoder.attention_mask, decoder.position_ids):
        if name in session.inputs:
            _check_integer_port(session, session.inputs[name])
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


def _check_integer_port(session: Session, port: Port) -> None:
    batch, length = port.shape if len(port.shape) == 2 else (0, 0)
    if port.dtype not in _INTEGERS or batch not in (None, 1) or length is not None:
        raise GraphError(
            "this input has a type or shape that forward-serve can't feed yet",
            place=f"{session.place}: input {port.name}",
            found=port.text(),
            allowed="int64 or int32 [1 or open, open]",
        )
