"""Schedules that scale every pair alike, or not at all.

Each function takes a valid Rope and the length of the call, and returns the
float32 frequencies and the attention factor. `frequencies.frequencies` is the
door: it validates, and freezes the result.
"""

from __future__ import annotations

import numpy as np

from packimport.rope.powers import Float32s, inverse_powers
from packimport.rope.schedule import Rope


def default(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """theta^(-2i/d), divided by `freq_factors` where they are given.

    Source: Su et al., RoFormer (arXiv 2104.09864), section 3.4.2. The divisors
    are those of a GGUF file's `rope_freqs.weight`, as llama.cpp applies them.
    """
    plain = inverse_powers(rope.theta, rope.pairs, rope.rotary_dim)
    if rope.freq_factors is not None:
        plain /= np.array(rope.freq_factors, dtype=np.float32)
    return plain, 1.0


def linear(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """The plain frequencies over `factor`, which is to divide every position by it.

    Source: Chen et al., Position Interpolation (arXiv 2306.15595); transformers
    5.24.0 divides the frequencies, and so do we.
    """
    assert rope.factor is not None
    plain = inverse_powers(rope.theta, rope.pairs, rope.rotary_dim)
    return plain / np.float32(rope.factor), 1.0


def proportional(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """Plain frequencies of the whole head for the first part of it, then zeros.

    Of head_dim/2 pairs, int(partial_rotary_factor * head_dim // 2) turn; a pair
    of frequency zero stays as it is. Unlike a partial rotation the exponents
    are divided by head_dim. Source: transformers 5.24.0 (Gemma 4).
    """
    assert rope.partial_rotary_factor is not None
    turning = int(rope.partial_rotary_factor * rope.head_dim // 2)
    result = np.zeros(rope.pairs, dtype=np.float32)
    result[:turning] = inverse_powers(rope.theta, turning, rope.head_dim)
    factor = 1.0 if rope.factor is None else rope.factor
    return result / np.float32(factor), 1.0
