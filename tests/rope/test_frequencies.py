"""Frequencies against transformers 5.24.0 and torch 2.13 at default CPU capability."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rope_reference import DATA, Row, rows
from samples import LONG, PLAIN, SAMPLES, SHORT

from packimport.errors import ScheduleError
from packimport.rope.bands import yarn_attention_factor, yarn_range
from packimport.rope.fields import FIELDS
from packimport.rope.frequencies import SCHEDULES, frequencies
from packimport.rope.schedule import Rope

ROWS = list(rows())
ORACLE = Path(__file__).parent / "transformers_frequencies.py"


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == np.float32 and np.array_equal(
        found.view(np.int32), expected.view(np.int32)
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_stored_reference_bit_for_bit(row: Row) -> None:
    found = frequencies(row.rope)
    assert same_bits(found.inv_freq, row.inv_freq)
    assert found.attention_factor == pytest.approx(row.attention_factor, abs=1e-12, rel=0)


def test_every_row_of_the_reference_is_used() -> None:
    # 42 rows without an error; GPT-J's has a class and no table; five rows have two.
    assert len(ROWS) == 46
    assert {row.rope.type for row in ROWS} == {
        "default",
        "llama3",
        "yarn",
        "longrope",
        "proportional",
    }


# transformers 5.24.0 on torch 2.13.0, ATEN_CPU_CAPABILITY=default, for
# Llama-3.2-1B-Instruct: head 64, theta 500000, factor 32, low 1, high 4, original 8192.
LLAMA_3_2_1B = [
    "0x1.000000p+0",
    "0x1.53c38cp-1",
    "0x1.c2ef78p-2",
    "0x1.2b3dc6p-2",
    "0x1.8d2760p-3",
    "0x1.078d40p-3",
    "0x1.5dc95ap-4",
    "0x1.d03ccep-5",
    "0x1.341190p-5",
    "0x1.98de92p-6",
    "0x1.0f5386p-6",
    "0x1.681adap-7",
    "0x1.ddee9ep-8",
    "0x1.3d2804p-8",
    "0x1.a4ee40p-9",
    "0x1.524f36p-10",
    "0x1.c26c40p-12",
    "0x1.9731eep-14",
    "0x1.46831ap-16",
    "0x1.b15902p-17",
    "0x1.1f91f0p-17",
    "0x1.7da9e8p-18",
    "0x1.fa8b86p-19",
    "0x1.5024d6p-19",
    "0x1.be2188p-20",
    "0x1.280d96p-20",
    "0x1.88ec20p-21",
    "0x1.04be68p-21",
    "0x1.5a0f4ep-22",
    "0x1.cb4a9ap-23",
    "0x1.30c94ep-23",
    "0x1.948360p-24",
]


def test_llama_3_2_1b() -> None:
    expected = np.array([float.fromhex(x) for x in LLAMA_3_2_1B], dtype=np.float32)
    plain = frequencies(PLAIN).inv_freq
    found = frequencies(SAMPLES["llama3"]).inv_freq
    assert same_bits(found, expected)
    ratio = plain.astype(np.float64) / expected
    assert (ratio[:15] == 1).all()
    assert ratio[15:18] == pytest.approx([1.6513, 3.2923, 9.6667], abs=5e-5)
    assert (ratio[18:] == 32).all()


def test_llama3_with_the_served_length_for_the_original() -> None:
    right = frequencies(SAMPLES["llama3"]).inv_freq
    wrong = replace(SAMPLES["llama3"], original_max_position_embeddings=131072)
    ratio = frequencies(wrong).inv_freq.astype(np.float64) / right
    assert np.flatnonzero(ratio != 1).tolist() == list(range(15, 25))
    assert ratio.max() == pytest.approx(32, rel=1e-6)


def test_llama3_parameters_that_coincide() -> None:
    twin = replace(
        SAMPLES["llama3"],
        original_max_position_embeddings=16384,
        low_freq_factor=2.0,
        high_freq_factor=8.0,
    )
    assert same_bits(frequencies(twin).inv_freq, frequencies(SAMPLES["llama3"]).inv_freq)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # transformers 5.24.0, `_compute_yarn_parameters` for each model's config.
        ({"attention_factor": None}, 1.3465735902799727),  # gpt-oss-20b
        ({"factor": 4.0}, 1.138629436111989),  # Qwen2.5 with its documented yarn block
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),  # DeepSeek-V3, Ministral3
        ({"factor": 64.0, "mscale": 1.0, "mscale_all_dim": 0.0}, 1.4158883083359672),  # Devstral-2
        ({"attention_factor": 1.0}, 1.0),  # DeepSeek-V4
        ({"mscale": 0.707}, 1.3465735902799727),
        ({"mscale": 0.707, "mscale_all_dim": 1.0}, 0.9245892963555604),
        ({"factor": None}, 1.3465735902799727),  # 131072 / 4096
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_attention_factor(changes: dict[str, float | None], expected: float) -> None:
    found = frequencies(replace(SAMPLES["yarn"], **changes))
    assert found.attention_factor == pytest.approx(expected, abs=1e-12, rel=0)


@pytest.mark.parametrize(
    ("dimensions", "betas", "truncate", "expected"),
    [
        # `find_correction_range` of transformers 5.24.0 for each model's config.
        ((10000, 64, 4096), (32, 1), None, (10, 23)),  # DeepSeek-V3
        ((50000.0, 64, 4096), (1.0, 1.0), None, (19, 20)),  # Kimi-K2
        ((160000, 64, 65536), (32, 1), True, (15, 25)),  # DeepSeek-V4, compress
        ((150000, 64, 4096), (32.0, 1.0), False, (8.0928, 17.3980)),  # gpt-oss-20b
        ((1000000.0, 128, 16384), (32.0, 1.0), None, (20, 37)),  # Ministral3
        ((1000000.0, 128, 32768), (None, None), None, (23, 40)),  # Qwen2.5 x 4
    ],
)
def test_yarn_range(
    dimensions: tuple[float, int, int],
    betas: tuple[float | None, float | None],
    truncate: bool | None,
    expected: tuple[float, float],
) -> None:
    theta, dim, original = dimensions
    rope = replace(
        SAMPLES["yarn"],
        theta=theta,
        head_dim=dim,
        rotary_dim=dim,
        original_max_position_embeddings=original,
        beta_fast=betas[0],
        beta_slow=betas[1],
        truncate=truncate,
    )
    assert yarn_range(rope) == pytest.approx(expected, abs=5e-5)


def test_yarn_whose_bounds_meet_at_a_pair() -> None:
    # 6 positions are less than one turn of any pair: both bounds are 0, and transformers
    # 5.24.0 moves the upper one by 0.001 (`linear_ramp_factor`), so that pair 0 is kept.
    rope = replace(SAMPLES["yarn"], original_max_position_embeddings=6, truncate=True)
    assert yarn_range(rope) == (0, 0.001)
    plain = frequencies(replace(PLAIN, theta=150000)).inv_freq
    found = frequencies(rope).inv_freq
    assert found[0] == 1
    assert np.array_equal(found[1:], plain[1:] / 32)


def test_yarn_without_a_factor_takes_the_ratio_of_lengths() -> None:
    null = replace(SAMPLES["yarn"], factor=None)
    assert same_bits(frequencies(null).inv_freq, frequencies(SAMPLES["yarn"]).inv_freq)
    assert yarn_attention_factor(null, 32.0) == frequencies(null).attention_factor


@pytest.mark.parametrize(
    ("seq_len", "base"),
    [
        # The formula in float64, rounded to float32 as torch rounds a base.
        (None, 50000000.0),
        (100, 50000000.0),
        (32768, 50000000.0),
        (40000, 117777120.0),
        (65536, 360979296.0),
    ],
)
def test_dynamic_is_plain_with_another_base(seq_len: int | None, base: float) -> None:
    found = frequencies(SAMPLES["dynamic"], seq_len).inv_freq
    plain = replace(PLAIN, theta=base, head_dim=128, rotary_dim=128)
    assert same_bits(found, frequencies(plain).inv_freq)


def test_alpha_sets_the_base_at_any_length() -> None:
    # 10000 * 1000^(128/126), float64: HunYuanVLRotaryEmbedding of transformers 5.24.0.
    plain = replace(PLAIN, theta=11158839.925, head_dim=128, rotary_dim=128)
    for seq_len in (None, 100, 1000000):
        found = frequencies(SAMPLES["dynamic with alpha"], seq_len).inv_freq
        assert same_bits(found, frequencies(plain).inv_freq)
    other_factor = replace(SAMPLES["dynamic with alpha"], factor=None)
    assert same_bits(frequencies(other_factor).inv_freq, frequencies(plain).inv_freq)


def test_longrope_takes_the_long_list_beyond_the_original_length() -> None:
    rope = SAMPLES["longrope"]
    plain = frequencies(replace(PLAIN, theta=10000.0, head_dim=96, rotary_dim=96)).inv_freq
    for seq_len, divisors in ((None, SHORT), (1, SHORT), (4096, SHORT), (4097, LONG)):
        found = frequencies(rope, seq_len)
        ratio = plain / found.inv_freq.astype(np.float64)
        assert ratio == pytest.approx(np.array(divisors), rel=3e-7)
        # Phi-3.5-mini-instruct in rope_reference.json.
        assert found.attention_factor == pytest.approx(1.1902380714238083, abs=1e-12, rel=0)


def test_longrope_attention_factors() -> None:
    rope = SAMPLES["longrope"]
    # microsoft/Phi-3.5-MoE-instruct states 1.243163121016122 for both; two values here
    # show which is taken, as PhimoeRotaryEmbedding.forward of transformers 5.24.0 does.
    moe = replace(rope, short_mscale=1.1, long_mscale=1.25, attention_factor=2.0)
    assert frequencies(moe, 4096).attention_factor == 1.1
    assert frequencies(moe, 4097).attention_factor == 1.25
    # transformers 5.24.0: factor 8 wins over the ratio of lengths, 32.
    factor = frequencies(replace(rope, factor=8.0)).attention_factor
    assert factor == pytest.approx(1.118033988749895, abs=1e-12, rel=0)
    assert frequencies(replace(rope, factor=1.0)).attention_factor == 1.0
    short = replace(rope, max_position_embeddings=2048)
    assert frequencies(short).attention_factor == 1.0
    assert frequencies(replace(rope, attention_factor=3.0)).attention_factor == 3.0


def test_freq_factors_divide() -> None:
    # llama.cpp divides the angle by rope_freqs; Llama 3's own factors are plain / scaled.
    plain = frequencies(PLAIN).inv_freq
    scaled = frequencies(SAMPLES["llama3"]).inv_freq
    factors = tuple(float(x) for x in plain / scaled)
    found = frequencies(replace(PLAIN, freq_factors=factors)).inv_freq
    assert found == pytest.approx(scaled, rel=2**-22)
    assert same_bits(found[18:], scaled[18:])
    assert not same_bits(found, plain)


def test_freq_factors_as_a_gguf_file_holds_them() -> None:
    # llama.cpp's converter, `LlamaModel.generate_extra_tensors`: what it writes as
    # rope_freqs.weight for Llama-3.2-1B-Instruct.
    base = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    wavelength = 2 * np.pi / base
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    blend = 1 / ((1 - np.clip(smooth, 0, 1)) / 32.0 + np.clip(smooth, 0, 1))
    rope_freqs = np.where(wavelength < 2048, 1, np.where(wavelength > 8192, 32, blend))
    given = tuple(float(x) for x in rope_freqs.astype(np.float32))
    found = frequencies(replace(PLAIN, freq_factors=given))
    expected = np.array([float.fromhex(x) for x in LLAMA_3_2_1B])
    assert found.inv_freq == pytest.approx(expected, rel=2**-21)
    assert found.attention_factor == 1


def test_proportional_leaves_the_rest_at_zero() -> None:
    # Gemma 4: 64 of 256 pairs turn, and exponents are divided by 512.
    found = frequencies(SAMPLES["proportional"]).inv_freq
    assert np.flatnonzero(found).tolist() == list(range(64))
    assert found[1] == np.float32(1 / np.float32(1000000.0 ** (2 / 512)))


def test_a_result_is_read_only_and_its_own() -> None:
    one, other = frequencies(PLAIN), frequencies(PLAIN)
    assert one.inv_freq is not other.inv_freq
    with pytest.raises(ValueError, match="read-only"):
        one.inv_freq[0] = 2.0


@pytest.mark.parametrize("seq_len", [0, -1, True, 1.5, "4096"])
def test_a_length_that_is_none(seq_len: object) -> None:
    with pytest.raises(ScheduleError) as error:
        frequencies(SAMPLES["dynamic"], seq_len)  # type: ignore[arg-type]  # that is the test
    assert error.value.key == "seq_len"


def test_a_base_beyond_float32() -> None:
    with pytest.raises(ScheduleError) as error:
        frequencies(replace(SAMPLES["dynamic"], theta=1e38), 65536)
    assert error.value.key == "factor"


positive = st.floats(1e-45, 3.4e38) | st.integers(1, 10**38)


@given(
    name=st.sampled_from(sorted(SAMPLES)),
    theta=positive,
    factor=st.none() | st.floats(1, 3.4e38),
    original=st.integers(1, 2**53 - 1),
    seq_len=st.none() | st.integers(1, 2**40),
)
def test_what_is_not_refused_is_finite(
    name: str, theta: float, factor: float | None, original: int, seq_len: int | None
) -> None:
    # The property needs no reference: the formulas have no other results.
    rope = replace(SAMPLES[name], theta=theta)
    if rope.factor is not None:
        rope = replace(rope, factor=factor)
    if rope.original_max_position_embeddings is not None:
        rope = replace(rope, original_max_position_embeddings=original)
    with suppress(ScheduleError):
        found = frequencies(rope, seq_len)
        assert np.isfinite(found.inv_freq).all()
        assert (found.inv_freq >= 0).all()
        assert found.attention_factor > 0


def test_frequencies_beyond_float32() -> None:
    with pytest.raises(ScheduleError) as error:
        frequencies(replace(PLAIN, theta=1e-44))
    assert error.value.key == "theta"


def test_one_function_per_known_type() -> None:
    assert set(SCHEDULES) == set(FIELDS)


KINDS = (
    "default",
    "linear",
    "dynamic",
    "alpha",
    "llama3",
    "yarn",
    "longrope",
    "proportional",
)


def random_request(kind: str, chance: random.Random) -> dict[str, object]:
    """A random valid config of `kind`, as transformers_frequencies.py wants it."""
    head_dim = chance.choice([32, 48, 64, 80, 96, 112, 128, 192, 256])
    parts = [p for p in (0.1, 0.25, 0.334, 0.4, 0.5, 0.75, 0.9, 1.0) if not int(head_dim * p) % 2]
    part = chance.choice([None, *parts])
    original = chance.choice([512, 2048, 4096, 8192, 30000, 32768, 65536])
    longest = original * chance.choice([1, 2, 8, 32])
    theta = chance.choice([10000, 10000.0, 500000.0, 1e6, round(10 ** chance.uniform(1, 8), 3)])
    factor = chance.choice([1, 2.0, 4, 8.0, 32.0, 40, round(chance.uniform(1, 64), 3)])
    block: dict[str, object] = {"rope_type": "dynamic" if kind == "alpha" else kind}
    block["rope_theta"] = theta
    if part is not None and kind != "alpha":
        block["partial_rotary_factor"] = part
    if kind not in ("default", "longrope"):
        block["factor"] = factor
    if kind == "alpha":
        block["alpha"] = chance.choice([1.0, 1000.0, round(chance.uniform(0.5, 5000), 2)])
    if kind in ("llama3", "yarn", "longrope"):
        block["original_max_position_embeddings"] = original
    if kind == "llama3":
        block["low_freq_factor"] = chance.choice([1.0, 1, 2.0, round(chance.uniform(0.1, 4), 3)])
        block["high_freq_factor"] = block["low_freq_factor"] + chance.choice([1, 3.0, 3.7])
    if kind == "yarn":
        block |= random_yarn(chance)
    if kind == "longrope":
        pairs = int(head_dim * (part or 1.0)) // 2
        for name, most in (("short_factor", 3), ("long_factor", 70)):
            block[name] = [chance.uniform(1, most) for _ in range(pairs)]
        block |= chance.choice([{}, {"factor": factor}, {"attention_factor": 1.25}])
    if kind == "proportional":
        block["partial_rotary_factor"] = part or chance.uniform(0.05, 1)
    return {
        "block": block,
        "head_dim": head_dim,
        "max_position_embeddings": longest,
        "seq_len": chance.choice([None, 1, original, original + 1, longest, longest * 3 + 7]),
    }


def random_yarn(chance: random.Random) -> dict[str, object]:
    fast = chance.choice([32, 32.0, 16, round(chance.uniform(4, 64), 2)])
    optional = {
        "beta_fast": fast,
        "beta_slow": chance.choice([1, 1.0, 2.5, min(fast, 32)]),
        "truncate": chance.random() < 0.5,
        "attention_factor": chance.uniform(0.5, 2),
        "mscale": chance.choice([0, 1.0, 0.707]),
        "mscale_all_dim": chance.choice([0, 1.0, 0.707]),
        "factor": None,
    }
    return {key: value for key, value in optional.items() if chance.random() < 0.4}


def rope_of(request: dict[str, object]) -> Rope:
    fields = dict(request["block"])
    kind, theta = fields.pop("rope_type"), fields.pop("rope_theta")
    for name in ("short_factor", "long_factor"):
        if name in fields:
            fields[name] = tuple(fields[name])
    head_dim, part = request["head_dim"], fields.get("partial_rotary_factor", 1.0)
    return Rope(
        type=kind,
        theta=theta,
        head_dim=head_dim,
        rotary_dim=head_dim if kind == "proportional" else int(head_dim * part),
        max_position_embeddings=request["max_position_embeddings"],
        **fields,
    )


# 34 such configs and what transformers 5.24.0 makes of them (torch 2.13.0, default
# capability). Among them: llama3 where dividing by a tensor at once would differ, yarn
# with the upper bound beyond d/2 - 1, and with both bounds alike.
STORED = json.loads((DATA / "rope_random.json").read_text(encoding="utf-8"))["results"]


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored["block"]["rope_type"])
def test_stored_random_configs_bit_for_bit(stored: dict[str, object]) -> None:
    found = frequencies(rope_of(stored), stored["seq_len"])
    inv_freq = np.array([float.fromhex(x) for x in stored["inv_freq"]], dtype=np.float32)
    assert same_bits(found.inv_freq, inv_freq)
    assert found.attention_factor == pytest.approx(stored["attention_factor"], abs=1e-12, rel=0)


@pytest.mark.oracle
@pytest.mark.skipif(not find_spec("transformers"), reason="needs the extra `oracle`")
@pytest.mark.parametrize("kind", KINDS)
def test_random_configs_bit_for_bit(kind: str) -> None:
    chance = random.Random(f"rope {kind}")
    requests = [random_request(kind, chance) for _ in range(200)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ORACLE)],
        input=json.dumps(requests),
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    assert len(answers) == 200
    for request, expected in zip(requests, answers, strict=True):
        found = frequencies(rope_of(request), request["seq_len"])
        inv_freq = np.array([float.fromhex(x) for x in expected["inv_freq"]], dtype=np.float32)
        assert same_bits(found.inv_freq, inv_freq), request
        assert found.attention_factor == pytest.approx(
            expected["attention_factor"], abs=1e-12, rel=0
        ), request
