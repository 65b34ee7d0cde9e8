"""Feeds: what a step puts in beside the past: ids, mask and positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forward.dump import Tokens
from forward.genai_config import Decoder
from forward.session import Session, Value

Array = npt.NDArray[np.generic]
# Of M-RoPE's positions: time, height and width.
AXES = 3


class Feeds:
    """The inputs of one sequence, step by step.

    Where the graph counts its mask and no more, a single token always comes with a mask of
    one length, written in place behind what was there: onnxruntime then sees the same
    shapes at every step, and nothing is bound again.
    """

    def __init__(self, session: Session, decoder: Decoder, length: int | None = None) -> None:
        """length: of the mask of a single token; None where it must be the sequence's own."""
        self._session = session
        self._decoder = decoder
        self._length = length
        self._arrays: dict[str, Array] = {}
        self._values: dict[str, Value] = {}
        self._marked = 0

    def step(self, tokens: Tokens, start: int) -> dict[str, Value]:
        """The inputs for `tokens`, int64 [count], at the positions from `start` on."""
        stop = start + len(tokens)
        if self._length is not None and len(tokens) == 1 and stop <= self._length:
            return self._single(tokens[0], start)
        mask = np.ones((1, stop), np.int64)
        return self._made(tokens[None], mask, np.arange(start, stop)[None])[1]

    def _single(self, token: np.int64, position: int) -> dict[str, Value]:
        decoder = self._decoder
        if not self._values:
            assert self._length is not None
            one = np.zeros((1, 1), np.int64)
            mask = np.zeros((1, self._length), np.int64)
            self._arrays, self._values = self._made(one, mask, one)
        written = (
            (decoder.input_ids, slice(None), token),
            (decoder.position_ids, slice(None), position),
            (decoder.attention_mask, slice(self._marked, position + 1), 1),
        )
        for name, columns, entry in written:
            if name in self._arrays:
                self._arrays[name][..., columns] = entry
        self._marked = position + 1
        return self._values

    def _made(
        self, ids: Array, mask: Array, positions: Array
    ) -> tuple[dict[str, Array], dict[str, Value]]:
        decoder, session = self._decoder, self._session
        arrays = arrays_of(session, decoder, ids, mask, positions)
        return arrays, {name: session.value(array) for name, array in arrays.items()}


def arrays_of(
    session: Session, decoder: Decoder, ids: Array, mask: Array, positions: Array
) -> dict[str, Array]:
    """New arrays for those of the inputs that the graph has, from int64 [batch, length] each.

    Positions in three axes, [3, batch, length], are those of a text: the same in each.
    """
    made = {
        decoder.input_ids: ids,
        decoder.attention_mask: mask,
        decoder.position_ids: positions,
    }
    ports = {name: port for name in made if (port := session.inputs.get(name)) is not None}
    if len(getattr(ports.get(decoder.position_ids), "shape", ())) == 3:
        made[decoder.position_ids] = np.broadcast_to(positions, (AXES, *positions.shape))
    return {name: np.array(made[name], dtype=port.dtype, order="C") for name, port in ports.items()}
