"""Rope: one RoPE schedule as a model declares it, frozen and hashable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """One schedule, for one layer or for many.

    type:        one of the keys of `frequencies.SCHEDULES`.
    theta:       the base of the powers.
    head_dim:    entries of a head, rotated or not.
    rotary_dim:  entries that rotate; pairs = rotary_dim // 2.
    interleaved: pairs are (x[2i], x[2i+1]); else (x[i], x[i + rotary_dim/2]).
    trailing:    the rotated slice is the end of the head, not its start.

    The other fields are those of the schedule's type, in the spelling that
    configs use; None where the config is silent.
    """

    type: str
    theta: float
    head_dim: int
    rotary_dim: int
    interleaved: bool = False
    trailing: bool = False
    max_position_embeddings: int | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    partial_rotary_factor: float | None = None
    alpha: float | None = None
    freq_factors: tuple[float, ...] | None = None
    mrope_section: tuple[int, ...] | None = None
    mrope_layout: str | None = None

    @property
    def pairs(self) -> int:
        """How many pairs of entries rotate."""
        return self.rotary_dim // 2
