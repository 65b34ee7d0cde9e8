"""Likelihood without a reference: definitions, and that noise is not told as an effect."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from forward.comparison import SCHEMA
from forward.dump import Dump
from forward.likelihood import LEVEL, Likelihood, likelihood
from packimport.errors import DumpError
from packimport.pack.documents import validate

VOCAB = 6


def dump(name: str, nll: NDArray[np.float64]) -> Dump:
    """A dump under which the token after position i has the given −log p: token 1 each time."""
    p = np.exp(-nll)
    logits = np.log(np.stack([1 - p, p], axis=1)).astype(np.float32)
    rest = np.full((len(nll), VOCAB - 2), -np.inf, np.float32)
    logits = np.append(np.concatenate([logits, rest], axis=1), np.zeros((1, VOCAB)), axis=0)
    tokens = np.ones(len(nll) + 1, np.int64)
    return Dump(name=name, tokens=tokens, logits=logits.astype(np.float32), prefill=len(tokens))


def text(count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).exponential(1.0, count) + 0.05


def words(found: Likelihood) -> list[str]:
    validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), SCHEMA, "nll")
    assert found.verdict in found.text().splitlines()[-1]
    return [part.word for part in (found.overall, *found.buckets)]


def test_definitions() -> None:
    before, after = text(1200), text(1200, 1)
    found = likelihood(dump("before", before), dump("after", after))
    assert [part.name for part in found.buckets] == ["0-127", "128-511", "512-1023", "1024-2047"]
    spans = [(0, 1200), (0, 128), (128, 512), (512, 1024), (1024, 1200)]
    for part, (low, high) in zip((found.overall, *found.buckets), spans, strict=True):
        x, y = before[low:high], after[low:high]
        assert part.count == high - low
        assert part.before == pytest.approx(x.mean(), rel=1e-6)
        assert part.after == pytest.approx(y.mean(), rel=1e-6)
        assert part.difference == pytest.approx((y - x).mean(), abs=1e-6)
        error = (y - x).std(ddof=1) / math.sqrt(high - low)
        assert part.standard_error == pytest.approx(error, rel=1e-5)
        assert part.p == pytest.approx(math.erfc(abs((y - x).mean()) / error / 2**0.5), rel=1e-3)


def test_equal_packs_tell_nothing() -> None:
    one = dump("a", text(600))
    found = likelihood(one, one)
    assert set(words(found)) == {"cannot be told"}
    assert found.passed
    assert {part.difference for part in (found.overall, *found.buckets)} == {0.0}


@pytest.mark.parametrize(("sign", "word"), [(1, "harms"), (-1, "helps")])
def test_an_effect_is_told_where_it_is(sign: int, word: str) -> None:
    """The same noise everywhere, and a shift of a fifth of it from position 512 on."""
    before = text(2000) + 3
    noise = np.random.default_rng(5).normal(0, 0.5, 2000)
    after = before + noise + sign * 0.1 * (np.arange(2000) >= 512)
    found = likelihood(dump("before", before), dump("after", after))
    assert words(found) == [word, "cannot be told", "cannot be told", word, word]
    assert found.verdict == word
    assert found.passed is (word == "helps")


def test_both() -> None:
    before = text(1000) + 3
    after = before + np.where(np.arange(1000) < 128, -1.0, 1.0)
    after += np.random.default_rng(5).normal(0, 0.1, 1000)
    found = likelihood(dump("before", before), dump("after", after))
    assert words(found) == ["harms", "helps", "harms", "harms"]
    assert (found.verdict, found.passed) == ("helps and harms", False)


def test_noise_alone_is_seldom_told() -> None:
    """Of 200 pairs of equally good packs LEVEL are told in any range, 2 on average."""
    told = 0
    for seed in range(200):
        before = text(1100, seed) + 3
        after = before + np.random.default_rng(1000 + seed).normal(0, 0.3, 1100)
        told += likelihood(dump("a", before), dump("b", after)).verdict != "cannot be told"
    assert LEVEL == 0.01
    assert told <= 7  # more: less than 1 chance in 1000


def test_few_positions_tell_nothing() -> None:
    before = text(20) + 3
    after = before + 1 + np.random.default_rng(1).normal(0, 0.01, 20)
    assert words(likelihood(dump("a", before), dump("b", after))) == ["cannot be told"] * 2


def test_a_token_that_is_ruled_out_is_told() -> None:
    one = dump("a", text(20))
    logits = one.logits[:].copy()
    logits[7, 1] = -np.inf
    other = Dump(name="b", tokens=one.tokens, logits=logits, prefill=21)
    found = likelihood(one, other)
    assert words(found) == ["harms", "harms"]
    assert found.overall.after == math.inf
    assert words(likelihood(other, one)) == ["helps", "helps"]
    assert words(likelihood(other, other)) == ["cannot be told"] * 2


def test_no_next_token_is_refused() -> None:
    one = Dump(name="a", tokens=np.array([1]), logits=np.zeros((1, 2), np.float32), prefill=1)
    with pytest.raises(DumpError, match="no token follows"):
        likelihood(one, one)


def test_other_tokens_are_refused() -> None:
    one, other = dump("a", text(20)), dump("b", text(21))
    with pytest.raises(DumpError, match="different tokens"):
        likelihood(one, other)


def ruled_out(one: Dump, name: str, *positions: int) -> Dump:
    """The same, with no probability for the tokens after these positions."""
    logits = one.logits[:].copy()
    logits[list(positions), 1] = -np.inf
    return Dump(name=name, tokens=one.tokens, logits=logits, prefill=len(one.tokens))


def test_a_token_that_both_rule_out_hides_nothing() -> None:
    """The other tokens are told as if it were not there, and the means stay infinite."""
    before = text(600) + 3
    after = before + 1 + np.random.default_rng(5).normal(0, 0.5, 600)
    one, other = (
        ruled_out(dump(name, nll), name, 100, 300)
        for name, nll in (("before", before), ("after", after))
    )
    found = likelihood(one, other)
    assert words(found) == ["harms"] * 4
    assert not found.passed
    left = np.delete(after - before, [100, 300])
    whole, first, _, last = found.overall, *found.buckets
    assert (whole.count, whole.left_out) == (600, 2)
    assert whole.difference == pytest.approx(left.mean(), abs=1e-6)
    assert whole.standard_error == pytest.approx(left.std(ddof=1) / math.sqrt(598), rel=1e-5)
    assert (whole.before, whole.after) == (math.inf, math.inf)
    assert [part.left_out for part in found.buckets] == [1, 1, 0]
    assert last.before == pytest.approx(before[512:].mean(), rel=1e-6)
    assert first.after == math.inf
    assert "left out     2 of them from the difference" in found.text()
    assert words(likelihood(other, one)) == ["helps"] * 4


def test_where_both_rule_out_all_nothing_can_be_told() -> None:
    one = ruled_out(dump("a", text(40)), "a", *range(40))
    found = likelihood(one, one)
    assert words(found) == ["cannot be told"] * 2
    assert (found.overall.left_out, found.overall.difference) == (40, None)


def test_each_rules_out_another_token() -> None:
    """inf - inf between two tokens: neither hides the other."""
    base = dump("a", text(40))
    found = likelihood(ruled_out(base, "a", 3), ruled_out(base, "b", 30))
    assert words(found) == ["helps and harms"] * 2
    assert not found.passed
