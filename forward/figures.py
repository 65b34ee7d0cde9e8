"""Figures: what is said about a range of positions, each mean with its standard error."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from forward.statistics import RowFigures

Floats = npt.NDArray[np.float64]

# The reference's choice is clear where it gives its first token at least twice the
# probability of its second.
CLEAR = math.log(2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What is said about the positions start … stop − 1. KL is KL(reference‖run) in nats.

    None stands where a figure can't be computed. `errors` holds the standard errors by
    the name of the figure, as if positions were independent.

    name:       "all", "prefill", "decode", or a range of positions such as "128-511".
    count:      how many positions of the range both dumps have.
    kl_*:       mean, quantiles (interpolated linearly; their errors by Woodruff, "Confidence
                intervals for medians and other position measures", 1952), and the largest.
    same_top1:  the share of positions where both give the same token the largest logit;
                among equal logits the lowest id counts as the largest.
    top5, top10: the mean share of the 5 and 10 largest that both have.
    clear:      positions where the reference gives its first token at least twice the
                probability of its second. flips: those of them with another top-1.
    scored:     positions whose next token is known.
    ppl_*:      perplexity of that token, exp of the mean −log p; ratio: run / reference.
    dp_*:       p(run) − p(reference) of that token: mean and root of the mean square.
    nmse:       Σ (run − reference)² / Σ reference² of the logits.
    max_difference: the largest |reference − run| of any logit, and where it is.
    mark:       tells these positions from others; not in the JSON.
    """

    name: str
    start: int
    stop: int
    count: int
    kl_mean: float
    kl_median: float
    kl_p90: float
    kl_p95: float
    kl_p99: float
    kl_p999: float
    kl_max: float
    kl_max_position: int
    same_top1: float
    top5: float | None
    top10: float | None
    clear: int | None
    flips: int | None
    scored: int
    ppl_reference: float | None
    ppl_run: float | None
    ppl_ratio: float | None
    dp_mean: float | None
    dp_rms: float | None
    nmse: float | None
    max_difference: float | None
    max_difference_position: int | None
    max_difference_token: int | None
    errors: Mapping[str, float | None]
    mark: str

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {key: number(value) for key, value in asdict(self).items() if key != "mark"}


def number(value: object) -> object:
    """A value for JSON, which has no infinity."""
    return "Infinity" if isinstance(value, float) and math.isinf(value) else value


def figures(
    name: str, rows: RowFigures, at: npt.NDArray[np.int64], start: int, stop: int
) -> Figures:
    """The figures of the rows at positions start … stop − 1, of which there is at least one.

    at: int64 [rows], the position of each row.
    """
    chosen = (at >= start) & (at < stop)
    part, at = rows.where(chosen), at[chosen]
    ordered = np.sort(part.kl)
    worst, farthest = int(part.kl.argmax()), int(part.difference.argmax())
    clear = part.margin >= CLEAR
    ranked = not np.isnan(part.margin).any()
    power = float(part.power.sum())
    whole = not np.isnan(part.difference).any()
    scores, errors = _scores(part)
    return Figures(
        name=name,
        start=start,
        stop=stop,
        count=len(at),
        kl_mean=float(part.kl.mean()),
        kl_median=quantile(ordered, 0.5),
        kl_p90=quantile(ordered, 0.9),
        kl_p95=quantile(ordered, 0.95),
        kl_p99=quantile(ordered, 0.99),
        kl_p999=quantile(ordered, 0.999),
        kl_max=float(part.kl[worst]),
        kl_max_position=int(at[worst]),
        same_top1=float(part.same_top1.mean()),
        top5=_mean(part.top5),
        top10=_mean(part.top10),
        clear=int(clear.sum()) if ranked else None,
        flips=int((clear & ~part.same_top1).sum()) if ranked else None,
        scored=int(part.followed.sum()),
        **scores,
        nmse=float(part.error.sum()) / power if whole and power else None,
        max_difference=abs(float(part.difference[farthest])) if whole else None,
        max_difference_position=int(at[farthest]) if whole else None,
        max_difference_token=int(part.token[farthest]) if whole else None,
        errors={
            "kl_mean": standard_error(part.kl),
            **{name: _quantile_error(ordered, share) for name, share in _QUANTILES.items()},
            "same_top1": standard_error(part.same_top1.astype(np.float64)),
            "top5": standard_error(part.top5),
            "top10": standard_error(part.top10),
            "flips": _count_error(~part.same_top1[clear]) if ranked else None,
            "nmse": _ratio_error(part.error, part.power) if whole and power else None,
            **errors,
        },
        mark=_mark(part, at),
    )


def _mark(part: RowFigures, at: npt.NDArray[np.int64]) -> str:
    """Of the positions, and of the reference's choice there: two dumps of a set may have one."""
    rows = np.stack([at, part.top_reference]).astype("<i8")
    return hashlib.sha256(rows.tobytes()).hexdigest()


_QUANTILES = {"kl_median": 0.5, "kl_p90": 0.9, "kl_p95": 0.95, "kl_p99": 0.99, "kl_p999": 0.999}


def _scores(part: RowFigures) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Figures of the next tokens' probabilities, and their standard errors."""
    x, y = part.nll_reference[part.followed], part.nll_run[part.followed]
    with np.errstate(invalid="ignore"):  # inf − inf
        nlls = {"ppl_reference": x, "ppl_run": y, "ppl_ratio": y - x}
    change = np.exp(-y) - np.exp(-x)
    values = {name: _exponential(_mean(nll)) for name, nll in nlls.items()}
    # The error of exp(mean) is the mean's times the value; that of a root half of the
    # square's, over the root.
    errors = {
        name: None if error is None or not value else _finite(error * value)
        for name, value, error in (
            (name, values[name], standard_error(nll)) for name, nll in nlls.items()
        )
    }
    square, spread = _mean(change**2), standard_error(change**2)
    rms = None if square is None else math.sqrt(square)
    values |= {"dp_mean": _mean(change), "dp_rms": rms}
    errors |= {
        "dp_mean": standard_error(change),
        "dp_rms": 0.5 * spread / rms if rms and spread is not None else None,
    }
    return values, errors


def quantile(ordered: Floats, share: float) -> float:
    """The quantile of ascending numbers, interpolated linearly; inf is a number, too."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    part = place - low
    if part == 0.0 or math.isinf(ordered[low]):
        return float(ordered[low])
    return float(ordered[low] + part * (ordered[low + 1] - ordered[low]))


def standard_error(values: Floats) -> float | None:
    """Of the mean of values, from their spread; None for fewer than two or infinite ones."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _count_error(values: npt.NDArray[np.bool_]) -> float | None:
    """Of how many are true."""
    error = standard_error(values.astype(np.float64))
    return None if error is None else error * len(values)


def _ratio_error(above: Floats, below: Floats) -> float | None:
    """Of Σ above / Σ below, to the first order (Cochran, "Sampling Techniques", 1977, 6.3)."""
    total = below.sum()
    error = standard_error(above - above.sum() / total * below)
    return None if error is None else error * len(above) / float(total)


def _quantile_error(ordered: Floats, share: float) -> float | None:
    """Half the distance of the quantiles one standard error of the share to either side."""
    if len(ordered) < 2:
        return None
    reach = math.sqrt(share * (1 - share) / len(ordered))
    low, high = share - reach, share + reach
    if low < 0 or high > 1 or math.isinf(quantile(ordered, high)):
        return None
    return (quantile(ordered, high) - quantile(ordered, low)) / 2


def _mean(values: Floats) -> float | None:
    """None where there is no value, or one is not known."""
    mean = float(values.mean()) if len(values) else math.nan
    return None if math.isnan(mean) else mean


def _finite(value: float) -> float | None:
    """None for infinity: there is no telling how far off that is."""
    return value if math.isfinite(value) else None


def _exponential(value: float | None) -> float | None:
    if value is None:
        return None
    with np.errstate(over="ignore"):  # beyond 709 nats it is infinite
        return float(np.exp(value))
