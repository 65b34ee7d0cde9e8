"""The judgement of a table: right ones pass in every dtype, near misses do not."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest
from samples import PLAIN, SAMPLES
from transformers_frequencies import answer

from packimport.errors import ScheduleError
from packimport.rope.difference import Difference, difference, tolerance
from packimport.rope.frequencies import Frequencies, frequencies
from packimport.rope.schedule import Rope
from packimport.rope.tables import Table, table

ROWS = 131072
DTYPES = ("float32", "float16", "bfloat16")
BLOCK_FIELDS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "short_factor",
    "long_factor",
    "partial_rotary_factor",
    "alpha",
)


def small(rope: Rope) -> Rope:
    """Gemma 4's head of 512 is cut, for memory's sake."""
    return replace(rope, head_dim=128, rotary_dim=128) if rope.type == "proportional" else rope


def torch_table(rope: Rope) -> tuple[object, object]:
    """cos and sin as transformers makes them, torch float32 at this machine's best capability."""
    import torch

    block: dict[str, object] = {"rope_type": rope.type, "rope_theta": rope.theta}
    for field in BLOCK_FIELDS:
        if (value := getattr(rope, field)) is not None:
            block[field] = list(value) if isinstance(value, tuple) else value
    longest = rope.max_position_embeddings or ROWS
    request = {"block": block, "head_dim": rope.head_dim, "seq_len": None}
    found = answer({**request, "max_position_embeddings": longest})
    inv_freq = torch.tensor([float.fromhex(x) for x in found["inv_freq"]], dtype=torch.float32)
    if rope.freq_factors is not None:
        inv_freq /= torch.tensor(rope.freq_factors)
    angle = torch.arange(ROWS).float()[:, None] * inv_freq
    factor = found["attention_factor"]
    return angle.cos() * factor, angle.sin() * factor


def to_numpy(tensor: object, dtype: str) -> np.ndarray:
    import torch

    cast = tensor.to(getattr(torch, dtype))
    if dtype == "bfloat16":
        return cast.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return cast.numpy()


@pytest.mark.oracle
@pytest.mark.skipif(not find_spec("transformers"), reason="needs the extra `oracle`")
@pytest.mark.filterwarnings("ignore")  # torch and transformers warn of their own ways
@pytest.mark.parametrize("name", SAMPLES)
def test_tables_of_torch_are_right(name: str) -> None:
    # transformers 5.24.0, torch 2.13: float32, then cast as models cast it.
    rope = small(SAMPLES[name])
    cos, sin = torch_table(rope)
    for dtype in DTYPES:
        found = difference(to_numpy(cos, dtype), to_numpy(sin, dtype), frequencies(rope))
        assert found.wrong_pairs == 0
        assert found.first_bad_position is None
        assert 0 < found.max_abs_cos_error < 1e-2


# Each differs from its sample in one parameter, by little.
NEAR_MISSES = {
    "theta 500001": ("default", {"theta": 500001.0}),
    "a factor's last digit": ("linear", {"factor": 8.001}),
    "original 8193": ("llama3", {"original_max_position_embeddings": 8193}),
    "high 4.001": ("llama3", {"high_freq_factor": 4.001}),
    "original 4097": ("yarn", {"original_max_position_embeddings": 4097}),
    "truncate": ("yarn", {"truncate": True}),
    "beta_fast 33": ("yarn", {"beta_fast": 33.0}),
    "one entry of a list": ("longrope", {"short_factor": None}),
    "alpha 1001": ("dynamic with alpha", {"alpha": 1001.0}),
    "one pair more": ("proportional", {"partial_rotary_factor": 65 / 256}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_wrong(name: str, dtype: str) -> None:
    sample, changes = NEAR_MISSES[name]
    right = SAMPLES[sample]
    if "short_factor" in changes:
        assert right.short_factor is not None
        changes = {"short_factor": (*right.short_factor[:-1], right.short_factor[-1] * 1.001)}
    wrong = table(replace(right, **changes), 32768, dtype=dtype)
    found = difference(wrong.cos, wrong.sin, frequencies(right))
    differ = frequencies(replace(right, **changes)).inv_freq != frequencies(right).inv_freq
    assert 0 < found.wrong_pairs <= differ.sum()


@pytest.mark.parametrize("dtype", DTYPES)
def test_theta_10001_for_10000(dtype: str) -> None:
    right = Rope(type="default", theta=10000.0, head_dim=128, rotary_dim=128)
    wrong = table(replace(right, theta=10001.0), ROWS, dtype=dtype)
    found = difference(wrong.cos, wrong.sin, frequencies(right))
    # All but pair 0, which has frequency 1 for any theta.
    assert found.wrong_pairs == 63
    # Pair i is off by p * 10000^(-i/64) * i/64 * 1e-4 to first order: largest at i = 7, and
    # 0.1 rad there at 25000. bfloat16 blurs an angle by up to 2^-8.
    largest = max(10000 ** (-i / 64) * i / 64 * 1e-4 for i in range(64))
    assert found.first_bad_position == pytest.approx(0.1 / largest, rel=0.04)


@pytest.mark.parametrize("factor", [None, 1.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_factor(dtype: str, factor: float | None) -> None:
    right = replace(SAMPLES["yarn"], attention_factor=1.2)
    wrong = table(replace(right, attention_factor=factor), 2000, dtype=dtype)
    found = difference(wrong.cos, wrong.sin, frequencies(right))
    assert found.wrong_pairs == 32
    size = abs((1.3465735902799727 if factor is None else factor) - 1.2)
    assert found.max_abs_cos_error == pytest.approx(size, rel=0.05)
    assert found.max_abs_sin_error == pytest.approx(size, rel=0.05)
    # The angles are right.
    assert found.first_bad_position is None


def spoiled(value: float, dtype: str, where: tuple[int, int]) -> Table:
    made = table(PLAIN, 3000, dtype=dtype)
    made.cos[where] = value
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_entries_that_are_no_numbers(dtype: str, value: float) -> None:
    made = spoiled(value, dtype, (2500, 7))
    found = difference(made.cos, made.sin, frequencies(PLAIN))
    assert found.wrong_pairs == 1
    assert found.max_abs_cos_error == math.inf
    assert found.max_abs_sin_error < 0.01
    if math.isnan(value):
        assert found.first_bad_position == 2500


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_entry(dtype: str) -> None:
    made = spoiled(-1.0, dtype, (1, 31))
    found = difference(made.cos, made.sin, frequencies(PLAIN))
    # cos of pair 31 at 1 is 1 - 4.5e-12.
    assert found == Difference(
        wrong_pairs=1,
        max_abs_cos_error=pytest.approx(2.0),
        max_abs_sin_error=found.max_abs_sin_error,
        first_bad_position=1,
    )


def test_sin_negated_and_shifted_rows() -> None:
    made = table(PLAIN, 1000, dtype="float32")
    negated = difference(made.cos, -made.sin, frequencies(PLAIN))
    assert negated.wrong_pairs == 32
    assert negated.first_bad_position == 1
    shifted = table(PLAIN, 1000, start=1, dtype="float32")
    found = difference(shifted.cos, shifted.sin, frequencies(PLAIN))
    assert found.first_bad_position == 0
    assert found.wrong_pairs == 32


# At cos(3) = -0.98999, which is no tie of either: 2^-11 and 2^-8.
@pytest.mark.parametrize(("dtype", "ulp"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("steps", [-3, -2, -1, 0, 1, 2, 3])
def test_a_neighbour_within_one_ulp_passes(dtype: str, ulp: float, steps: int) -> None:
    made = table(PLAIN, 64, dtype=dtype)
    made.cos.view(np.int16)[3, 0] += steps
    error = abs(float(made.cos[3, 0]) - math.cos(3))
    assert abs(error - abs(steps) * ulp) <= ulp / 2
    found = difference(made.cos, made.sin, frequencies(PLAIN))
    assert found.wrong_pairs == int(error > ulp + 3 * 2.0**-21 + 2.0**-22)
    # One of the two neighbours is within an ulp of the exact value; the others never are.
    assert found.wrong_pairs == (0 if steps == 0 else 1) or abs(steps) == 1


def test_tolerance_is_the_stated_sum() -> None:
    exact = np.array([1.5, -0.75, 0.25, 1e-9, 0.0])
    angle = np.array([0.0, 1.0, 1000.0, 131071.0, 4.0])
    ulps = {
        "float32": [2**-23, 2**-24, 2**-25, 2**-53, 2**-149],
        "float16": [2**-10, 2**-11, 2**-12, 2**-24, 2**-24],
        "bfloat16": [2**-7, 2**-8, 2**-9, 2**-37, 2**-133],
    }
    for dtype, ulp in ulps.items():
        expected = np.array(ulp) + (angle * 2**-21 + 2**-22) * 1.25
        assert np.array_equal(tolerance(exact, angle, 1.25, np.dtype(dtype)), expected)


def test_memory_stays_small() -> None:
    made = table(replace(PLAIN, head_dim=128, rotary_dim=128), ROWS, dtype="float16")
    declared = frequencies(replace(PLAIN, theta=499999.0, head_dim=128, rotary_dim=128))
    tracemalloc.start()
    try:
        difference(made.cos, made.sin, declared)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6


@pytest.mark.parametrize(
    ("cos", "sin", "key"),
    [
        (np.zeros((4, 31), np.float32), np.zeros((4, 32), np.float32), "cos"),
        (np.zeros((4, 32), np.float32), np.zeros((5, 32), np.float32), "sin"),
        (np.zeros((4, 32), np.float32), np.zeros((4, 64), np.float32), "sin"),
        (np.zeros((0, 32), np.float32), np.zeros((0, 32), np.float32), "cos"),
        (np.zeros(32, np.float32), np.zeros(32, np.float32), "cos"),
        (np.float32(1), np.float32(1), "cos"),
        (np.zeros((4, 32), np.int8), np.zeros((4, 32), np.float32), "cos"),
        (np.zeros((4, 32), np.float32), np.zeros((4, 32), np.complex64), "sin"),
    ],
)
def test_tables_that_do_not_fit(cos: np.ndarray, sin: np.ndarray, key: str) -> None:
    declared: Frequencies = frequencies(PLAIN)
    with pytest.raises(ScheduleError) as error:
        difference(cos, sin, declared)
    assert error.value.key == key
