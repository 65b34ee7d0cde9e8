"""The stored reference: what transformers computed for the demo model."""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reference:
    """One forward pass over the demo's tokens.

    tokens:   int64 [512].
    logits:   float32 [512, 64], one row per position.
    inv_freq: float32 [16], transformers' frequencies for the declared schedule.
    made_by:  versions of what computed them.
    """

    tokens: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    inv_freq: npt.NDArray[np.float32]
    made_by: str


def load_reference() -> Reference:
    """The file that `make_reference.py` made, from the package's own data."""
    data = resources.files("packimport.demo").joinpath("reference.npz").read_bytes()
    return read_reference(data)


def read_reference(data: bytes) -> Reference:
    """The bytes of a reference.npz."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Reference(
            tokens=arrays["tokens"],
            logits=arrays["logits"],
            inv_freq=arrays["inv_freq"],
            made_by=str(arrays["made_by"]),
        )
