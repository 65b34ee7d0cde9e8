"""The dynamic schedule as a helper for engines: one for InternLM2 and InternLM3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from packimport.errors import ScheduleError
from packimport.rope.by_length import dynamic_base
from packimport.rope.frequencies import validate
from packimport.rope.rotation import rotate
from packimport.rope.schedule import Rope
from packimport.rope.tables import table

Scalar = TypeVar("Scalar", bound=np.generic)

TYPES = ("default", "linear", "dynamic")


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """A schedule whose base may follow the length of the call.

    rope: of type default, linear or dynamic; another type, or a linear or
          dynamic one without its factor, is a ScheduleError.

    Up to max_position_embeddings the base of `dynamic` stays theta, so that
    tokens appended there change nothing before them. Beyond it every call has
    a base of its own: keys that were rotated and cached in a shorter call have
    to be rotated anew.
    """

    rope: Rope

    def __post_init__(self) -> None:
        validate(self.rope)
        if self.rope.type not in TYPES:
            raise ScheduleError(
                "type",
                "a schedule that does not follow the length of a call",
                found=self.rope.type,
                allowed=", ".join(TYPES),
            )

    @property
    def position_scale(self) -> float:
        """What multiplies positions: 1/factor for linear, 1 for the others.

        dynamic scales the base, never the positions: to scale both is the
        mistake that this helper is there to prevent.
        """
        if self.rope.type != "linear":
            return 1.0
        assert self.rope.factor is not None
        return 1.0 / self.rope.factor

    def base_for(self, seq_len: int) -> float:
        """The base for a call whose last position is seq_len - 1, float64.

        theta for default and linear; the formula is that of `by_length.dynamic_base`.
        """
        return dynamic_base(self.rope, seq_len) if self.rope.type == "dynamic" else self.rope.theta

    def apply(
        self, x: NDArray[Scalar], offset: int, seq_len: int, *, seq_axis: int = -2
    ) -> NDArray[Scalar]:
        """Rotate q or k at the positions offset .. offset + seq - 1 of a call of seq_len.

        x:        [..., seq, head_dim]; float16, bfloat16, float32 or float64.
        seq_len:  length of the whole call, cached tokens included: from
                  offset + seq up.
        seq_axis: -3 for x of [..., seq, heads, head_dim].

        Returns a new array of x's shape and dtype, turned by the float32 table
        of `tables.table`; the arithmetic is that of `rotation.rotate`.
        Raises ScheduleError where an argument does not fit.
        """
        if seq_axis not in (-2, -3) or x.ndim < -seq_axis:
            raise ScheduleError(
                "seq_axis", "where the tokens lie", found=(seq_axis, x.shape), allowed="-2 or -3"
            )
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ScheduleError(
                "offset", "the first position", found=offset, allowed="an integer from 0 up"
            )
        seq = x.shape[seq_axis]
        if seq_len < offset + seq:
            raise ScheduleError(
                "seq_len",
                f"a call that ends before position {offset + seq - 1}",
                found=seq_len,
                allowed=f"{offset + seq} or more",
            )
        turns = table(self.rope, seq, start=offset, seq_len=seq_len, dtype=np.float32)
        shape = (seq, 1, self.rope.pairs) if seq_axis == -3 else (seq, self.rope.pairs)
        return rotate(
            x,
            turns.cos.reshape(shape),
            turns.sin.reshape(shape),
            interleaved=self.rope.interleaved,
            trailing=self.rope.trailing,
        )
