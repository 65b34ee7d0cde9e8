"""Figures per position, against the definitions in extended precision and against torch 2.13.0."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forward.statistics import Moments, row_figures
from packimport.errors import DumpError

INF = np.inf


def rows(*values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def softmax(logits: NDArray[Any]) -> NDArray[np.longdouble]:
    powers = np.exp(logits.astype(np.longdouble) - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def divergence(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Σ p log(p/q) by its definition, over the entries where p > 0."""
    p, q = softmax(x), softmax(y)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0)
    return terms.sum(axis=-1).astype(np.float64)


def pair(seed: int, count: int, vocab: int, scale: float) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(rng.uniform(-30, 30), scale, (count, vocab)).astype(np.float32)
    noise = rng.normal(0, 10.0 ** rng.uniform(-6, 1), x.shape)
    return x, (x + noise).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 300), st.floats(0.01, 30))
def test_definitions(seed: int, count: int, vocab: int, scale: float) -> None:
    x, y = pair(seed, count, vocab, scale)
    figures = row_figures(x, y)
    assert np.allclose(figures.kl, divergence(x, y), rtol=1e-11, atol=1e-12)
    assert (figures.kl >= 0).all()
    assert np.array_equal(figures.same_top1, x.argmax(1) == y.argmax(1))
    gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
    assert np.array_equal(figures.difference, gap.max(1))
    assert np.array_equal(figures.token, gap.argmax(1))


@pytest.mark.parametrize("level", [0, -299, 299, 301, -3000, 30000])
@pytest.mark.parametrize(
    ("count", "vocab"), [(1, 20_001), (9, 8192), (9, 8193), (70, 900), (3000, 2), (2, 70_000)]
)
def test_definitions_whatever_the_shape_and_the_level(count: int, vocab: int, level: int) -> None:
    """Rows and columns are looked at in tiles, and shifted where exp would leave float64."""
    rng = np.random.default_rng(vocab)
    x = rng.normal(level, 3, (count, vocab)).astype(np.float32)
    x[0] += np.float32(300)
    y = x + rng.normal(0, 0.3, x.shape).astype(np.float32)
    y[-1, vocab // 2] = y[-1, -1] = x[-1, 0] - 50  # the first of equals, in whatever tile
    x[-1, vocab // 2] = x[-1, -1] = x[-1, 0] + 50
    figures = row_figures(x, y, targets=np.zeros(count, np.int64))
    assert np.allclose(figures.kl, divergence(x, y), rtol=1e-12, atol=1e-13)
    wide = x.astype(np.longdouble), y.astype(np.longdouble)
    gap = wide[0] - wide[1]
    assert np.array_equal(figures.difference, np.abs(gap).max(1))
    assert np.array_equal(figures.token, np.abs(gap).argmax(1))
    assert np.allclose(figures.error, (gap**2).sum(1).astype(float), rtol=1e-13)
    assert np.allclose(figures.power, (wide[0] ** 2).sum(1).astype(float), rtol=1e-13)
    for found, logits in zip((figures.nll_reference, figures.nll_run), wide, strict=True):
        expected = -np.log(softmax(logits)[:, 0].astype(np.longdouble))
        assert np.allclose(found, expected.astype(float), rtol=1e-12, atol=1e-11)
    both = [side.ravel() - side.mean() for side in wide]
    r = (both[0] * both[1]).sum() / np.sqrt((both[0] ** 2).sum() * (both[1] ** 2).sum())
    assert figures.moments.correlation == pytest.approx(float(r), abs=1e-7)


@pytest.mark.parametrize("one", [-30000, -1000, -480, -299, 0, 299, 301, 480, 1000, 30000])
@pytest.mark.parametrize("other", [-30000, -480, -299, 0, 299, 480, 30000])
def test_levels_of_both_sides_that_are_far_from_each_other(one: int, other: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 3, (2, 50_000))
    y = x + rng.normal(0, 0.3, x.shape)
    x, y = ((a + level).astype(np.float32) for a, level in ((x, one), (y, other)))
    expected = divergence(x, y)
    assert expected.max() < 1
    # Of a difference of 60 000, float64 keeps no more.
    assert np.allclose(row_figures(x, y).kl, expected, rtol=0, atol=1e-10)


@pytest.mark.oracle
@pytest.mark.parametrize("vocab", [17, 49152, 128256])
def test_kl_is_torchs(vocab: int) -> None:
    torch = pytest.importorskip("torch")
    for seed, scale in ((1, 0.1), (2, 4.0), (3, 30.0)):
        x, y = pair(seed, 4, vocab, scale)
        log_p, log_q = (torch.log_softmax(torch.from_numpy(a).double(), -1) for a in (x, y))
        kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
        assert np.abs(row_figures(x, y).kl - kl.numpy()).max() <= 1e-10


def test_equal_logits_have_no_divergence() -> None:
    x, _ = pair(4, 8, 5000, 9.0)
    figures = row_figures(x, x)
    assert np.array_equal(figures.kl, np.zeros(8))
    assert np.array_equal(figures.difference, np.zeros(8))
    assert figures.same_top1.all()
    assert figures.moments.correlation == pytest.approx(1.0, abs=1e-15)


def test_a_shift_of_a_row_does_not_change_its_softmax() -> None:
    x, _ = pair(5, 3, 4096, 5.0)
    x = np.round(x)  # so that the shift is exact in float32
    figures = row_figures(x, x + np.float32(1024))
    assert figures.kl.max() <= 1e-12
    assert np.array_equal(figures.difference, np.full(3, 1024.0))


def test_the_same_hole_on_both_sides_is_as_if_the_token_did_not_exist() -> None:
    x, y = pair(6, 3, 50, 3.0)
    holed_x, holed_y = np.insert(x, 20, -INF, axis=1), np.insert(y, 20, -INF, axis=1)
    whole, holed = row_figures(x, y), row_figures(holed_x, holed_y)
    assert np.allclose(holed.kl, whole.kl, rtol=0, atol=1e-14)
    assert np.array_equal(holed.difference, whole.difference)
    assert holed.moments.count == whole.moments.count
    assert holed.moments.correlation == pytest.approx(whole.moments.correlation, abs=1e-14)


def test_a_hole_in_the_run_alone_is_infinitely_far() -> None:
    x, y = rows([1, 2, 3], [1, 2, 3]), rows([1, 2, 3], [1, -INF, 3])
    figures = row_figures(x, y)
    assert figures.kl.tolist() == [0.0, INF]
    assert figures.difference.tolist() == [0.0, INF]
    assert figures.token[1] == 1


def test_a_hole_in_the_run_counts_however_small_the_reference() -> None:
    """exp(-2000) is 0 in float64 and more than 0 in truth."""
    assert row_figures(rows([0, -2000]), rows([0, -INF])).kl.tolist() == [INF]


def test_a_hole_in_the_reference_alone_costs_what_the_run_gives_it() -> None:
    x, y = rows([1, -INF, 3]), rows([1, 2, 3])
    figures = row_figures(x, y)
    assert figures.kl == pytest.approx(divergence(x, y), abs=1e-15)
    assert figures.difference.tolist() == [INF]


@pytest.mark.parametrize("side", ["reference", "run"])
@pytest.mark.parametrize("row", [[0, np.nan, 1], [0, INF, 1], [-INF, -INF, -INF]])
def test_no_softmax_is_an_error_at_its_position(side: str, row: list[float]) -> None:
    good, bad = rows([0, 1, 2], [0, 1, 2], [0, 1, 2]), rows([0, 1, 2], [0, 1, 2], row)
    x, y = (bad, good) if side == "reference" else (good, bad)
    with pytest.raises(DumpError, match=re.escape(f"the {side}'s logits")) as caught:
        row_figures(x, y, first=100)
    assert "position 102" in str(caught.value)


def test_among_equals_the_lowest_token_is_the_top() -> None:
    x, y = rows([5, 5, 1], [5, 5, 1]), rows([5, 4, 1], [4, 5, 1])
    assert row_figures(x, y).same_top1.tolist() == [True, False]


def test_correlation_is_numpys() -> None:
    x, y = pair(7, 20, 1000, 6.0)
    expected = np.corrcoef(x.ravel().astype(np.float64), y.ravel().astype(np.float64))[0, 1]
    assert row_figures(x, y).moments.correlation == pytest.approx(expected, abs=1e-13)


def test_moments_of_blocks_add_up() -> None:
    x, y = pair(8, 30, 200, 6.0)
    blocks = [row_figures(x[i : i + 7], y[i : i + 7]).moments for i in range(0, 30, 7)]
    joined, whole = sum(blocks, Moments()), row_figures(x, y).moments
    assert joined.count == whole.count == 6000
    for name in ("mean_x", "mean_y", "xx", "yy", "xy", "correlation"):
        assert getattr(joined, name) == pytest.approx(getattr(whole, name), rel=1e-11)


def test_a_constant_side_has_no_correlation() -> None:
    for value in (0.0, 2.0, 0.1, -1e6):
        constant = np.full((9, 33), value, np.float32)
        blocks = [row_figures(constant[i : i + 2], pair(i, 2, 33, 1.0)[0]) for i in range(4)]
        assert sum((b.moments for b in blocks), Moments()).correlation is None
    assert row_figures(rows([0, -INF]), rows([-INF, 0])).moments.correlation is None
