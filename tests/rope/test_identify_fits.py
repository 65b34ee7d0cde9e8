"""identify with nothing declared: parameters drawn at random, named by their type alone.

Reference: the formulas in `baked_tables`. A name is right if that type's formula,
with the parameters that were named, gives the table back: each entry within an ulp of
its dtype, and |angle| * 2^-21 + 2^-22 for the float32 steps. In float32 the
parameters themselves must come back.
"""

from __future__ import annotations

import math

import baked_tables as bake
import numpy as np
import pytest
from numpy.typing import NDArray

from packimport.rope.difference import tolerance
from packimport.rope.identify import Identification, identify
from packimport.rope.schedule import Rope

ROWS = (256, 1000, 2048, 4096, 32768, 131072)
SEEDS = 60


def drawn(kind: str, rng: np.random.Generator) -> dict[str, float]:
    """Parameters of one schedule; theta from 1e3 to 1e8."""
    value = 10 ** rng.uniform(3, 8)
    theta = rng.choice([1e4, 5e5, 1e6, float(f"{value:.2g}"), round(value), np.float32(value)])
    found = {"theta": float(theta)}
    some = float(f"{rng.uniform(1.5, 32):.3g}")
    if kind == "linear":
        found["factor"] = float(rng.choice([4, 8, some]))
    if kind == "scaled":
        found["scale"] = float(rng.choice([2, 3, 4, 8, 1.5, float(f"{rng.uniform(1.1, 10):.3g}")]))
    if kind == "llama3":
        low = float(rng.choice([1, 1, 2, float(f"{rng.uniform(0.5, 4):.2g}")]))
        high = low * float(rng.choice([4, 4, 2, float(f"{rng.uniform(1.3, 8):.2g}")]))
        found |= {"factor": float(rng.choice([8, 32, some])), "low": low, "high": high}
        found["original"] = int(rng.choice([2048, 8192, 131072, rng.integers(300, 140000)]))
    if kind == "yarn":
        found["factor"] = float(rng.choice([4, 40, some]))
        found["original"] = int(rng.choice([4096, 32768, rng.integers(1000, 140000)]))
    if kind == "proportional":
        found["share"] = float(rng.choice([0.25, 0.5, 0.75]))
    return found


def inv_freq(kind: str, d: int, p: dict[str, float]) -> bake.Float32s:
    if kind == "linear":
        return bake.linear(d, p["theta"], p["factor"])
    if kind == "llama3":
        return bake.llama3(
            d, p["theta"], p["factor"], int(p["original"]), low=p["low"], high=p["high"]
        )
    if kind == "yarn":
        return bake.yarn(d, p["theta"], p["factor"], int(p["original"]), truncate=True)
    if kind == "proportional":
        return bake.proportional(d, p["theta"], int(p["share"] * d // 2))
    return bake.plain(d, p["theta"])


def named(rope: Rope) -> bake.Float32s:
    """The frequencies of the Rope that was named, by the formulas of `baked_tables`."""
    d = rope.rotary_dim
    if rope.type == "linear":
        return bake.linear(d, rope.theta, rope.factor)
    if rope.type == "llama3":
        return bake.llama3(
            d,
            rope.theta,
            rope.factor,
            rope.original_max_position_embeddings,
            low=rope.low_freq_factor,
            high=rope.high_freq_factor,
        )
    if rope.type == "yarn":
        assert rope.beta_fast is None
        assert rope.beta_slow is None
        truncate = rope.truncate is not False
        original = rope.original_max_position_embeddings
        return bake.yarn(d, rope.theta, rope.factor, original, truncate=truncate)
    if rope.type == "proportional":
        return bake.proportional(d, rope.theta, int(rope.partial_rotary_factor * d // 2))
    assert rope.type == "default"
    return bake.plain(d, rope.theta)


def reproduces(found: Identification, cos: NDArray[np.generic], sin: NDArray[np.generic]) -> bool:
    """Whether what was named gives the table back; of a long one at every 7th row."""
    assert found.rope is not None
    rows = np.arange(0, len(cos), 7 if len(cos) > 4096 else 1)
    positions = (rows * found.position_scale).astype(np.float32)
    angle = np.outer(positions, named(found.rope)).astype(np.float64)
    for given, function in ((cos, np.cos), (sin, np.sin)):
        right = function(angle) * found.attention_factor
        error = np.abs(given[rows].astype(np.float64) - right)
        if not (error <= tolerance(right, angle, found.attention_factor, given.dtype)).all():
            return False
    return True


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", ["default", "linear", "scaled", "llama3", "yarn", "proportional"])
def test_any_parameters_are_named(kind: str, seed: int) -> None:
    rng = np.random.default_rng([30, seed, len(kind)])
    d = int(rng.choice([16, 32, 64, 80, 96, 128]))
    rows = int(rng.choice(ROWS, p=[0.25, 0.2, 0.2, 0.28, 0.05, 0.02]))
    dtype = str(rng.choice(list(bake.DTYPES)))
    p = drawn(kind, rng)
    baked = inv_freq(kind, d, p)
    attention = bake.yarn_attention(p["factor"]) if kind == "yarn" else 1.0
    scale = p.get("scale", 1.0)
    cos, sin = bake.table(baked, rows, dtype, attention=attention, scale=scale)

    found = identify(cos, sin)

    said = f"{kind}, d {d}, {rows} rows, {dtype}, {p}: {found.label}"
    assert found.rope is not None, said
    assert reproduces(found, cos, sin), said
    expected = "default" if kind == "scaled" else kind
    # A band that holds no pair leaves the table plain.
    plain = bake.plain(d, p["theta"]) if kind in ("llama3", "yarn") else None
    if plain is None or not np.allclose(baked, plain, rtol=2.0**-21, atol=0):
        assert found.rope.type == expected, said
    if dtype == "float32" and rows >= 1000 and kind in ("default", "linear", "scaled"):
        parameters = {"theta": found.rope.theta, "factor": found.rope.factor}
        parameters["scale"] = found.position_scale
        for name, value in p.items():
            assert math.isclose(parameters[name], value, rel_tol=1e-5), said


@pytest.mark.parametrize("seed", range(20))
def test_labels_hold_the_numbers_that_were_written(seed: int) -> None:
    # Numbers of few digits come back exactly, whatever the dtype, from 4096 rows on.
    rng = np.random.default_rng([31, seed])
    dtype = str(rng.choice(list(bake.DTYPES)))
    theta = float(rng.choice([1e4, 5e5, 1e6, 15e4, 5e6]))
    factor = float(rng.choice([2, 4, 8, 16]))
    d = int(rng.choice([64, 128]))
    for inv, label in (
        (bake.plain(d, theta), f"default with theta {theta:.0f}"),
        (bake.linear(d, theta, factor), f"linear with theta {theta:.0f}, factor {factor:.0f}"),
        (
            bake.llama3(d, theta, factor, 8192),
            f"llama3 with theta {theta:.0f}, factor {factor:.0f}, low_freq_factor 1,"
            " high_freq_factor 4, original_max_position_embeddings 8192",
        ),
    ):
        assert identify(*bake.table(inv, 4096, dtype)).label == label
