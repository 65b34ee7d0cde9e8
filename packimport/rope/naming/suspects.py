"""Suspects: the declared schedules, and what exporters are known to make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from packimport.errors import ScheduleError
from packimport.rope.frequencies import frequencies
from packimport.rope.naming.baked import Baked
from packimport.rope.naming.labels import label
from packimport.rope.naming.table_faults import TABLE_FAULTS
from packimport.rope.schedule import Rope


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """One schedule that may have made a table.

    label:       beside the first candidate.
    rope:        None where no Rope says it.
    mistake:     id of the known mistake, None for a candidate as declared.
    equivalents: labels of later suspects that bake the very same entries.
    """

    label: str
    rope: Rope | None
    baked: Baked
    mistake: str | None = None
    equivalents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fault may draw on besides the schedule: the other candidates, the table's shape."""

    candidates: tuple[Rope, ...]
    pairs: int
    rows: int


def plain(rope: Rope, theta: float | None = None) -> Rope:
    """The plain schedule of the same dimensions, and of the same theta unless one is given."""
    return Rope(
        type="default",
        theta=rope.theta if theta is None else theta,
        head_dim=rope.head_dim,
        rotary_dim=rope.rotary_dim,
        interleaved=rope.interleaved,
        trailing=rope.trailing,
        max_position_embeddings=rope.max_position_embeddings,
    )


def _lost(rope: Rope, _: Surroundings) -> Iterator[tuple[str, Rope]]:
    if rope.type != "default":
        kind = "alpha" if rope.alpha is not None else rope.type
        yield f"{kind}-lost" if kind != "dynamic" else "dynamic-baked", plain(rope)
    elif rope.freq_factors is not None:
        yield "freq-factors-lost", plain(rope)


def _original_max(rope: Rope, _: Surroundings) -> Iterator[tuple[str, Rope]]:
    longest = rope.max_position_embeddings
    if rope.type in ("llama3", "yarn") and longest is not None:
        # A null factor is the ratio of the two lengths, before one is lost.
        factor = rope.factor or longest / (rope.original_max_position_embeddings or longest)
        yield (
            f"{rope.type}-original-max",
            replace(rope, original_max_position_embeddings=longest, factor=factor),
        )


def _not_truncated(rope: Rope, _: Surroundings) -> Iterator[tuple[str, Rope]]:
    if rope.type == "yarn" and rope.truncate is not False:
        yield "yarn-not-truncated", replace(rope, truncate=False)


def _elsewhere(rope: Rope, around: Surroundings) -> Iterator[tuple[str, Rope]]:
    if rope.type == "default":
        for other in around.candidates:
            if other.type == "linear" and other.factor is not None:
                yield "linear-elsewhere", replace(plain(rope), type="linear", factor=other.factor)


def _theta(rope: Rope, _: Surroundings) -> Iterator[tuple[str, Rope]]:
    if rope.theta != 10000:
        yield "theta-lost", plain(rope, theta=10000.0)
        if rope.type != "default":
            yield "theta-lost", replace(rope, theta=10000.0)


Fault = Callable[[Rope, Surroundings], "Iterator[tuple[str, Rope]]"]

FAULTS: tuple[Fault, ...] = (
    _lost,
    _original_max,
    _not_truncated,
    _elsewhere,
    _theta,
)


def suspects(candidates: Sequence[Rope], pairs: int, rows: int) -> tuple[Suspect, ...]:
    """Every suspect for a table [rows, pairs], the candidates first, each with its faults after."""
    return merged(_all(Surroundings(tuple(candidates), pairs, rows)))


def merged(
    several: Iterable[Suspect], same: Callable[[Baked, Baked], bool] = Baked.same
) -> tuple[Suspect, ...]:
    """Those that bake the same table as one, under the first name."""
    found: list[Suspect] = []
    for suspect in several:
        index = next((i for i, s in enumerate(found) if same(s.baked, suspect.baked)), None)
        if index is None:
            found.append(suspect)
            continue
        first = found[index]
        names = dict.fromkeys((*first.equivalents, suspect.label, *suspect.equivalents))
        names.pop(first.label, None)
        found[index] = replace(first, equivalents=tuple(names))
    return tuple(found)


def _all(around: Surroundings) -> Iterator[Suspect]:
    declared = around.candidates[0] if around.candidates else None
    fitting = [_fit_width(rope, around.pairs) for rope in around.candidates]
    for index, (rope, width) in enumerate(fitting):
        yield from _suspect(rope, declared, width or ("layers-swapped" if index else None))
    for rope, width in fitting:
        for fault in FAULTS:
            for mistake, wrong in fault(rope, around):
                yield from _suspect(wrong, declared, width or mistake)
        for table_fault in TABLE_FAULTS:
            for text, mistake, baked in _safely(table_fault(rope, around.rows)):
                yield Suspect(text, None, baked, width or mistake)


def _fit_width(rope: Rope, pairs: int) -> tuple[Rope, str | None]:
    """`rope` over as many pairs as the table has, and the mistake that this would be."""
    if rope.pairs == pairs:
        return rope, None
    part = rope.rotary_dim / rope.head_dim
    mistake = None
    if 2 * pairs == rope.head_dim:
        mistake = "partial-lost"
    elif 2 * pairs == int(rope.rotary_dim * part):
        mistake = "partial-twice"
    wide = replace(
        rope,
        head_dim=max(rope.head_dim, 2 * pairs),
        rotary_dim=2 * pairs,
        partial_rotary_factor=None,
        mrope_section=None,
        mrope_layout=None,
    )
    return wide, mistake or "width"


def _suspect(rope: Rope, declared: Rope | None, mistake: str | None) -> Iterator[Suspect]:
    try:
        values = frequencies(rope)
    except ScheduleError:
        # A fault made a Rope that no formula accepts: no exporter made a table of it.
        return
    yield Suspect(label(rope, declared), rope, Baked.of(values), mistake)


def _safely(
    found: Iterator[tuple[str, str, Baked]],
) -> Iterator[tuple[str, str, Baked]]:
    try:
        yield from found
    except ScheduleError:
        return
