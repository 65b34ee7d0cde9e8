"""Table faults: known mistakes that no Rope can say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from packimport.rope.bands import yarn_attention_factor, yarn_factor
from packimport.rope.frequencies import frequencies
from packimport.rope.naming.baked import Baked
from packimport.rope.powers import inverse_powers
from packimport.rope.schedule import Rope

# Label, id of the mistake, what is baked.
Found = tuple[str, str, Baked]
TableFault = Callable[[Rope, int], "Iterator[Found]"]


def _long_list(rope: Rope, rows: int) -> Iterator[Found]:
    original = rope.original_max_position_embeddings
    if rope.type != "longrope" or original is None:
        return
    short, long = Baked.of(frequencies(rope)), Baked.of(frequencies(rope, original + 1))
    yield "longrope with the long list", "longrope-long", long
    if rows > original:
        both = Baked(short.inv_freq, short.attention_factor, then=(original, long))
        yield "longrope, the short table then the long one", "longrope-concatenated", both


def _at_length(rope: Rope, rows: int) -> Iterator[Found]:
    if rope.type != "dynamic" or rope.alpha is not None:
        return
    assert rope.factor is not None
    assert rope.max_position_embeddings is not None
    longest = rope.max_position_embeddings
    for length in dict.fromkeys((rows, int(rope.factor * longest))):
        if length > longest:
            baked = Baked.of(frequencies(rope, length))
            yield f"dynamic at length {length}", "dynamic-baked", baked


def _upside_down(rope: Rope, rows: int) -> Iterator[Found]:
    """As onnxruntime-genai 0.9.2 to 0.14.0 computes yarn: theta^(+i/d) in place of theta^(-i/d).

    The range is not rounded to whole pairs, and its original length is the
    model's longest, except for gpt-oss by 0.14.0.
    """
    if rope.type != "yarn" or rope.theta <= 1:
        return
    factor = yarn_factor(rope)
    lengths = (rope.max_position_embeddings, rope.original_max_position_embeddings)
    for length in dict.fromkeys(n for n in lengths if n is not None):
        rising = np.float32(1) / inverse_powers(rope.theta, rope.pairs, rope.rotary_dim)
        low, high = (
            rope.pairs * math.log(length / (turns * 2 * math.pi)) / math.log(rope.theta)
            for turns in (rope.beta_fast or 32, rope.beta_slow or 1)
        )
        if low < high:
            ramp = (np.arange(rope.pairs) - low) / (high - low)
            keep = (1 - np.clip(ramp, 0, 1)).astype(np.float32)
            inv_freq = rising / np.float32(factor) * (1 - keep) + rising * keep
            attention_factor = yarn_attention_factor(rope, factor)
            yield "yarn upside down", "yarn-upside-down", Baked(inv_freq, attention_factor)


def _exponents(rope: Rope, rows: int) -> Iterator[Found]:
    if rope.type == "default" and rope.rotary_dim < rope.head_dim:
        baked = Baked(inverse_powers(rope.theta, rope.pairs, rope.head_dim))
        yield "default with exponents over head_dim", "partial-exponents", baked


TABLE_FAULTS: tuple[TableFault, ...] = (_long_list, _at_length, _upside_down, _exponents)
