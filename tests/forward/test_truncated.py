"""Top-k dumps: what is known of them is exact, KL is a lower bound, the rest is refused."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forward.compare import compare
from forward.comparison import SCHEMA, Comparison
from forward.dump import Dump, Tops
from forward.likelihood import likelihood
from packimport.errors import DumpError
from packimport.pack.documents import validate

COUNT, VOCAB = 120, 50


def softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    powers = np.exp(x.astype(np.float64))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def cut(dump: Dump, k: int) -> Dump:
    """The dump with the k largest logits of each row, by the definition."""
    x = dump.logits[:]
    ids = np.argsort(-x, axis=1, kind="stable")[:, :k]
    rest = np.exp(x.astype(np.float64))
    np.put_along_axis(rest, ids, 0.0, 1)
    tops = Tops(x.shape[1], ids.astype(np.int32), np.log(rest.sum(axis=1)))
    return replace(dump, logits=np.take_along_axis(x, ids, 1), tops=tops)


@pytest.fixture(scope="module")
def pair() -> tuple[Dump, Dump]:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 2, (COUNT, VOCAB)).astype(np.float32)
    y = (x + rng.normal(0, 0.5, x.shape)).astype(np.float32)
    tokens = np.append(0, y.argmax(axis=1)[:-1])
    one = Dump(name="reference", tokens=tokens, logits=x, prefill=COUNT)
    return one, replace(one, name="run", logits=y)


def coarse(reference: Dump, run: Dump) -> float:
    """Mean KL over the tokens that both know, and the others as one, by its definition."""
    p, q = softmax(full(reference)), softmax(full(run))
    values = []
    for row in range(COUNT):
        known = set(range(VOCAB))
        for dump in (reference, run):
            if dump.tops is not None:
                known &= set(dump.tops.ids[row].tolist())
        inside = np.isin(np.arange(VOCAB), list(known))
        a = np.append(p[row, inside], p[row, ~inside].sum())
        b = np.append(q[row, inside], q[row, ~inside].sum())
        values.append((a * np.log(a / b)).sum())
    return float(np.mean(values))


FULL: dict[str, NDArray[np.float32]] = {}


def full(dump: Dump) -> NDArray[np.float32]:
    return FULL[dump.name]


@pytest.mark.parametrize(("kx", "ky"), [(12, None), (None, 12), (12, 12), (20, 11), (1, 1)])
def test_kl_is_that_of_the_coarser_outcomes(
    pair: tuple[Dump, Dump], kx: int | None, ky: int | None
) -> None:
    FULL.update({dump.name: dump.logits[:] for dump in pair})
    x = pair[0] if kx is None else cut(pair[0], kx)
    y = pair[1] if ky is None else cut(pair[1], ky)
    whole, found = compare(*pair), compare(x, y)
    assert (whole.exact, found.exact) == (True, False)
    assert found.overall.kl_mean == pytest.approx(coarse(x, y), rel=1e-9)
    assert 0 < found.overall.kl_mean < whole.overall.kl_mean
    assert found.overall.same_top1 == whole.overall.same_top1
    value = found.to_dict()
    validate(value, SCHEMA, "comparison")
    assert value["kl"] == "lower bound"
    assert "least it can be" in found.text()
    known = found.overall
    assert (known.nmse, known.max_difference, found.correlation) == (None, None, None)
    if min(kx or VOCAB, ky or VOCAB) >= 10:
        assert known.top10 == whole.overall.top10
        assert known.top5 == whole.overall.top5
    else:
        assert (known.top5, known.top10) == (None, None)
    if kx == 1:
        assert (known.clear, known.flips) == (None, None)
    else:
        assert (known.clear, known.flips) == (whole.overall.clear, whole.overall.flips)


def test_equal_dumps_have_none(pair: tuple[Dump, Dump]) -> None:
    found = compare(cut(pair[0], 5), cut(pair[0], 5)).overall
    assert found.kl_max == 0.0
    assert compare(pair[0], cut(pair[0], 5)).overall.kl_max <= 1e-14


def test_perplexity_where_every_next_token_is_kept(pair: tuple[Dump, Dump]) -> None:
    """The next tokens are the run's first; its top-k has them, the reference's may not."""
    whole = compare(*pair).overall
    found = compare(pair[0], cut(pair[1], 2)).overall
    assert found.ppl_run == pytest.approx(whole.ppl_run, rel=1e-12)
    assert found.ppl_reference == pytest.approx(whole.ppl_reference, rel=1e-12)
    assert found.dp_rms == pytest.approx(whole.dp_rms, rel=1e-9)
    lost = compare(cut(pair[0], 1), pair[1])
    assert lost.overall.scored == COUNT - 1
    assert (lost.overall.ppl_reference, lost.overall.ppl_ratio) == (None, None)
    assert "not computable" in lost.text()


def test_a_limit_on_what_is_not_known_is_refused(pair: tuple[Dump, Dump]) -> None:
    found = compare(pair[0], cut(pair[1], 5))
    assert found.held_to(min_top1=0.1).passed
    for limits in ({"max_kl": 9.0}, {"max_kl_p999": 9.0}):
        with pytest.raises(DumpError, match="the least that KL can be"):
            found.held_to(**limits)
    with pytest.raises(DumpError, match="the least that KL can be"):
        floored(compare(*pair), found).held_to(max_floor=2.0)


def floored(comparison: Comparison, floor: Comparison) -> Comparison:
    return comparison.over(floor)


def test_a_likelihood_that_is_not_known_is_refused(pair: tuple[Dump, Dump], tmp_path: Path) -> None:
    assert likelihood(pair[0], cut(pair[1], 1)).overall.count == COUNT - 1
    with pytest.raises(DumpError, match=r"reference: .*can't be computed.*of 119 next tokens"):
        likelihood(cut(pair[0], 1), pair[1])


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("damage", ["order", "tail", "infinite tail", "whole with a tail"])
def test_rows_that_are_no_largest_logits_are_refused(
    pair: tuple[Dump, Dump], side: int, damage: str
) -> None:
    k = VOCAB if damage.startswith("whole") else 12
    with np.errstate(divide="ignore"):
        kept = cut(pair[1], k)
    assert kept.tops is not None
    logits, tail = kept.logits[:].copy(), kept.tops.tail.copy()
    if damage == "order":
        logits[37, 3:5] = logits[37, [4, 3]]
    elif damage == "tail":
        # What 38 others of the last one's size would give, and some more.
        tail[37] = logits[37, -1] + np.log(VOCAB - k) + 0.01
    else:
        tail[37] = np.inf if k < VOCAB else -30.0
    broken = replace(kept, logits=logits, tops=replace(kept.tops, tail=tail))
    sides = (broken, pair[0]) if side else (pair[0], broken)
    with pytest.raises(DumpError, match="run: position 37: a row of a top-k dump does not hold"):
        compare(*sides)


def test_ties_and_float16_are_in_order() -> None:
    """Rounding may make equals of the kept logits, and a tail that is above what they allow."""
    rng = np.random.default_rng(4)
    x = rng.normal(30, 2, (COUNT, VOCAB)).astype(np.float32)
    x[:60] = 30.004  # which float16 rounds down
    one = Dump(name="reference", tokens=np.zeros(COUNT, np.int64), logits=x, prefill=COUNT)
    kept = cut(one, 12)
    narrow = replace(kept, logits=kept.logits[:].astype(np.float16).astype(np.float32))
    assert compare(narrow, one).overall.kl_mean < 1e-4


def test_memory_does_not_grow_with_the_square_of_what_is_kept() -> None:
    """4 rows of 20 000: to hold each id beside each would take 1.6 GB."""
    rng = np.random.default_rng(6)
    x = rng.normal(0, 2, (4, 50_000)).astype(np.float32)
    tokens = np.zeros(4, np.int64)
    one = cut(Dump(name="reference", tokens=tokens, logits=x, prefill=4), 20_000)
    other = cut(Dump(name="run", tokens=tokens, logits=x[:, ::-1].copy(), prefill=4), 20_000)
    assert one.tops is not None
    assert other.tops is not None
    tracemalloc.start()
    found = compare(one, other).overall.kl_mean
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 28
    p, q = softmax(x), softmax(x[:, ::-1])
    means = []
    for row in range(4):
        inside = np.isin(np.arange(50_000), one.tops.ids[row]) & np.isin(
            np.arange(50_000), other.tops.ids[row]
        )
        a = np.append(p[row, inside], p[row, ~inside].sum())
        b = np.append(q[row, inside], q[row, ~inside].sum())
        means.append((a * np.log(a / b)).sum())
    assert found == pytest.approx(np.mean(means), rel=1e-9)
