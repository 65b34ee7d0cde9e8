"""identify on tables drawn at random: every type, every mistake, three dtypes, 256 to 131072 rows.

The tables come from `baked_tables`: the formulas, in numpy, cos and sin rounded to
float32 and then to the dtype, as torch does. Two labels count as told apart by a dtype
where the tables differ by more than one of its ulps somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import baked_tables as bake
import numpy as np
import pytest
from numpy.typing import NDArray

from packimport.rope.identify import MISTAKES, Identification, identify
from packimport.rope.schedule import Rope

Table = tuple[NDArray[np.generic], NDArray[np.generic]]
Draw = Callable[["Chance"], Iterator["Baked"]]


@dataclass(frozen=True)
class Baked:
    """A table and what identify must say of it beside the candidates."""

    name: str
    inv_freq: bake.Float32s
    candidates: list[Rope]
    label: str
    mistake: str | None = None
    attention: float = 1.0
    scale: float = 1.0
    start: int = 0
    change: Callable[[Table], Table] = field(default=lambda table: table)


class Chance:
    """What one seed draws: dimensions, dtype, parameters as configs have them."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng([20, seed])
        self.d = int(rng.choice([16, 32, 64, 80, 96, 128]))
        self.rows = int(
            rng.choice([256, 1000, 2048, 4096, 32768, 131072], p=[0.3, 0.2, 0.2, 0.24, 0.05, 0.01])
        )
        self.dtype = str(rng.choice(list(bake.DTYPES)))
        self.theta = self.draw_theta()
        self.factor = float(rng.choice([4, 8, 32, float(f"{rng.uniform(2, 40):.3g}")]))
        self.original = int(rng.choice([2048, 4096, 8192]))
        self.longest = self.original * int(rng.choice([4, 16]))

    @property
    def pairs(self) -> int:
        return self.d // 2

    def draw_theta(self) -> float:
        """A theta from 1e3 to 1e8: well known, of two digits, an integer, or any float32."""
        value = 10 ** self.rng.uniform(3, 8)
        return float(
            self.rng.choice(
                [
                    self.rng.choice([1e4, 15e4, 5e5, 1e6, 5e6, 1e7]),
                    float(f"{value:.2g}"),
                    float(round(value)),
                    float(np.float32(value)),
                ]
            )
        )

    def pick(self, *values: float) -> float:
        return float(self.rng.choice(values))

    def rope(self, kind: str, **fields: object) -> Rope:
        fields = {"max_position_embeddings": self.longest, **fields}
        return bake.rope(kind, self.d, float(fields.pop("theta", self.theta)), **fields)


def table(baked: Baked, chance: Chance) -> Table:
    made = bake.table(
        baked.inv_freq,
        chance.rows,
        chance.dtype,
        attention=baked.attention,
        scale=baked.scale,
        start=baked.start,
    )
    return baked.change(made)


# What each type is, right and as exporters spoil it.


def llama3_rope(c: Chance) -> Rope:
    return c.rope(
        "llama3",
        factor=c.factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=c.original,
    )


def llama3(c: Chance) -> Iterator[Baked]:
    declared = [llama3_rope(c)]
    right = bake.llama3(c.d, c.theta, c.factor, c.original)
    of_max = bake.llama3(c.d, c.theta, c.factor, c.longest)
    named = f"llama3 with original_max_position_embeddings {c.longest}"
    yield Baked("right", right, declared, "llama3")
    yield Baked("lost", bake.plain(c.d, c.theta), declared, "default", "llama3-lost")
    yield Baked("original", of_max, declared, named, "llama3-original-max")
    if c.theta != 10000:
        yield Baked(
            "theta", bake.plain(c.d, 1e4), declared, "default with theta 10000", "theta-lost"
        )
    yield Baked("twice", right, declared, "positions scaled by 2", "positions-scaled", scale=2.0)
    yield Baked("half", right, declared, "positions scaled by 1/2", "positions-scaled", scale=0.5)


def linear(c: Chance) -> Iterator[Baked]:
    declared = [c.rope("linear", factor=c.factor)]
    local = c.rope("default", theta=12345.0)
    both = f"linear with factor {c.factor:g}"
    yield Baked("right", bake.linear(c.d, c.theta, c.factor), declared, "linear")
    yield Baked("lost", bake.plain(c.d, c.theta), declared, "default", "linear-lost")
    yield Baked(
        "elsewhere",
        bake.linear(c.d, 12345.0, c.factor),
        [local, *declared],
        both,
        "linear-elsewhere",
    )


def yarn(c: Chance) -> Iterator[Baked]:
    declared = [c.rope("yarn", factor=c.factor, original_max_position_embeddings=c.original)]
    right = bake.yarn(c.d, c.theta, c.factor, c.original)
    own = bake.yarn_attention(c.factor)
    yield Baked("right", right, declared, "yarn", attention=own)
    yield Baked("lost", bake.plain(c.d, c.theta), declared, "default", "yarn-lost")
    yield Baked(
        "original",
        bake.yarn(c.d, c.theta, c.factor, c.longest),
        declared,
        f"yarn with original_max_position_embeddings {c.longest}",
        "yarn-original-max",
        attention=own,
    )
    yield Baked(
        "range",
        bake.yarn(c.d, c.theta, c.factor, c.original, truncate=False),
        declared,
        "yarn with truncate false",
        "yarn-not-truncated",
        attention=own,
    )
    yield Baked(
        "upside down",
        bake.yarn_upside_down(c.d, c.theta, c.factor, c.longest),
        declared,
        "yarn upside down",
        "yarn-upside-down",
        attention=own,
    )


def attention(c: Chance) -> Iterator[Baked]:
    plain_yarn = c.rope("yarn", factor=c.factor, original_max_position_embeddings=c.original)
    right = bake.yarn(c.d, c.theta, c.factor, c.original)
    own = bake.yarn_attention(c.factor)
    yield Baked("lost", right, [plain_yarn], "yarn with attention_factor 1", "attention-lost")
    yield Baked(
        "twice",
        right,
        [plain_yarn],
        f"yarn with attention_factor {own * own:.10g}",
        "attention-twice",
        attention=own * own,
    )
    yield Baked(
        "mscale",
        right,
        [replace(plain_yarn, mscale=0.707, mscale_all_dim=0.707)],
        "yarn with attention_factor 0.707",
        "attention-mscale",
        attention=0.707,
    )
    yield Baked(
        "recomputed",
        right,
        [replace(plain_yarn, attention_factor=1.75)],
        f"yarn with attention_factor {own:.10g}",
        "attention-recomputed",
        attention=own,
    )


def longrope(c: Chance) -> Iterator[Baked]:
    short = tuple(np.sort(c.rng.uniform(1, 2, c.pairs)).tolist())
    long = tuple(np.sort(c.rng.uniform(3, 64, c.pairs)).tolist())
    declared = [
        c.rope(
            "longrope",
            short_factor=short,
            long_factor=long,
            original_max_position_embeddings=c.original,
        )
    ]
    own = bake.longrope_attention(c.longest, c.original)
    of_short, of_long = (bake.longrope(c.d, c.theta, divisors) for divisors in (short, long))

    def behind(long_table: Table) -> Table:
        first = bake.table(of_short, c.original, c.dtype, attention=own)
        cos, sin = (np.concatenate(both) for both in zip(first, long_table, strict=True))
        return cos, sin

    yield Baked("right", of_short, declared, "longrope", attention=own)
    yield Baked(
        "long",
        of_long,
        declared,
        "longrope with the long list",
        "longrope-long",
        attention=own,
    )
    yield Baked("lost", bake.plain(c.d, c.theta), declared, "default", "longrope-lost")
    yield Baked(
        "concatenated",
        of_long,
        declared,
        "longrope, the short table then the long one",
        "longrope-concatenated",
        attention=own,
        change=behind,
    )


def dynamic(c: Chance) -> Iterator[Baked]:
    declared = [c.rope("dynamic", factor=c.factor, max_position_embeddings=c.original)]
    yield Baked("right", bake.plain(c.d, c.theta), declared, "dynamic")
    for length in (40000, 65536, int(c.factor * c.original)):
        yield Baked(
            f"at {length}",
            bake.dynamic(c.d, c.theta, c.factor, c.original, length),
            declared,
            f"dynamic at length {length}",
            "dynamic-baked",
        )
    yield Baked(
        "twice",
        bake.plain(c.d, c.theta),
        declared,
        "positions scaled by 2",
        "positions-scaled",
        scale=2.0,
    )


def partial(c: Chance) -> Iterator[Baked]:
    turning = c.pairs // 2
    plain = bake.plain(c.d, c.theta)
    declared = [c.rope("proportional", partial_rotary_factor=turning / c.pairs)]
    half = [Rope(type="default", theta=c.theta, head_dim=c.d, rotary_dim=turning * 2)]
    yield Baked("right", bake.proportional(c.d, c.theta, turning), declared, "proportional")
    yield Baked("lost", plain, declared, "default", "proportional-lost")
    yield Baked("wide", plain, half, f"default with rotary_dim {c.d}", "partial-lost")
    yield Baked(
        "exponents",
        plain[:turning],
        half,
        "default with exponents over head_dim",
        "partial-exponents",
    )


def distorted(c: Chance) -> Iterator[Baked]:
    declared = [llama3_rope(c)]
    right = bake.llama3(c.d, c.theta, c.factor, c.original)
    middle = c.rows // 2

    def filled(cos_value: float) -> Callable[[Table], Table]:
        def fill(made: Table) -> Table:
            for array, value in zip(made, (cos_value, 0.0), strict=True):
                array[middle:] = value
            return made

        return fill

    def spoiled(made: Table) -> Table:
        made[1][c.rows - 3, -1] = np.nan
        return made

    def moved(made: Table) -> Table:
        for array in made:
            array[middle : middle + 3] = array[:3]
        return made

    for text, mistake, change in (
        ("sin negated", "sin-negated", lambda t: (t[0], -t[1])),
        ("cos and sin swapped", "cos-sin-swapped", lambda t: t[::-1]),
        (f"zeros from row {middle} on", "rows-truncated", filled(0)),
        (f"no rotation from row {middle} on", "rows-truncated", filled(1)),
        (f"other values in 3 rows from row {middle}", "rows-changed", moved),
        (f"NaN or infinite values in row {c.rows - 3}", "rows-not-finite", spoiled),
    ):
        yield Baked(text, right, declared, f"llama3, {text}", mistake, change=change)
    for shift in (1, -1, int(c.rng.integers(2, 200))):
        text = f"rows shifted by {shift} position{'' if abs(shift) == 1 else 's'}"
        yield Baked(text, right, declared, f"llama3, {text}", "rows-shifted", start=shift)
    order = np.arange(c.pairs).reshape(2, -1).T.ravel()
    yield Baked("order", right[order], declared, "llama3, pairs in another order", "pairs-permuted")


def rounded(c: Chance) -> Iterator[Baked]:
    declared = [llama3_rope(c)]
    right = bake.llama3(c.d, c.theta, c.factor, c.original)
    positions = np.arange(c.rows, dtype=np.float32)
    for short in ("float16", "bfloat16"):
        low_positions, low_right = bake.shorten(positions, short), bake.shorten(right, short)
        for what, angles in (
            ("frequencies rounded to", np.outer(positions, low_right)),
            ("angles rounded to", bake.shorten(np.outer(positions, right), short)),
            ("angles computed in", bake.shorten(np.outer(low_positions, low_right), short)),
        ):
            text = f"{what} {short}"

            def change(_: Table, angles: bake.Float32s = angles) -> Table:
                return bake.cos_sin(angles, c.dtype)

            yield Baked(text, right, declared, f"llama3, {text}", "rounded", change=change)


GROUPS: dict[str, Draw] = {
    "llama3": llama3,
    "linear": linear,
    "yarn": yarn,
    "attention": attention,
    "longrope": longrope,
    "dynamic": dynamic,
    "partial": partial,
    "distorted": distorted,
    "rounded": rounded,
}
SEEDS = 12


def indistinct(one: Table, other: Table) -> bool:
    """Whether two tables of one dtype nowhere differ by more than an ulp of it."""
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return False
        eps = float(np.spacing(np.float64(1))) if a.dtype == np.float64 else EPS[a.dtype.name]
        wide, gap = (
            np.abs(a.astype(np.float64)),
            np.abs(a.astype(np.float64) - b.astype(np.float64)),
        )
        power = 2.0 ** np.floor(np.log2(np.maximum(wide, TINY[a.dtype.name])))
        if not (gap <= power * eps).all():
            return False
    return True


EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
TINY = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("group", GROUPS)
def test_every_mistake_is_named(group: str, seed: int) -> None:
    chance = Chance(1000 * list(GROUPS).index(group) + seed)
    cases = list(GROUPS[group](chance))
    tables = [table(case, chance) for case in cases]
    for case, made in zip(cases, tables, strict=True):
        found = identify(*made, case.candidates)
        rivals = [
            other.label
            for other, its in zip(cases, tables, strict=True)
            if other.label != case.label
            and other.candidates == case.candidates
            and indistinct(made, its)
        ]
        check(found, case, rivals, chance)


def check(found: Identification, case: Baked, rivals: list[str], chance: Chance) -> None:
    said = f"{case.name}, {chance.dtype}, {chance.rows} rows, d {chance.d}, {case.candidates}"
    assert found.mistake is None or found.mistake in MISTAKES, said
    if not rivals:
        assert found.label == case.label, said
        assert found.mistake == case.mistake, said
        return
    # The dtype shows no difference: all the names, or the tables coincide altogether.
    names = {found.label, *found.ambiguous, *found.equivalents}
    assert case.label in names, said
    assert len(names) > 1, said
    assert not found.ambiguous or found.label != case.candidates[0].type, said
