"""Statistics of two blocks of logits: float64, exact on ties and −inf, memory of one block."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from forward.entries import entries
from forward.moments import Floats, Moments
from forward.top import Ids, overlap, top
from packimport.errors import DumpError

# Tokens that are ranked: the longest overlap that is reported.
RANKED = 10


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowFigures:
    """Figures per position of one block.

    kl:         float64 [rows], KL(reference‖run) in nats; inf where the run rules
                out (−inf) a token that the reference does not.
    followed:   bool [rows]: the token that follows is known.
    nll_reference, nll_run: float64 [rows], −log of the probability that each gives the
                token that follows; NaN where none is known.
    top_reference, top_run: int64 [rows], the token of the largest logit; among equals the
                lowest id.
    top5, top10: float64 [rows], the share of the 5 and 10 largest that both have.
    margin:     float64 [rows], the reference's largest logit less its second.
    difference: float64 [rows], the largest |reference − run| of the row's logits.
    token:      int64 [rows], where that is.
    error, power: float64 [rows], Σ(run − reference)² and Σ reference², over the entries
                that are finite on both sides.
    moments:    of all pairs of entries that are finite on both sides.
    """

    kl: Floats
    followed: npt.NDArray[np.bool_]
    nll_reference: Floats
    nll_run: Floats
    top_reference: Ids
    top_run: Ids
    top5: Floats
    top10: Floats
    margin: Floats
    difference: Floats
    token: Ids
    error: Floats
    power: Floats
    moments: Moments

    @property
    def same_top1(self) -> npt.NDArray[np.bool_]:
        """bool [rows]: both have the same largest logit."""
        return np.asarray(self.top_reference == self.top_run)

    def where(self, chosen: npt.NDArray[np.bool_]) -> RowFigures:
        """The rows of a mask, bool [rows]; the moments stay those of all."""
        return RowFigures(
            moments=self.moments,
            **{name: getattr(self, name)[chosen] for name in ARRAYS},
        )

    def apart(self) -> RowFigures:
        """The same where logits and log p can't be compared entry by entry, but as softmaxes."""
        unknown = np.full(len(self.kl), np.nan)
        return replace(
            self,
            difference=unknown,
            token=np.full(len(self.kl), -1),
            error=unknown,
            power=unknown,
            moments=Moments(),
        )


# Its fields that are arrays.
ARRAYS = tuple(field.name for field in fields(RowFigures) if field.name != "moments")


def joined(blocks: list[RowFigures]) -> RowFigures:
    """The figures of blocks that follow each other."""
    return RowFigures(
        moments=sum((block.moments for block in blocks), Moments()),
        **{name: np.concatenate([getattr(b, name) for b in blocks]) for name in ARRAYS},
    )


def row_figures(
    reference: npt.NDArray[np.float32],
    run: npt.NDArray[np.float32],
    first: int = 0,
    targets: Ids | None = None,
) -> RowFigures:
    """The figures of two blocks, float32 [rows, vocab]; `first` is the position of row 0.

    targets: int64 [rows], the token that follows each row, −1 where none does.

    KL(p‖q) = Σ p (log p − log q) with p, q the softmax of the rows, all in float64.
    A NaN, a +inf or a row of −inf alone has no softmax: DumpError names the position.
    """
    max_x = row_maxima(reference, "reference", first)
    max_y = row_maxima(run, "run", first)
    top_x, top_y = top(reference, RANKED), top(run, RANKED)
    found = entries(reference, run, max_x, max_y)
    second = np.take_along_axis(reference, top_x[:, 1:2], 1)[:, 0] if top_x.shape[1] > 1 else max_x
    return RowFigures(
        kl=found.kl,
        followed=np.zeros(len(reference), np.bool_) if targets is None else targets >= 0,
        nll_reference=nll(reference, targets, found.log_x),
        nll_run=nll(run, targets, found.log_y),
        top_reference=top_x[:, 0],
        top_run=top_y[:, 0],
        top5=overlap(top_x, top_y, 5),
        top10=overlap(top_x, top_y, RANKED),
        margin=max_x - second,
        difference=found.difference,
        token=found.token,
        error=found.error,
        power=found.power,
        moments=found.moments,
    )


def nll(logits: npt.NDArray[np.float32], targets: Ids | None, log_sum: Floats) -> Floats:
    """−log softmax of the targets, float64 [rows]; log_sum: log Σ exp of each row's logits."""
    if targets is None:
        return np.full(len(logits), np.nan)
    values = logits[np.arange(len(logits)), np.maximum(targets, 0)].astype(np.float64)
    # Rounding may leave the nll of a certain token just below zero.
    return np.asarray(np.where(targets < 0, np.nan, np.maximum(log_sum - values, 0.0)))


def row_maxima(logits: npt.NDArray[np.float32], side: str, first: int) -> Floats:
    """The largest logit of each row, float64; NaN and ±inf there are refused."""
    maxima: Floats = logits.max(axis=1).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(maxima))
    if bad.size:
        raise DumpError(
            f"the {side}'s logits have no softmax at position {first + int(bad[0])}",
            found=f"a largest logit of {maxima[bad[0]]}",
            allowed="finite logits, and -inf beside at least one finite logit",
            fix="Look at the model that made them, and at the precision that it runs in.",
        )
    return maxima
