"""Worst: the positions where a run is farthest from the reference, with what was said there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from forward.dump import Dump, Tokens
from forward.figures import number
from forward.statistics import RowFigures
from forward.tokenizer import Tokenizer
from packimport.errors import printable

# Tokens before the position that are decoded.
_CONTEXT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """A position. Texts are None without a tokenizer; next_token None where none follows.

    dump:      which of several has it; None where there is one.
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
    dump: str | None = None

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
        of = "" if self.dump is None else f"  of {printable(self.dump)}"
        head = f"{self.position:8}{of}  KL {self.kl:.4g}  "
        if self.context is None or self.reference_text is None or self.run_text is None:
            return (
                f"{head}reference {self.reference_top}, run {self.run_top}, next {self.next_token}"
            )
        end = "" if self.next_text is None else f", text {_quoted(self.next_text)}"
        return (
            f"{head}… {_quoted(self.context)}  reference {_quoted(self.reference_text)},"
            f" run {_quoted(self.run_text)}{end}"
        )


def worst(
    rows: RowFigures, places: Sequence[Tokens], runs: Sequence[Dump], count: int
) -> tuple[Worst, ...]:
    """The `count` positions of the largest KL, largest first; among equals the earlier first.

    places: the positions of the rows of each dump of the run, int64 each.
    """
    starts = np.cumsum([0, *map(len, places)])
    order = np.argsort(-rows.kl, kind="stable")[:count]
    found = []
    for row in order.tolist():
        index = int(np.searchsorted(starts, row, side="right")) - 1
        run, position = runs[index], int(places[index][row - starts[index]])
        following = int(run.following(np.array([position]))[0])
        found.append(
            Worst(
                position=position,
                kl=float(rows.kl[row]),
                tokens=tuple(run.tokens[max(0, position - _CONTEXT + 1) : position + 1].tolist()),
                next_token=None if following < 0 else following,
                reference_top=int(rows.top_reference[row]),
                run_top=int(rows.top_run[row]),
                dump=None if len(runs) == 1 else run.name,
            )
        )
    return tuple(found)


def _quoted(text: str) -> str:
    return f'"{printable(text)}"'
