"""RoPE tables for tests of Ryzen AI packs, right and wrong, in numpy float64 from the formulas.

Formulas: RoFormer (arXiv 2104.09864); `apply_scaling` of meta-llama/llama-models for llama3;
YaRN (2309.00071) with the range as transformers 5.24.0 floors and ceils it; LongRoPE
(2402.13753). Frequencies are rounded to float32 once and angles are float32 products, as in
transformers, cos and sin are float64. Nothing here comes from packimport.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Tables = tuple[NDArray[Any], NDArray[Any]]


def default(pairs: int, theta: float) -> Doubles:
    """inv_freq, float64 [pairs]."""
    return np.asarray(theta ** -(np.arange(pairs) / pairs), np.float64)


def llama3(
    pairs: int, theta: float, factor: float, original: int, low: float = 1.0, high: float = 4.0
) -> Doubles:
    plain = default(pairs, theta)
    turns = original * plain / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - share) * plain / factor + share * plain


def yarn(
    pairs: int,
    theta: float,
    factor: float,
    original: int,
    *,
    fast: float = 32.0,
    slow: float = 1.0,
    truncate: bool = True,
) -> Doubles:
    def pair_of(turns: float) -> float:
        return 2 * pairs * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(fast), pair_of(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    last += 0.001 if first == last else 0
    slowed = np.clip((np.arange(pairs) - first) / (last - first), 0, 1)
    plain = default(pairs, theta)
    return plain / factor * slowed + plain * (1 - slowed)


def yarn_attention(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


def longrope(pairs: int, theta: float, divisors: Sequence[float]) -> Doubles:
    return default(pairs, theta) / np.asarray(divisors)


def longrope_attention(longest: int, original: int) -> float:
    return math.sqrt(1 + math.log(longest / original) / math.log(original))


def tables(inv_freq: Doubles, rows: int, *, attention: float = 1.0, scale: float = 1.0) -> Tables:
    """cos and sin, float64 [rows, pairs]; row r holds position r * scale."""
    positions = (np.arange(rows) * scale).astype(np.float32)
    angles = np.outer(positions, inv_freq.astype(np.float32)).astype(np.float64)
    return attention * np.cos(angles), attention * np.sin(angles)


@dataclass(frozen=True)
class Declared:
    """A schedule that a model declares.

    config:    what config.json says of it.
    inv_freq:  what is right, float64 [pairs].
    attention: the factor of cos and sin.
    """

    config: Mapping[str, Any]
    inv_freq: Doubles
    attention: float = 1.0
    long: Doubles | None = field(default=None)

    @property
    def pairs(self) -> int:
        return len(self.inv_freq)

    def right(self, rows: int) -> Tables:
        return tables(self.inv_freq, rows, attention=self.attention)


PAIRS = 32
LONGEST = 4096
ORIGINAL = 512
SHORT_DIVISORS = [1.0 + i / 64 for i in range(PAIRS)]
LONG_DIVISORS = [1.0 + i * i / 16 for i in range(PAIRS)]

LLAMA3 = Declared(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": LONGEST,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    },
    llama3(PAIRS, 500000.0, 32.0, ORIGINAL),
)
YARN = Declared(
    {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "max_position_embeddings": LONGEST,
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": LONGEST // 4,
        },
    },
    yarn(PAIRS, 1000000.0, 4.0, LONGEST // 4),
    yarn_attention(4.0),
)
PLAIN = Declared(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": LONGEST,
        "rope_theta": 10000.0,
    },
    default(PAIRS, 10000.0),
)
# The frequencies are those of its full layers; theta of the others is rope_local_base_freq.
GEMMA = Declared(
    {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "max_position_embeddings": 4096,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    default(32, 1000000.0),
)
LONGROPE = Declared(
    {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "max_position_embeddings": LONGEST,
        "original_max_position_embeddings": ORIGINAL,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": SHORT_DIVISORS,
            "long_factor": LONG_DIVISORS,
        },
    },
    longrope(PAIRS, 10000.0, SHORT_DIVISORS),
    longrope_attention(LONGEST, ORIGINAL),
    long=longrope(PAIRS, 10000.0, LONG_DIVISORS),
)


def theta_of(declared: Declared) -> float:
    return float(declared.config["rope_theta"])


def plain_instead(declared: Declared, rows: int) -> Tables:
    """The scaling lost, the attention factor as well."""
    return tables(default(declared.pairs, theta_of(declared)), rows)


def llama3_with_the_longest_as_original(declared: Declared, rows: int) -> Tables:
    """What OGA 0.6.0 to 0.13.2 bakes: original_max taken from max_position_embeddings."""
    block, longest = declared.config["rope_scaling"], declared.config["max_position_embeddings"]
    inv_freq = llama3(declared.pairs, theta_of(declared), block["factor"], longest)
    return tables(inv_freq, rows)


def without_attention_factor(declared: Declared, rows: int) -> Tables:
    return tables(declared.inv_freq, rows)


def doubled_positions(declared: Declared, rows: int) -> Tables:
    return tables(declared.inv_freq, rows, attention=declared.attention, scale=2.0)


def half_precision_angles(declared: Declared, rows: int) -> Tables:
    """Positions, frequencies and their products rounded to float16."""
    positions = np.arange(rows).astype(np.float16)
    angles = np.multiply.outer(positions, declared.inv_freq.astype(np.float16))
    assert angles.dtype == np.float16
    wide = angles.astype(np.float64)
    return declared.attention * np.cos(wide), declared.attention * np.sin(wide)


def negated_sin(declared: Declared, rows: int) -> Tables:
    cos, sin = declared.right(rows)
    return cos, -sin


def swapped(declared: Declared, rows: int) -> Tables:
    cos, sin = declared.right(rows)
    return sin, cos


def with_nan(declared: Declared, rows: int) -> Tables:
    cos, sin = declared.right(rows)
    cos[rows // 2, 3] = np.nan
    return cos, sin


Fault = Callable[[Declared, int], Tables]
# The schedule that is declared, and what is baked instead.
FAULTS: Mapping[str, tuple[Declared, Fault]] = {
    "plain": (LLAMA3, plain_instead),
    "original is the longest": (LLAMA3, llama3_with_the_longest_as_original),
    "yarn lost": (YARN, plain_instead),
    "no attention factor": (YARN, without_attention_factor),
    "positions doubled": (LLAMA3, doubled_positions),
    "half precision angles": (LLAMA3, half_precision_angles),
    "sin negated": (LLAMA3, negated_sin),
    "swapped": (LLAMA3, swapped),
    "NaN": (LLAMA3, with_nan),
}
