"""Schedules that depend on the length of the call: dynamic and longrope."""

from __future__ import annotations

import math

import numpy as np

from packimport.errors import ScheduleError
from packimport.rope.powers import FLOAT32_MAX, Float32s, inverse_powers, powers
from packimport.rope.schedule import Rope


def dynamic(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """Plain frequencies of a base that grows with the call: see `dynamic_base`."""
    base = dynamic_base(rope, seq_len)
    if base > FLOAT32_MAX:
        key = "factor" if rope.alpha is None else "alpha"
        raise ScheduleError(
            key, "the scaled base leaves float32", found=base, allowed=f"up to {FLOAT32_MAX:g}"
        )
    return inverse_powers(base, rope.pairs, rope.rotary_dim), 1.0


def dynamic_base(rope: Rope, seq_len: int | None) -> float:
    """The base of a call of `seq_len` positions, float64.

    theta while the call fits max_position_embeddings (and where seq_len is
    None), then theta * (factor * seq_len / max - (factor - 1))^(d/(d-2)).
    With `alpha` (Hunyuan) the base is theta * alpha^(d/(d-2)) at any length and
    `factor` counts for nothing. Source: transformers 5.24.0.
    """
    growth = rope.rotary_dim / (rope.rotary_dim - 2)
    if rope.alpha is not None:
        return float(rope.theta * rope.alpha**growth)
    assert rope.factor is not None
    assert rope.max_position_embeddings is not None
    longest = rope.max_position_embeddings
    length = longest if seq_len is None else max(seq_len, longest)
    return float(rope.theta * ((rope.factor * length / longest) - (rope.factor - 1)) ** growth)


def longrope(rope: Rope, seq_len: int | None) -> tuple[Float32s, float]:
    """Plain frequencies over a list: `long_factor` beyond the original length, else `short_factor`.

    Source: Ding et al., LongRoPE (arXiv 2402.13753), as transformers 5.24.0
    computes it.
    """
    assert rope.short_factor is not None
    assert rope.long_factor is not None
    long = is_long(rope, seq_len)
    divisors = np.array(rope.long_factor if long else rope.short_factor, dtype=np.float32)
    power = powers(rope.theta, rope.pairs, rope.rotary_dim)
    return np.float32(1) / (divisors * power), longrope_attention_factor(rope, long)


def is_long(rope: Rope, seq_len: int | None) -> bool:
    """Whether a longrope call of `seq_len` positions takes the long list; None does not."""
    assert rope.original_max_position_embeddings is not None
    return seq_len is not None and seq_len > rope.original_max_position_embeddings


def longrope_attention_factor(rope: Rope, long: bool) -> float:
    """What multiplies cos and sin.

    PhiMoE states it per list (`short_mscale`, `long_mscale`). Else it is given,
    or sqrt(1 + ln f / ln original) with f the factor, or where that is absent
    max_position_embeddings over the original length; 1 when f is at most 1.
    """
    mscale = rope.long_mscale if long else rope.short_mscale
    given = rope.attention_factor if mscale is None else mscale
    if given is not None:
        return float(given)
    original = rope.original_max_position_embeddings
    assert original is not None
    factor = rope.factor
    if factor is None:
        assert rope.max_position_embeddings is not None
        factor = rope.max_position_embeddings / original
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
