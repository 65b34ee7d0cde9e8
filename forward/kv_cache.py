"""The past of one sequence: keys and values that are carried from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forward.genai_config import Decoder
from forward.session import Port, Session, Value
from packimport.errors import GraphError


@dataclass(frozen=True, slots=True)
class Slot:
    """One past of the graph: an input, and the output that continues it.

    shape: of an empty past, [1, heads, 0, head size].
    """

    past: str
    present: str
    dtype: str
    shape: tuple[int, ...]


def find_slots(session: Session, decoder: Decoder) -> tuple[Slot, ...]:
    """Every past that the graph takes, layer by layer; () for a graph without a cache.

    Raises GraphError for a past without its present, of a fixed length, or of
    another rank than [batch, heads, length, head size].
    """
    names = [
        (past.replace("%d", str(layer)), present.replace("%d", str(layer)))
        for layer in range(decoder.layers)
        for past, present in (
            (decoder.past_key, decoder.present_key),
            (decoder.past_value, decoder.present_value),
        )
    ]
    return tuple(
        _slot(session, decoder, session.inputs[past], present)
        for past, present in names
        if past in session.inputs
    )


def _slot(session: Session, decoder: Decoder, port: Port, present: str) -> Slot:
    place = f"{session.place}: input {port.name}"
    if present not in session.outputs:
        raise GraphError(
            "this past has no present", place=place, allowed=f"an output named {present}"
        )
    if len(port.shape) != 4:
        raise GraphError(
            "a past of an unknown layout",
            place=place,
            found=port.text(),
            allowed="[batch, heads, length, head size]",
        )
    batch, heads, length, head_size = port.shape
    if length is not None or batch not in (None, 1):
        raise GraphError(
            "a past of a fixed size can't be run yet",
            place=place,
            found=port.text(),
            allowed="an open length, and a batch that is open or 1",
        )
    shape = (1, heads or decoder.kv_heads, 0, head_size or decoder.head_size)
    return Slot(port.name, present, port.dtype, shape)


class GrowingCache:
    """A cache whose present, one step longer, is the next step's past.

    onnxruntime allocates each present; it is handed back without a copy.
    """

    def __init__(self, session: Session, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._past = {slot.past: session.empty(slot.shape, slot.dtype) for slot in slots}

    @property
    def feeds(self) -> Mapping[str, Value]:
        """The inputs that hold the past."""
        return self._past

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that continue it."""
        return tuple(slot.present for slot in self._slots)

    def advance(self, results: Mapping[str, Value]) -> None:
        """Take the presents of a step."""
        self._past = {slot.past: results[slot.present] for slot in self._slots}
