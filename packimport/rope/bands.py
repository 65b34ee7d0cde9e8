"""Schedules that scale slow pairs and leave fast ones: llama3 and yarn.

Every step is rounded to float32 in the order of transformers 5.24.0: another
order of the same formula is up to 41 ulp away.
"""

from __future__ import annotations

import math

import numpy as np

from packimport.rope.powers import Float32s, inverse_powers, powers
from packimport.rope.schedule import Rope


def llama3(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """Frequencies by wavelength: fast ones as they are, slow ones over `factor`, a blend between.

    The bounds are original_max_position_embeddings over high_freq_factor and
    over low_freq_factor. Source: transformers 5.24.0 (Llama 3.1).
    """
    assert rope.factor is not None
    assert rope.original_max_position_embeddings is not None
    assert rope.low_freq_factor is not None
    assert rope.high_freq_factor is not None
    one, factor = np.float32(1), np.float32(rope.factor)
    original = np.float32(rope.original_max_position_embeddings)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    plain = inverse_powers(rope.theta, rope.pairs, rope.rotary_dim)
    # torch divides a number by a tensor as the tensor's reciprocal times the number.
    wavelength = (one / plain) * np.float32(2 * math.pi)
    slow = wavelength > np.float32(rope.original_max_position_embeddings / low)
    fast = wavelength < np.float32(rope.original_max_position_embeddings / high)
    scaled = np.where(slow, plain / factor, plain)
    share = ((one / wavelength) * original - np.float32(low)) / np.float32(high - low)
    blend = (one - share) * scaled / factor + share * scaled
    return np.where(slow | fast, scaled, blend), 1.0


def yarn(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """A ramp over the pairs from the plain frequencies to those over `factor`.

    Source: Peng et al., YaRN (arXiv 2309.00071), as transformers 5.24.0
    computes it: the ramp's upper bound is d - 1, not d/2 - 1.
    """
    factor = yarn_factor(rope)
    low, high = yarn_range(rope)
    one = np.float32(1)
    power = powers(rope.theta, rope.pairs, rope.rotary_dim)
    steps = np.arange(rope.pairs, dtype=np.float32)
    ramp = np.clip((steps - np.float32(low)) / np.float32(high - low), 0, 1)
    keep = one - ramp
    scaled = one / (np.float32(factor) * power)
    result = scaled * (one - keep) + (one / power) * keep
    return result, yarn_attention_factor(rope, factor)


def yarn_factor(rope: Rope) -> float:
    """`factor`, or where it is null max_position_embeddings over the original length."""
    if rope.factor is not None:
        return rope.factor
    assert rope.max_position_embeddings is not None
    assert rope.original_max_position_embeddings is not None
    return rope.max_position_embeddings / rope.original_max_position_embeddings


def yarn_range(rope: Rope) -> tuple[float, float]:
    """The first and the last pair of the ramp, in pairs, float64."""
    assert rope.original_max_position_embeddings is not None
    original, d = rope.original_max_position_embeddings, rope.rotary_dim

    def pair_of(turns: float) -> float:
        """The pair that turns so many times within the original length."""
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = pair_of(32 if rope.beta_fast is None else rope.beta_fast)
    high = pair_of(1 if rope.beta_slow is None else rope.beta_slow)
    if rope.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    return low, high + 0.001 if low == high else high


def yarn_attention_factor(rope: Rope, factor: float) -> float:
    """What multiplies cos and sin: given, or from both mscales, or from the factor."""
    if rope.attention_factor is not None:
        return float(rope.attention_factor)
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(factor, rope.mscale) / _mscale(factor, rope.mscale_all_dim)
    return _mscale(factor, 1)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
