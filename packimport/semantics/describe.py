"""Descriptions: a Rope as one short line."""

from __future__ import annotations

from packimport.rope.fields import FIELDS
from packimport.rope.schedule import Rope

_SHORT = {"low_freq_factor": "low", "high_freq_factor": "high"}
_ORDER = (
    "factor",
    "alpha",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "short_mscale",
    "long_mscale",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)


def describe(rope: Rope | None) -> str:
    """`rope` as text, such as `llama3 (theta 500000, factor 32, low 1, high 4, ...)`.

    Lists are left out; None, a layer without RoPE, is `no RoPE`.
    """
    if rope is None:
        return "no RoPE"
    parts = [f"theta {number(rope.theta)}"]
    fields = FIELDS[rope.type].required | FIELDS[rope.type].optional
    for field in _ORDER:
        value = getattr(rope, field)
        if field in fields and value is not None:
            parts.append(f"{_SHORT.get(field, field)} {number(value)}")
    if rope.rotary_dim != rope.head_dim:
        parts.append(f"{rope.rotary_dim} of {rope.head_dim} entries")
    return f"{rope.type} ({', '.join(parts)})"


def number(value: float | bool) -> str:
    """A number without a needless `.0`, in full precision."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if value == int(value) else repr(value)
