"""Labels: a schedule as a short text, beside what is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from packimport.rope.schedule import Rope

# The fields that make a table, per type, in the order in which a label names them.
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": ("theta", "freq_factors"),
        "linear": ("theta", "factor"),
        "dynamic": ("theta", "factor", "max_position_embeddings", "alpha"),
        "llama3": (
            "theta",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
        "yarn": (
            "theta",
            "factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "truncate",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
        ),
        "longrope": (
            "theta",
            "short_factor",
            "long_factor",
            "original_max_position_embeddings",
            "factor",
            "attention_factor",
            "short_mscale",
            "long_mscale",
        ),
        "proportional": ("theta", "partial_rotary_factor", "factor"),
    }
)


def label(rope: Rope, declared: Rope | None) -> str:
    """`rope` by its type, and by the fields in which it differs from `declared`.

    Where the types differ, theta is named if it differs and every other field;
    without a declaration every field.
    """
    parts = list(_parts(rope, declared))
    return f"{rope.type} with {', '.join(parts)}" if parts else rope.type


def _parts(rope: Rope, declared: Rope | None) -> Iterator[str]:
    if declared is not None and rope.rotary_dim != declared.rotary_dim:
        yield f"rotary_dim {rope.rotary_dim}"
    same_type = declared is not None and declared.type == rope.type
    for field in FIELDS[rope.type]:
        value = getattr(rope, field)
        theirs = getattr(declared, field, None) if same_type or field == "theta" else None
        if value is None and theirs is not None:
            yield f"no {field}"
        elif value is not None and value != theirs:
            yield f"other {field}" if isinstance(value, tuple) else f"{field} {number(value)}"


def number(value: object) -> str:
    """A value of a field as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.10g}"
    return str(value)


def scaled(scale: float) -> str:
    """The text for positions that were multiplied: "positions scaled by 1/4"."""
    parts = 1 / scale
    if scale < 1 and abs(parts - round(parts)) < 1e-9 * parts:
        return f"positions scaled by 1/{round(parts)}"
    return f"positions scaled by {number(scale)}"


def joined(labels: tuple[str, ...]) -> str:
    """Several labels that all fit."""
    if len(labels) < 2:
        return "".join(labels)
    return f"{', '.join(labels[:-1])} or {labels[-1]}"
