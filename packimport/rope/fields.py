"""Fields: which fields of a Rope each type of schedule has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one type beyond those that every type has."""

    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


COMMON = frozenset(
    {
        "type",
        "theta",
        "head_dim",
        "rotary_dim",
        "interleaved",
        "trailing",
        "max_position_embeddings",
        "partial_rotary_factor",
        "mrope_section",
        "mrope_layout",
    }
)

FIELDS: Mapping[str, Fields] = MappingProxyType(
    {
        "default": Fields(optional=frozenset({"freq_factors"})),
        "linear": Fields(frozenset({"factor"})),
        "dynamic": Fields(frozenset({"factor", "max_position_embeddings"}), frozenset({"alpha"})),
        "llama3": Fields(
            frozenset(
                {
                    "factor",
                    "low_freq_factor",
                    "high_freq_factor",
                    "original_max_position_embeddings",
                }
            )
        ),
        "yarn": Fields(
            frozenset({"original_max_position_embeddings"}),
            frozenset(
                {
                    "factor",
                    "beta_fast",
                    "beta_slow",
                    "truncate",
                    "attention_factor",
                    "mscale",
                    "mscale_all_dim",
                }
            ),
        ),
        "longrope": Fields(
            frozenset({"short_factor", "long_factor", "original_max_position_embeddings"}),
            frozenset({"factor", "attention_factor", "short_mscale", "long_mscale"}),
        ),
        "proportional": Fields(frozenset({"partial_rotary_factor"}), frozenset({"factor"})),
    }
)
