"""The known mistakes: what each is, and which exporters are known to make it.

Ranges name the first and the last release that was built and compared with
transformers. OGA is onnxruntime-genai's model builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Mistake:
    """One known mistake.

    id:        stable; the JSON report shows it.
    text:      what went wrong, one clause.
    exporters: which releases make it; "" where none is known to.
    """

    id: str
    text: str
    exporters: str = ""


def _table(*mistakes: Mistake) -> Mapping[str, Mistake]:
    return MappingProxyType({mistake.id: mistake for mistake in mistakes})


MISTAKES: Mapping[str, Mistake] = _table(
    Mistake(
        "llama3-lost",
        "the llama3 scaling is lost, the table is plain",
        "OGA 0.15 to 0.16 for Mistral and Qwen classes",
    ),
    Mistake(
        "llama3-original-max",
        "original_max_position_embeddings was taken from max_position_embeddings",
        "OGA 0.6.0 to 0.13.2; Ryzen AI 1.4 to 1.7.1 builders; AMD's builder 0.7.0.1",
    ),
    Mistake(
        "linear-lost",
        "the linear factor is lost, the table is plain",
        "OGA 0.6.0 to 0.13.2; 0.15.2 to 0.18.0 for Llama classes; AMD's builder 0.7.0.1",
    ),
    Mistake(
        "linear-elsewhere",
        "the linear factor of other layers divides this table too",
        "OGA 0.14.0 to 0.15.2 for Gemma 3 (its local table)",
    ),
    Mistake(
        "yarn-lost",
        "yarn is lost, the table is plain",
        "OGA 0.6.0 to 0.8.3, to 0.15.2 without beta_fast; 0.15.2 to 0.18.0 for Llama classes;"
        " AMD's builder 0.7.0.1",
    ),
    Mistake(
        "yarn-upside-down",
        "the frequencies rise, theta^(+i/d), with original_max_position_embeddings taken from"
        " max_position_embeddings",
        "OGA 0.9.2 to 0.13.2; 0.14.0 for gpt-oss (the original length is right there)",
    ),
    Mistake(
        "yarn-original-max",
        "original_max_position_embeddings was taken from max_position_embeddings",
        "OGA 0.9.2 to 0.13.2 for gpt-oss",
    ),
    Mistake(
        "yarn-not-truncated",
        "the ramp's range is not rounded to whole pairs",
        "OGA 0.14.0 to 0.18.0",
    ),
    Mistake(
        "longrope-lost",
        "both lists of longrope are lost, the table is plain",
    ),
    Mistake(
        "longrope-long",
        "the table is made with the long list, which counts beyond the original length only",
    ),
    Mistake(
        "longrope-concatenated",
        "the short table is followed by the long one, whose first row is position 0 again:"
        " right only where the graph shifts position ids by the original length",
        "OGA for DirectML, and for TRT-RTX 0.9.2 and 0.15.2 to 0.18.0",
    ),
    Mistake(
        "dynamic-baked",
        "the base of one length is baked in, the schedule no longer follows the length",
    ),
    Mistake("alpha-lost", "alpha is lost, the table is plain"),
    Mistake("proportional-lost", "every pair turns, the zero frequencies are lost"),
    Mistake("freq-factors-lost", "the divisors per pair are lost"),
    Mistake(
        "theta-lost",
        "theta is lost, 10000 took its place",
        "OGA 0.9.2 and 0.11.2 for configs saved by transformers 5; 0.6.0 to 0.14.0 for chatglm"
        " with rope_ratio",
    ),
    Mistake(
        "partial-lost",
        "partial_rotary_factor is lost, every entry of the head rotates",
        "OGA 0.9.2 to 0.15.2 for nemotron and phi configs saved by transformers 5",
    ),
    Mistake("partial-twice", "partial_rotary_factor was applied twice"),
    Mistake(
        "partial-exponents", "the exponents are divided by head_dim, not by the rotary dimension"
    ),
    Mistake("width", "the table is made for another rotary dimension"),
    Mistake("layers-swapped", "the table is that of other layers"),
    Mistake("attention-lost", "the attention factor is lost"),
    Mistake("attention-twice", "the attention factor was multiplied in twice"),
    Mistake(
        "attention-mscale",
        "mscale alone took the place of the attention factor",
        "OGA 0.14.0 to 0.18.0",
    ),
    Mistake(
        "attention-recomputed",
        "attention_factor was not read, the factor's own formula took its place",
        "OGA 0.14.0 to 0.18.0",
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
