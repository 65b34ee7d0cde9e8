"""Tables: float64's cos and sin of the float32 angle, rounded once."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest
from samples import PLAIN, SAMPLES

from packimport.errors import ScheduleError
from packimport.rope import parallel
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.rope.tables import Table, angles, table

ROWS = 131072
DTYPES = ("float64", "float32", "float16", "bfloat16")


def same(one: Table, other: Table) -> bool:
    return one.cos.dtype == other.cos.dtype and all(
        a.tobytes() == b.tobytes() for a, b in ((one.cos, other.cos), (one.sin, other.sin))
    )


def narrow(rope: Rope) -> Rope:
    """The same schedule on four pairs, so that every position can be computed one by one."""
    changes: dict[str, object] = {"head_dim": 8, "rotary_dim": 8}
    for field in ("short_factor", "long_factor", "freq_factors"):
        if (values := getattr(rope, field)) is not None:
            changes[field] = values[:4]
    if rope.type == "proportional":
        changes["partial_rotary_factor"] = 0.75
    return replace(rope, **changes)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_entry_for_131072_positions(name: str) -> None:
    rope = narrow(SAMPLES[name])
    values = frequencies(rope)
    cosine, sine = np.frompyfunc(math.cos, 1, 1), np.frompyfunc(math.sin, 1, 1)
    angle = np.array(
        [[np.float32(p) * f for f in values.inv_freq] for p in range(0, ROWS, 97)], np.float32
    )
    assert np.array_equal(angles(values, 0, ROWS)[::97], angle)
    exact = angles(values, 0, ROWS).astype(np.float64)
    table_64 = table(rope, ROWS)
    for found, function in ((table_64.cos, cosine), (table_64.sin, sine)):
        expected = function(exact).astype(np.float64) * values.attention_factor
        # The C library and numpy may differ in float64's last bit, and no more.
        assert np.abs(found - expected).max() <= 2**-51 * values.attention_factor
    for dtype in ("float32", "float16", "bfloat16"):
        rounded = table_64.astype(dtype)
        for found, wide in ((rounded.cos, table_64.cos), (rounded.sin, table_64.sin)):
            info = ml_dtypes.finfo(dtype)
            ulp = np.exp2(np.floor(np.log2(np.maximum(np.abs(wide), 1e-300)))) * float(info.eps)
            half = np.maximum(ulp, float(info.smallest_subnormal)) / 2
            assert (np.abs(found.astype(np.float64) - wide) <= half).all()


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_ways_to_a_dtype(name: str, dtype: str) -> None:
    assert same(table(SAMPLES[name], 3000, dtype=dtype), table(SAMPLES[name], 3000).astype(dtype))


def test_position_zero_and_a_zero_frequency() -> None:
    found = table(SAMPLES["proportional"], 5)
    assert (found.cos[0] == 1).all()
    assert (found.sin[0] == 0).all()
    assert (found.cos[:, 64:] == 1).all()
    assert (found.sin[:, 64:] == 0).all()
    assert (found.sin[1:, :64] != 0).all()


def test_the_attention_factor_multiplies_both() -> None:
    one = table(replace(SAMPLES["yarn"], attention_factor=1.0), 100)
    # gpt-oss-20b, transformers 5.24.0.
    found = table(SAMPLES["yarn"], 100)
    assert np.array_equal(found.cos, one.cos * 1.3465735902799727)
    assert np.array_equal(found.sin, one.sin * 1.3465735902799727)


def test_start() -> None:
    whole = table(PLAIN, 5000)
    part = table(PLAIN, 1234, start=3001)
    assert np.array_equal(part.cos, whole.cos[3001:4235])
    assert np.array_equal(part.sin, whole.sin[3001:4235])


def test_seq_len_chooses_the_list_and_the_base() -> None:
    long = table(SAMPLES["longrope"], 100, seq_len=4097)
    short = table(SAMPLES["longrope"], 100, seq_len=4096)
    assert same(short, table(SAMPLES["longrope"], 100))
    assert not same(long, short)
    grown = table(SAMPLES["dynamic"], 100, seq_len=40000)
    assert same(
        grown,
        table(replace(SAMPLES["dynamic"], type="default", factor=None, theta=117777120.0), 100),
    )


def test_one_core_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    threaded = table(SAMPLES["llama3"], 20000)
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    assert same(threaded, table(SAMPLES["llama3"], 20000))


def test_rounding_twice_is_refused() -> None:
    rounded = table(PLAIN, 10).astype("float32")
    assert rounded.astype("float32") is rounded
    with pytest.raises(ScheduleError) as error:
        rounded.astype("bfloat16")
    assert error.value.key == "dtype"


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"rows": 0}, "rows"),
        ({"rows": -5}, "rows"),
        ({"rows": 2.0}, "rows"),
        ({"rows": True}, "rows"),
        ({"rows": 5, "start": -1}, "start"),
        ({"rows": 5, "start": 1.0}, "start"),
        ({"rows": 5, "seq_len": 0}, "seq_len"),
        ({"rows": 5, "dtype": "int8"}, "dtype"),
    ],
)
def test_arguments(arguments: dict[str, object], key: str) -> None:
    with pytest.raises(ScheduleError) as error:
        table(PLAIN, **arguments)
    assert error.value.key == key


@pytest.mark.oracle
@pytest.mark.skipif(not find_spec("torch"), reason="needs the extra `oracle`")
@pytest.mark.parametrize("name", SAMPLES)
def test_within_one_ulp_of_torch(name: str) -> None:
    # torch 2.13, float32 throughout, on the same frequencies.
    import torch

    rope = narrow(SAMPLES[name])
    values = frequencies(rope)
    angle = torch.arange(ROWS).float()[:, None] * torch.from_numpy(values.inv_freq.copy())
    found = table(rope, ROWS, dtype="float32")
    for ours, theirs in ((found.cos, angle.cos()), (found.sin, angle.sin())):
        expected = (theirs * values.attention_factor).numpy()
        # Its product with the factor is a second rounding.
        ulps = 1 if values.attention_factor == 1 else 2
        assert (np.abs(ours - expected) <= ulps * np.spacing(np.abs(expected))).all()
