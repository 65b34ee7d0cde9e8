"""The known mistakes: what each is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Mistake:
    """One known mistake.

    id:   stable; the JSON report shows it.
    text: what went wrong, one clause.
    """

    id: str
    text: str


def _table(*mistakes: Mistake) -> Mapping[str, Mistake]:
    return MappingProxyType({mistake.id: mistake for mistake in mistakes})


MISTAKES: Mapping[str, Mistake] = _table(
    Mistake("llama3-lost", "the llama3 scaling is lost, the table is plain"),
    Mistake(
        "llama3-original-max",
        "original_max_position_embeddings was taken from max_position_embeddings",
    ),
    Mistake("linear-lost", "the linear factor is lost, the table is plain"),
    Mistake("linear-elsewhere", "the linear factor of other layers divides this table too"),
    Mistake("yarn-lost", "yarn is lost, the table is plain"),
    Mistake(
        "yarn-upside-down",
        "the frequencies rise, theta^(+i/d), with original_max_position_embeddings taken"
        " from max_position_embeddings",
    ),
    Mistake(
        "yarn-original-max",
        "original_max_position_embeddings was taken from max_position_embeddings",
    ),
    Mistake("yarn-not-truncated", "the ramp's range is not rounded to whole pairs"),
    Mistake("longrope-lost", "both lists of longrope are lost, the table is plain"),
    Mistake(
        "longrope-long",
        "the table is made with the long list, which counts beyond the original length only",
    ),
    Mistake(
        "longrope-concatenated",
        "the short table is followed by the long one, whose first row is position 0"
        " again: right only where the graph shifts position ids by the original length",
    ),
    Mistake(
        "dynamic-baked",
        "the base of one length is baked in, the schedule no longer follows the length",
    ),
    Mistake("alpha-lost", "alpha is lost, the table is plain"),
    Mistake("proportional-lost", "every pair turns, the zero frequencies are lost"),
    Mistake("freq-factors-lost", "the divisors per pair are lost"),
    Mistake("theta-lost", "theta is lost, 10000 took its place"),
    Mistake("partial-lost", "partial_rotary_factor is lost, every entry of the head rotates"),
    Mistake("partial-twice", "partial_rotary_factor was applied twice"),
    Mistake(
        "partial-exponents",
        "the exponents are divided by head_dim, not by the rotary dimension",
    ),
    Mistake("width", "the table is made for another rotary dimension"),
    Mistake("layers-swapped", "the table is that of other layers"),
    Mistake("attention-lost", "the attention factor is lost"),
    Mistake("attention-twice", "the attention factor was multiplied in twice"),
    Mistake("attention-mscale", "mscale alone took the place of the attention factor"),
    Mistake(
        "attention-recomputed",
        "attention_factor was not read, the factor's own formula took its place",
    ),
    Mistake("positions-scaled", "every position was multiplied"),
    Mistake("rows-shifted", "row 0 is not position 0"),
    Mistake("rows-truncated", "rows were never filled"),
    Mistake("rows-changed", "some rows hold other values"),
    Mistake("rows-not-finite", "the table holds NaN or infinity"),
    Mistake("rounded", "the angles were computed in half precision"),
    Mistake("sin-negated", "the rotation runs backwards"),
    Mistake("cos-sin-swapped", "cos and sin are in each other's place"),
    Mistake("pairs-repeated", "each frequency is stored twice in a row"),
    Mistake("pairs-permuted", "the pairs lie in another order"),
)
