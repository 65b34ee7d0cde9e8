"""Worst: the positions where a run is farthest from the reference, with what was said there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from forward.dump import Dump
from forward.figures import number
from forward.statistics import RowFigures
from forward.tokenizer import Tokenizer
from packimport.errors import printable

# Tokens before the position that are decoded.
_CONTEXT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """A position. Texts are None without a tokenizer; next_token None where none follows.

    tokens:    those up to the position, the last of them at it.
    reference_top, run_top: what each found likeliest.
    """

    position: int
    kl: float
    tokens: tuple[int, ...]
    next_token: int | None
    reference_top: int
    run_top: int
    context: str | None = None
    next_text: str | None = None
    reference_text: str | None = None
    run_text: str | None = None

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        value = {key: number(value) for key, value in asdict(self).items()}
        return {**value, "tokens": list(self.tokens)}

    def decoded(self, tokenizer: Tokenizer) -> Worst:
        """The same with texts."""
        following = [] if self.next_token is None else [[self.next_token]]
        context, reference, run, *texts = tokenizer.decode_all(
            [self.tokens, [self.reference_top], [self.run_top], *following]
        )
        return replace(
            self,
            context=context,
            next_text=texts[0] if texts else None,
            reference_text=reference,
            run_text=run,
        )

    def text(self) -> str:
        """One line."""
        head = f"{self.position:8}  KL {self.kl:.4g}  "
        if self.context is None or self.reference_text is None or self.run_text is None:
            return (
                f"{head}reference {self.reference_top}, run {self.run_top}, next {self.next_token}"
            )
        end = "" if self.next_text is None else f", text {_quoted(self.next_text)}"
        return (
            f"{head}… {_quoted(self.context)}  reference {_quoted(self.reference_text)},"
            f" run {_quoted(self.run_text)}{end}"
        )


def worst(rows: RowFigures, at: npt.NDArray[np.int64], run: Dump, count: int) -> tuple[Worst, ...]:
    """The `count` positions of the largest KL, largest first; among equals the earlier first."""
    order = np.argsort(-rows.kl, kind="stable")[:count]
    following = run.following(at)
    return tuple(
        Worst(
            position=int(at[row]),
            kl=float(rows.kl[row]),
            tokens=tuple(run.tokens[max(0, at[row] - _CONTEXT + 1) : at[row] + 1].tolist()),
            next_token=None if following[row] < 0 else int(following[row]),
            reference_top=int(rows.top_reference[row]),
            run_top=int(rows.top_run[row]),
        )
        for row in order.tolist()
    )


def _quoted(text: str) -> str:
    return f'"{printable(text)}"'
