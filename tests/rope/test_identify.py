"""identify on single tables: labels, coincidences, doubt, damage, refusals.

Tables come from `baked_tables` (the formulas), or from frequencies that transformers
5.24.0 computed (data/rope_reference.json, data/rope_random.json).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import baked_tables as bake
import numpy as np
import pytest
from rope_reference import rows as reference_rows
from samples import SAMPLES

from packimport.errors import ScheduleError
from packimport.rope.difference import tolerance
from packimport.rope.identify import MISTAKES, identify
from packimport.rope.schedule import Rope

DATA = Path(__file__).parent.parent / "data"

# Llama-3.2-1B's RoPE.
LLAMA3 = bake.rope(
    "llama3",
    64,
    500000.0,
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
    max_position_embeddings=131072,
)
RIGHT = bake.llama3(64, 500000.0, 32.0, 8192)
DTYPES = list(bake.DTYPES)
in_each_dtype = pytest.mark.parametrize("dtype", DTYPES)


class TestLabels:
    @in_each_dtype
    def test_the_declared_schedule_has_its_bare_type(self, dtype: str) -> None:
        found = identify(*bake.table(RIGHT, 4096, dtype), [LLAMA3])
        assert found.label == "llama3"
        assert found.rope == LLAMA3
        assert found.mistake is None
        assert found.position_scale == 1
        assert found.attention_factor == 1
        np.testing.assert_allclose(found.frequencies, RIGHT, rtol=2.0**-23)

    @in_each_dtype
    def test_without_a_declaration_every_parameter_is_named(self, dtype: str) -> None:
        assert identify(*bake.table(RIGHT, 4096, dtype)).label == (
            "llama3 with theta 500000, factor 32, low_freq_factor 1, high_freq_factor 4,"
            " original_max_position_embeddings 8192"
        )

    def test_only_differing_fields_are_named(self) -> None:
        def label(inv_freq: bake.Float32s, declared: Rope = LLAMA3) -> str:
            return identify(*bake.table(inv_freq, 4096), [declared]).label

        assert label(bake.llama3(64, 500000.0, 32.0, 131072)) == (
            "llama3 with original_max_position_embeddings 131072"
        )
        assert label(bake.llama3(64, 500000.0, 8.0, 8192)) == "llama3 with factor 8"
        assert label(bake.llama3(64, 10000.0, 32.0, 8192)) == "llama3 with theta 10000"
        assert label(bake.llama3(64, 500000.0, 32.0, 8192, low=1, high=2)) == (
            "llama3 with high_freq_factor 2"
        )
        assert label(bake.plain(64, 500000.0)) == "default"
        assert label(bake.plain(64, 10000.0)) == "default with theta 10000"
        assert label(bake.linear(64, 500000.0, 4.0)) == "linear with factor 4"

    def test_the_first_candidate_alone_has_the_bare_type(self) -> None:
        one, other = bake.rope("default", 64, 1e6), bake.rope("default", 64, 1e4)
        table = bake.table(bake.plain(64, 1e4), 512)
        assert identify(*table, [other, one]).label == "default"
        found = identify(*table, [one, other])
        assert found.label == "default with theta 10000"
        # Two rows of `MISTAKES` would say so; the other layer's table comes first.
        assert found.mistake == "layers-swapped"
        assert found.rope == other

    def test_position_scale(self) -> None:
        doubled = bake.table(RIGHT, 2048, scale=2.0)
        found = identify(*doubled, [LLAMA3])
        assert (found.label, found.position_scale) == ("positions scaled by 2", 2.0)
        assert found.rope == LLAMA3
        np.testing.assert_allclose(found.frequencies, 2 * RIGHT.astype(np.float64), rtol=2.0**-22)
        plain = identify(*bake.table(bake.plain(64, 1e4), 2048, scale=4.0))
        assert plain.label == "default with theta 10000, positions scaled by 4"


class TestCoincidences:
    def test_linear_is_positions_divided(self) -> None:
        table = bake.table(bake.linear(64, 1e4, 4.0), 2048)
        declared = bake.rope("default", 64, 1e4)
        found = identify(*table, [declared])
        assert found.label == "linear with factor 4"
        assert found.equivalents == ("positions scaled by 1/4",)
        assert identify(*table).equivalents == (
            "default with theta 10000, positions scaled by 1/4",
        )

    def test_llama3_with_its_numbers_doubled(self) -> None:
        # facts of transformers 5.24.0: (8192, 1, 4) and (16384, 2, 8) are equal bit for bit.
        doubled = replace(
            LLAMA3,
            low_freq_factor=2.0,
            high_freq_factor=8.0,
            original_max_position_embeddings=16384,
        )
        table = bake.table(RIGHT, 4096)
        assert identify(*table, [LLAMA3]).equivalents == ()
        found = identify(*table, [doubled])
        assert (found.label, found.rope) == ("llama3", doubled)
        assert found.equivalents == (
            "llama3 with low_freq_factor 1, high_freq_factor 4,"
            " original_max_position_embeddings 8192",
        )
        both = identify(*table, [LLAMA3, doubled])
        assert both.label == "llama3"
        assert both.ambiguous == ()
        assert len(both.equivalents) == 1

    def test_dynamic_at_a_length_is_another_theta(self) -> None:
        # InternLM3: transformers 5.24.0's base at 65536 is 360979300.43.
        declared = SAMPLES["dynamic"]
        table = bake.table(bake.dynamic(128, 5e7, 6.0, 32768, 65536), 4096)
        found = identify(*table, [declared])
        assert found.label == "dynamic at length 65536"
        assert found.mistake == "dynamic-baked"
        assert identify(*table).label.startswith("default with theta 36097")

    def test_dynamic_within_its_length_is_plain(self) -> None:
        found = identify(*bake.table(bake.plain(128, 5e7), 1024), [SAMPLES["dynamic"]])
        assert (found.label, found.equivalents) == ("dynamic", ("default",))

    def test_a_band_that_holds_no_pair(self) -> None:
        # 2*pi*1e4 is shorter than the shortest wavelength that is scaled.
        declared = replace(LLAMA3, theta=1e4, original_max_position_embeddings=1 << 20)
        found = identify(*bake.table(bake.plain(64, 1e4), 1024), [declared])
        assert (found.label, found.equivalents, found.ambiguous) == ("llama3", ("default",), ())


class TestDoubt:
    """What the dtype does not show is not claimed."""

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize("factor", [1.0000003, 1.1])
    def test_schedules_that_differ_by_less_than_the_dtype_shows(
        self, dtype: str, factor: float
    ) -> None:
        declared = bake.rope("linear", 16, 1e4, factor=factor)
        divided = bake.table(bake.linear(16, 1e4, factor), 8, dtype)
        plain = bake.table(bake.plain(16, 1e4), 8, dtype)
        same = all((a == b).all() for a, b in zip(divided, plain, strict=True))
        assert same == (factor < 1.05)
        for table, label in ((divided, "linear"), (plain, "default")):
            found = identify(*table, [declared])
            assert found.label == ("linear or default" if same else label)
            assert found.ambiguous == (("linear", "default") if same else ())

    @pytest.mark.parametrize("factor", [1.00001, 1.001])
    def test_float32_shows_more(self, factor: float) -> None:
        declared = bake.rope("linear", 64, 1e4, factor=factor)
        for inv_freq, label in (
            (bake.linear(64, 1e4, factor), "linear"),
            (bake.plain(64, 1e4), "default"),
        ):
            found = identify(*bake.table(inv_freq, 256), [declared])
            assert (found.label, found.ambiguous) == (label, ())

    def test_one_row_says_nothing(self) -> None:
        found = identify(*bake.table(RIGHT, 1), [LLAMA3])
        assert found.label != "llama3"
        assert {"llama3", "default"} <= set(found.ambiguous)
        assert identify(*bake.table(RIGHT, 1)).label == "unknown"


class TestUnknown:
    @in_each_dtype
    def test_frequencies_are_recovered(self, dtype: str) -> None:
        rng = np.random.default_rng(5)
        inv_freq = (bake.plain(64, 1e4) * rng.uniform(0.5, 1, 32)).astype(np.float32)
        found = identify(*bake.table(inv_freq, 4096, dtype), [LLAMA3])
        assert (found.label, found.rope, found.mistake) == ("unknown", None, None)
        error = {"float32": 1e-6, "float16": 1e-5, "bfloat16": 1e-4}[dtype]
        np.testing.assert_allclose(found.frequencies, inv_freq, rtol=error)

    def test_frequencies_of_slow_pairs_in_float16(self) -> None:
        # The sines of the slow pairs are subnormal or zero; nothing is invented.
        inv_freq = (bake.plain(32, 1e8) * np.linspace(0.7, 1, 16)).astype(np.float32)
        found = identify(*bake.table(inv_freq, 256, "float16"))
        assert np.isfinite(found.frequencies).all()
        np.testing.assert_allclose(found.frequencies, inv_freq, atol=2.0**-24 / 100, rtol=1e-3)

    def test_noise(self) -> None:
        rng = np.random.default_rng(6)
        noise = [rng.uniform(-1, 1, (512, 32)).astype(np.float32) for _ in range(2)]
        found = identify(*noise, [LLAMA3])
        assert found.label == "unknown"
        assert np.isnan(found.frequencies).all()

    def test_every_row_damaged(self) -> None:
        cos, sin = bake.table(RIGHT, 64)
        cos[:] = np.nan
        found = identify(cos, sin, [LLAMA3])
        assert found.label == "unknown, NaN or infinite values in every row"
        assert found.mistake == "rows-not-finite"


class TestNoFalseOk:
    """A table that is not the declared one never gets its bare name."""

    @pytest.mark.parametrize("seed", range(60))
    def test_one_pair_or_all_of_them_off(self, seed: int) -> None:
        rng = np.random.default_rng([40, seed])
        dtype = str(rng.choice(DTYPES))
        rows = int(rng.choice([256, 2048, 16384]))
        inv_freq = RIGHT.copy()
        pair = slice(None) if rng.integers(2) else slice(p := int(rng.integers(32)), p + 1)
        inv_freq[pair] *= np.float32(1 + rng.choice([-1, 1]) * 10 ** rng.uniform(-5, -0.5))
        cos, sin = bake.table(inv_freq, rows, dtype)
        angle = np.outer(np.arange(rows, dtype=np.float32), RIGHT).astype(np.float64)
        wrong = np.zeros(rows, dtype=bool)
        for given, right in ((cos, np.cos(angle)), (sin, np.sin(angle))):
            error = np.abs(given.astype(np.float64) - right)
            wrong |= (error > tolerance(right, angle, 1.0, given.dtype)).any(axis=1)
        found = identify(cos, sin, [LLAMA3])
        # A table within the tolerance is right. Naming looks at some rows only: a table
        # that is wrong in very few is left to `difference`.
        if wrong.mean() > 0.05:
            assert found.label != "llama3"
        if not wrong.any():
            assert "llama3" in (found.label, *found.ambiguous)

    @pytest.mark.parametrize("first", [1, 3000, 4095, 8000])
    def test_a_row_in_the_wrong_place_anywhere(self, first: int) -> None:
        cos, sin = bake.table(RIGHT, 8192)
        for array in (cos, sin):
            array[first] = array[first - 1]
        found = identify(cos, sin, [LLAMA3])
        assert found.label == f"llama3, other values in row {first}"
        assert found.mistake == "rows-changed"

    @pytest.mark.parametrize("row", [0, 1, 777, 8191])
    @in_each_dtype
    def test_one_entry_that_is_not_a_number(self, dtype: str, row: int) -> None:
        cos, sin = bake.table(RIGHT, 8192, dtype)
        sin[row, 13] = -np.inf if row % 2 else np.nan
        found = identify(cos, sin, [LLAMA3])
        assert "NaN or infinite" in found.label
        assert found.mistake == "rows-not-finite"

    def test_two_tables_in_one(self) -> None:
        # A third of the rows belongs to another schedule.
        cos, sin = bake.table(RIGHT, 3000)
        for array, other in zip((cos, sin), bake.table(bake.plain(64, 1e4), 3000), strict=True):
            array[2000:] = other[2000:]
        found = identify(cos, sin, [LLAMA3])
        assert found.label == "llama3, other values from row 2000 on"


class TestDistortions:
    def test_frequencies_run_backwards(self) -> None:
        cos, sin = bake.table(RIGHT, 512)
        assert (identify(cos, -sin, [LLAMA3]).frequencies < 0).all()
        assert (identify(sin, cos, [LLAMA3]).frequencies < 0).all()

    def test_frequencies_keep_the_stored_order(self) -> None:
        order = np.random.default_rng(3).permutation(32)
        found = identify(*bake.table(RIGHT[order], 512), [LLAMA3])
        assert found.label == "llama3, pairs in another order"
        np.testing.assert_allclose(found.frequencies, RIGHT[order], rtol=2.0**-22)

    @pytest.mark.parametrize(
        ("stored", "text"),
        [
            (np.repeat(RIGHT, 2), "each pair stored twice"),
            (np.tile(RIGHT, 2), "stored twice"),
        ],
    )
    def test_a_table_of_doubled_pairs(self, stored: bake.Float32s, text: str) -> None:
        # The whole schedule in twice the width: pairs interleaved, or both halves stored.
        found = identify(*bake.table(stored, 512), [LLAMA3])
        assert found.label == f"llama3, {text}"
        assert found.mistake == "pairs-repeated"
        np.testing.assert_allclose(found.frequencies, stored, rtol=2.0**-22)

    def test_the_first_half_of_the_pairs_doubled(self) -> None:
        # Interleaved, then cut at the width of the half-split table.
        found = identify(*bake.table(np.repeat(RIGHT, 2)[:32], 2048), [LLAMA3])
        assert found.label.endswith("each pair stored twice")
        assert found.label.startswith("llama3")
        assert found.mistake == "pairs-repeated"

    def test_rounded_angles_without_a_declaration(self) -> None:
        positions = np.arange(2048, dtype=np.float32)
        angles = bake.shorten(np.outer(positions, bake.plain(64, 1e6)), "bfloat16")
        found = identify(*bake.cos_sin(angles, "float32"))
        assert found.label == "default with theta 1000000, angles rounded to bfloat16"
        assert found.mistake == "rounded"

    def test_a_distortion_of_a_mistake(self) -> None:
        cos, sin = bake.table(bake.plain(64, 500000.0), 512)
        found = identify(cos, -sin, [LLAMA3])
        assert (found.label, found.mistake) == ("default, sin negated", "llama3-lost")


class TestTransformersFrequencies:
    """Frequencies that transformers 5.24.0 computed for real and for random configs."""

    @pytest.mark.parametrize("row", list(reference_rows()), ids=lambda row: row.name)
    @in_each_dtype
    def test_real_configs(self, row, dtype: str) -> None:
        table = bake.table(row.inv_freq, 2048, dtype, attention=row.attention_factor)
        found = identify(*table, [row.rope])
        assert (found.label, found.mistake, found.ambiguous) == (row.rope.type, None, ())
        assert found.attention_factor == pytest.approx(row.attention_factor, abs=1e-12)

    STORED = json.loads((DATA / "rope_random.json").read_text(encoding="utf-8"))["results"]

    @pytest.mark.parametrize(
        "stored",
        [
            s
            for s in STORED
            if s["block"]["rope_type"] in ("default", "linear", "llama3", "yarn")
            # Else it is plain, or has too few pairs to be anything else.
            and s["block"].get("factor") != 1
            and len(s["inv_freq"]) >= 8
        ],
        ids=lambda stored: stored["block"]["rope_type"],
    )
    def test_random_configs_without_a_declaration(self, stored: dict[str, object]) -> None:
        inv_freq = np.array([float.fromhex(x) for x in stored["inv_freq"]], dtype=np.float32)
        table = bake.table(inv_freq, 4096, attention=stored["attention_factor"])
        found = identify(*table)
        kind = stored["block"]["rope_type"]
        betas = stored["block"].get("beta_fast", 32), stored["block"].get("beta_slow", 1)
        if kind == "yarn" and betas != (32, 1):
            # Only the canonical betas are looked for; another name must fit all the same.
            assert found.rope is None or found.rope.type in ("yarn", "llama3", "default")
        else:
            assert found.rope is not None
            assert found.rope.type == kind
        if found.rope is not None:
            np.testing.assert_allclose(found.frequencies, inv_freq, rtol=2.0**-20, atol=2.0**-34)


@pytest.mark.parametrize("pairs", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2, 3, 17])
@in_each_dtype
def test_tiny_and_odd_tables(pairs: int, rows: int, dtype: str) -> None:
    # No error, no warning, and the declared name for the declared table.
    d = 2 * pairs
    declared = bake.rope("default", d, 1e4)
    rng = np.random.default_rng(pairs)
    assert identify(*bake.table(bake.plain(d, 1e4), rows, dtype), [declared]).label == "default"
    for inv_freq in (
        bake.plain(d, 1e4) * np.float32(3),
        np.zeros(pairs, dtype=np.float32),
        rng.uniform(-4, 4, pairs).astype(np.float32),
        np.full(pairs, 1e10, dtype=np.float32),
        np.full(pairs, 1e-10, dtype=np.float32),
    ):
        cos, sin = bake.table(inv_freq, rows, dtype)
        for candidates in ([], [declared], list(SAMPLES.values())):
            for made in ((cos, sin), (sin, cos), (cos, -sin), (cos * 0, sin * 0), (cos, cos)):
                found = identify(*made, candidates)
                assert found.frequencies.shape == (pairs,)
                assert found.mistake is None or found.mistake in MISTAKES


class TestRefusals:
    @pytest.mark.parametrize(
        ("cos", "sin", "key"),
        [
            (np.zeros((4, 2)), np.zeros((4, 3)), "sin"),
            (np.zeros((0, 2)), np.zeros((0, 2)), "cos"),
            (np.zeros((4, 0)), np.zeros((4, 0)), "cos"),
            (np.zeros(4), np.zeros(4), "cos"),
            (np.zeros((4, 2), dtype=np.int32), np.zeros((4, 2), dtype=np.int32), "cos"),
            (np.zeros((4, 2), dtype=np.float32), np.zeros((4, 2), dtype=np.float16), "sin"),
        ],
    )
    def test_what_is_no_table(self, cos: np.ndarray, sin: np.ndarray, key: str) -> None:
        with pytest.raises(ScheduleError) as caught:
            identify(cos, sin)
        assert caught.value.key == key


def test_the_table_of_mistakes() -> None:
    for key, mistake in MISTAKES.items():
        assert mistake.id == key
        assert mistake.text
        assert "\n" not in mistake.text


def test_the_table_is_only_read() -> None:
    cos, sin = bake.table(RIGHT, 4096)
    for array in (cos, sin):
        array.flags.writeable = False
    before = cos.tobytes(), sin.tobytes()
    identify(cos, -sin, [LLAMA3])
    identify(cos[:, ::-1], sin[:, ::-1], [LLAMA3])
    assert (cos.tobytes(), sin.tobytes()) == before


def test_the_declared_rope_need_not_be_computable_to_be_compared() -> None:
    # A longrope whose lists do not fit the width: no suspect, but no error either.
    found = identify(*bake.table(RIGHT, 256), [SAMPLES["longrope"]])
    assert found.label.startswith("llama3 with")
