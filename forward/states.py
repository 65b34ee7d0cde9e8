"""States: what layers without attention carry from step to step, of one size at any length.

The last entries that a short convolution looks back at (LFM2, Qwen 3.5), or the sums of
a linear attention (Qwen 3.5). They begin as zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from forward.genai_config import Decoder
from forward.session import Port, Session
from forward.wiring import Wiring
from packimport.errors import GraphError


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """One state of the graph: an input, and the output that is the next step's input.

    entries: the dims of a state [batch, …] behind the batch.
    """

    past: str
    present: str
    dtype: str
    entries: tuple[int, ...]

    def shape(self, batch: int) -> tuple[int, ...]:
        """Of the states of `batch` sequences."""
        return (batch, *self.entries)


def find_states(session: Session, decoder: Decoder, wiring: Wiring) -> tuple[State, ...]:
    """Every state that the graph takes, layer by layer; () for a graph of attention alone.

    Raises GraphError for a state without its present, of a size that is not fixed, such as
    one that keeps a window of several positions, or of nodes that are not known to carry it.
    """
    names = decoder.of_layers(
        (decoder.past_conv, decoder.present_conv),
        (decoder.past_recurrent, decoder.present_recurrent),
    )
    return tuple(
        _state(session, wiring, session.inputs[past], present)
        for past, present in names
        if past in session.inputs
    )


def _state(session: Session, wiring: Wiring, port: Port, present: str) -> State:
    place = f"{session.place}: input {port.name}"
    following = session.outputs.get(present)
    if following is None:
        raise GraphError(
            "this state has no present", place=place, allowed=f"an output named {present}"
        )
    batch, *dims = port.shape or (0,)
    entries = tuple(size for size in dims if size is not None)
    if batch not in (None, 1) or len(entries) < max(1, len(dims)):
        raise GraphError(
            "a state of an unknown layout",
            place=place,
            found=port.text(),
            allowed="[batch, …], of fixed sizes but for the batch",
        )
    if (following.dtype, following.shape[1:]) != (port.dtype, port.shape[1:]):
        raise GraphError(
            "a state that is not of its past's type and size",
            place=f"{session.place}: output {present}",
            found=following.text(),
            allowed=port.text(),
        )
    if wiring.carried.get(port.name) != present:
        raise GraphError(
            "a state of nodes that forward-serve does not know, so whether it is right after a"
            " prompt is not known",
            place=place,
            found=", ".join(wiring.readers.get(port.name, ())),
            allowed="one CausalConvWithState or LinearAttention that writes "
            f"{present}, or Concat, Conv and Slice of a short convolution",
        )
    return State(past=port.name, present=present, dtype=port.dtype, entries=entries)
