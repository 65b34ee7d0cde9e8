"""What bad input gets: a ScheduleError that names the field, for each type."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from samples import PLAIN, SAMPLES

from packimport.errors import ScheduleError
from packimport.rope.axes import LAYOUTS
from packimport.rope.fields import COMMON, FIELDS
from packimport.rope.frequencies import SCHEDULES, frequencies, validate
from packimport.rope.schedule import Rope

HUGE = 10**400
NO_NUMBERS = [
    pytest.param(value, id=repr(value)[:12])
    for value in (math.nan, math.inf, -math.inf, "8.0", True, False, [8.0], 1e39, HUGE)
]
WITH_FACTOR = [name for name, rope in SAMPLES.items() if rope.factor is not None]
WITH_ORIGINAL = [
    name for name, rope in SAMPLES.items() if rope.original_max_position_embeddings is not None
]
each_sample = pytest.mark.parametrize("name", SAMPLES)


def key_of(rope: Rope) -> str:
    """The field that validate names; frequencies refuses the same Rope."""
    with pytest.raises(ScheduleError) as error:
        validate(rope)
    with pytest.raises(ScheduleError) as again:
        frequencies(rope)
    assert again.value.key == error.value.key
    assert error.value.key in str(error.value)
    assert error.value.found is not None or "missing" in error.value.message
    return error.value.key


@each_sample
def test_samples_are_valid(name: str) -> None:
    validate(SAMPLES[name])


def test_every_type_has_a_sample() -> None:
    assert {rope.type for rope in SAMPLES.values()} == set(SCHEDULES)


@pytest.mark.parametrize("kind", ["", "su", "mrope", "ntk", "Linear", "axial", None, 1, ["linear"]])
def test_unknown_type(kind: object) -> None:
    assert key_of(replace(PLAIN, type=kind)) == "type"


@each_sample
@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 0.0, -0.0, -1, -10000.0, None])
def test_theta(name: str, value: object) -> None:
    assert key_of(replace(SAMPLES[name], theta=value)) == "theta"


@pytest.mark.parametrize("value", [1, 1.0, 0.5])
def test_theta_of_yarn_has_a_logarithm(value: float) -> None:
    assert key_of(replace(SAMPLES["yarn"], theta=value)) == "theta"


@each_sample
@pytest.mark.parametrize("field", ["head_dim", "rotary_dim"])
@pytest.mark.parametrize("value", [None, 0, -64, 64.0, "64", True, math.nan])
def test_dimensions(name: str, field: str, value: object) -> None:
    assert key_of(replace(SAMPLES[name], **{field: value})) == field


@each_sample
def test_odd_rotary_dim(name: str) -> None:
    rope = replace(SAMPLES[name], partial_rotary_factor=None, head_dim=129, rotary_dim=63)
    lists = {
        field: (1.0,) * 31
        for field in ("short_factor", "long_factor", "freq_factors")
        if getattr(rope, field) is not None
    }
    if rope.type == "proportional":
        rope = replace(rope, partial_rotary_factor=0.5)
    assert key_of(replace(rope, **lists)) == "rotary_dim"


@each_sample
def test_rotary_dim_beyond_the_head(name: str) -> None:
    rope = SAMPLES[name]
    assert key_of(replace(rope, head_dim=rope.rotary_dim - 2)) == "rotary_dim"


@each_sample
@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 0.0, -0.25, 1.0000001, 2])
def test_partial_factor(name: str, value: object) -> None:
    # 1 is legal for all, but True is not a number.
    found = key_of(replace(SAMPLES[name], partial_rotary_factor=value))
    assert found == "partial_rotary_factor"


@each_sample
def test_partial_factor_that_contradicts_the_dimensions(name: str) -> None:
    rope = SAMPLES[name]
    if rope.type == "proportional":
        # The partial factor of a proportional schedule leaves the width as it is.
        assert key_of(replace(rope, rotary_dim=128)) == "rotary_dim"
    else:
        assert key_of(replace(rope, partial_rotary_factor=0.5)) == "rotary_dim"
        validate(replace(rope, partial_rotary_factor=1.0))
        half = replace(rope, partial_rotary_factor=0.5, head_dim=2 * rope.head_dim)
        validate(half)


@pytest.mark.parametrize("name", WITH_FACTOR)
@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 0.0, -1, -8.0, 0.999, 0.25])
def test_factor(name: str, value: object) -> None:
    assert key_of(replace(SAMPLES[name], factor=value)) == "factor"


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -8.0, 0.25])
@pytest.mark.parametrize("name", ["longrope", "proportional"])
def test_optional_factor(name: str, value: object) -> None:
    assert key_of(replace(SAMPLES[name], factor=value)) == "factor"


@pytest.mark.parametrize("name", ["linear", "dynamic", "llama3"])
def test_factor_missing_or_null(name: str) -> None:
    assert key_of(replace(SAMPLES[name], factor=None)) == "factor"


def test_null_factor_of_yarn() -> None:
    null = replace(SAMPLES["yarn"], factor=None)
    validate(null)
    assert key_of(replace(null, max_position_embeddings=None)) == "max_position_embeddings"
    assert key_of(replace(null, max_position_embeddings=4095)) == "max_position_embeddings"


def test_null_factor_of_longrope() -> None:
    rope = SAMPLES["longrope"]
    assert key_of(replace(rope, max_position_embeddings=None)) == "max_position_embeddings"
    for given in ({"factor": 8.0}, {"attention_factor": 1.2}):
        validate(replace(rope, max_position_embeddings=None, **given))
    validate(replace(rope, max_position_embeddings=2048))


REQUIRED = [
    (name, field)
    for name, rope in SAMPLES.items()
    for field in sorted(FIELDS[rope.type].required)
    if rope.alpha is None
]


@pytest.mark.parametrize(("name", "field"), REQUIRED)
def test_required_field_missing(name: str, field: str) -> None:
    assert key_of(replace(SAMPLES[name], **{field: None})) == field


VALUES = {
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
    "attention_factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "short_factor": (1.0,),
    "long_factor": (1.0,),
    "short_mscale": 1.0,
    "long_mscale": 1.0,
    "alpha": 1000.0,
    "freq_factors": (1.0,),
}
FOREIGN = [
    (name, field)
    for name, rope in SAMPLES.items()
    for field in VALUES
    if field not in FIELDS[rope.type].required | FIELDS[rope.type].optional
]


def test_every_field_is_common_or_belongs_to_a_type() -> None:
    assert {f.name for f in fields(Rope)} == COMMON | set(VALUES)


@pytest.mark.parametrize(("name", "field"), FOREIGN)
def test_field_of_another_type(name: str, field: str) -> None:
    assert key_of(replace(SAMPLES[name], **{field: VALUES[field]})) == field


@pytest.mark.parametrize("name", WITH_ORIGINAL)
@pytest.mark.parametrize("value", [0, -1, -8192, 8192.0, "8192", True, math.nan])
def test_original_length(name: str, value: object) -> None:
    changed = replace(SAMPLES[name], original_max_position_embeddings=value)
    assert key_of(changed) == "original_max_position_embeddings"


def test_original_length_of_longrope_has_a_logarithm() -> None:
    changed = replace(SAMPLES["longrope"], original_max_position_embeddings=1)
    assert key_of(changed) == "original_max_position_embeddings"


@each_sample
@pytest.mark.parametrize("value", [0, -1, 32768.0, "32768", True])
def test_longest_length(name: str, value: object) -> None:
    changed = replace(SAMPLES[name], max_position_embeddings=value)
    assert key_of(changed) == "max_position_embeddings"


POSITIVE = [
    ("llama3", "low_freq_factor"),
    ("llama3", "high_freq_factor"),
    ("yarn", "beta_fast"),
    ("yarn", "beta_slow"),
    ("yarn", "attention_factor"),
    ("longrope", "attention_factor"),
    ("longrope", "short_mscale"),
    ("longrope", "long_mscale"),
    ("dynamic with alpha", "alpha"),
]


@pytest.mark.parametrize(("name", "field"), POSITIVE)
@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 0.0, -1.0])
def test_numbers_above_zero(name: str, field: str, value: object) -> None:
    both = {"short_mscale": 1.1, "long_mscale": 1.2} if "mscale" in field else {}
    assert key_of(replace(SAMPLES[name], **{**both, field: value})) == field


@pytest.mark.parametrize("field", ["mscale", "mscale_all_dim"])
@pytest.mark.parametrize("value", [*NO_NUMBERS, -0.707])
def test_mscale(field: str, value: object) -> None:
    assert key_of(replace(SAMPLES["yarn"], **{field: value})) == field
    validate(replace(SAMPLES["yarn"], **{field: 0}))


@pytest.mark.parametrize("value", [0, 1, "false", math.nan])
@pytest.mark.parametrize("field", ["truncate", "interleaved", "trailing"])
def test_flags(field: str, value: object) -> None:
    assert key_of(replace(SAMPLES["yarn"], **{field: value})) == field


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"high_freq_factor": 1.0}, "high_freq_factor"),
        ({"high_freq_factor": 0.5}, "high_freq_factor"),
        ({"low_freq_factor": 5.0}, "high_freq_factor"),
    ],
)
def test_bounds_of_llama3_in_order(changes: dict[str, float], key: str) -> None:
    assert key_of(replace(SAMPLES["llama3"], **changes)) == key


def test_bounds_of_yarn_in_order() -> None:
    assert key_of(replace(SAMPLES["yarn"], beta_fast=0.5)) == "beta_fast"
    assert key_of(replace(SAMPLES["yarn"], beta_slow=33.0)) == "beta_fast"
    # Kimi-K2-Instruct has 1 for both.
    validate(replace(SAMPLES["yarn"], beta_fast=1.0, beta_slow=1.0))


LISTS = [
    ("longrope", "short_factor"),
    ("longrope", "long_factor"),
    ("default with freq_factors", "freq_factors"),
]


@pytest.mark.parametrize(("name", "field"), LISTS)
def test_list_length(name: str, field: str) -> None:
    given = getattr(SAMPLES[name], field)
    for values in ((), given[:-1], (*given, 1.0), given * 2, list(given), 1.0, "1.0"):
        assert key_of(replace(SAMPLES[name], **{field: values})) == field


@pytest.mark.parametrize(("name", "field"), LISTS)
@pytest.mark.parametrize("value", [*NO_NUMBERS, None, 0, 0.0, -1.0])
def test_list_entries(name: str, field: str, value: object) -> None:
    values = (*getattr(SAMPLES[name], field)[:-1], value)
    assert key_of(replace(SAMPLES[name], **{field: values})) == field


@pytest.mark.parametrize("field", ["short_mscale", "long_mscale"])
def test_mscales_of_longrope_come_together(field: str) -> None:
    other = {"short_mscale": "long_mscale", "long_mscale": "short_mscale"}[field]
    assert key_of(replace(SAMPLES["longrope"], **{field: 1.2})) == other


@pytest.mark.parametrize("name", ["dynamic", "dynamic with alpha"])
def test_dynamic_needs_two_pairs(name: str) -> None:
    assert key_of(replace(SAMPLES[name], rotary_dim=2)) == "rotary_dim"


def test_alpha_needs_neither_factor_nor_length() -> None:
    validate(replace(SAMPLES["dynamic with alpha"], factor=None, max_position_embeddings=None))


# 64 pairs: the sections of Qwen2-VL, Qwen3-VL, Ernie 4.5 VL and HunyuanOCR.
MROPE = {
    "chunked": (16, 24, 24),
    "interleaved": (24, 20, 20),
    "alternating": (22, 22, 20),
    "doubled": (16, 16, 16, 16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sections_that_fit(layout: str) -> None:
    wide = replace(PLAIN, head_dim=128, rotary_dim=128)
    validate(replace(wide, mrope_layout=layout, mrope_section=MROPE[layout]))


@pytest.mark.parametrize("name", ["linear", "dynamic", "dynamic with alpha", "llama3", "yarn"])
def test_sections_belong_to_every_type(name: str) -> None:
    pairs = SAMPLES[name].pairs
    section = (pairs - 4, 2, 2)
    validate(replace(SAMPLES[name], mrope_layout="chunked", mrope_section=section))
    one_off = replace(SAMPLES[name], mrope_layout="chunked", mrope_section=(pairs - 4, 2, 3))
    assert key_of(one_off) == "mrope_section"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sections_that_do_not_fit(layout: str) -> None:
    wide = replace(PLAIN, head_dim=128, rotary_dim=128, mrope_layout=layout)
    first, *rest = MROPE[layout]
    wrong: list[object] = [None, (), (first + 1, *rest), (first - 1, *rest), (0, *rest)]
    wrong += [(float(first), *rest), list(MROPE[layout]), "16", (first + 2, -2, *rest[1:])]
    if layout != "doubled":
        wrong += [(32, 32), (16, 16, 16, 16)]
    if layout == "alternating":
        wrong.append((22, 20, 22))
    if layout == "interleaved":
        # Height would need pair 1 + 3 * 22 = 67 of 64.
        wrong.append((21, 23, 20))
    for sections in wrong:
        assert key_of(replace(wide, mrope_section=sections)) == "mrope_section"


def test_layout_of_sections() -> None:
    for layout in (None, "", "CHUNKED", 3):
        assert key_of(replace(PLAIN, mrope_section=(8, 12, 12), mrope_layout=layout)) == (
            "mrope_layout"
        )
