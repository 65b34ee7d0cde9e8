"""Stages: the ways to explain a table, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from packimport.rope.naming.attention import with_amplitude
from packimport.rope.naming.baked import ROUNDINGS, SHORT_DTYPES, Baked
from packimport.rope.naming.case import Case
from packimport.rope.naming.explanation import Explanation, explain
from packimport.rope.naming.families import fitted, rough_thetas
from packimport.rope.naming.labels import joined
from packimport.rope.naming.order import other_orders
from packimport.rope.naming.sample import Match, Sample
from packimport.rope.naming.scales import scaled_candidates
from packimport.rope.naming.suspects import Suspect, merged


def known(case: Case) -> Explanation | None:
    """A candidate as declared, or what a known mistake makes of one.

    Where several fit, those that fit as if rounded once win; where these are
    several still, the dtype can't tell them apart.
    """
    fitting = _fitting(case.sample, case, case.suspects)
    if len(fitting) > 1:
        fitting = _fitting(case.more(), case, [suspect for suspect, _ in fitting])
        best = max((match for _, match in fitting), default=Match.NONE)
        fitting = [pair for pair in fitting if pair[1] == best]
    if not fitting:
        return None
    # Each has an attention factor that fits: they differ in their angles or not at all.
    distinct = merged((suspect for suspect, _ in fitting), Baked.turns_like)
    first = explain(distinct[0], case.declared)
    names = tuple(dict.fromkeys(suspect.label for suspect in distinct))
    return first if len(names) < 2 else replace(first, label=joined(names), ambiguous=names)


def _fitting(sample: Sample, case: Case, among: Iterable[Suspect]) -> list[tuple[Suspect, Match]]:
    """The suspects that fit, as they are or with the attention factor that the table shows."""
    found: list[tuple[Suspect, Match]] = []
    for own in among:
        suspect, match = own, sample.match(own.baked)
        if match == Match.NONE:
            suspect = with_amplitude(own, case.recovery.amplitude, case.declared)
            match = Match.NONE if suspect is own else sample.match(suspect.baked)
        if match != Match.NONE:
            found.append((suspect, match))
    return found


def _first(case: Case, among: Iterable[Suspect]) -> Explanation | None:
    """The first that fits exactly, else the first that fits."""
    best = None
    for suspect in among:
        found = _fitting(case.sample, case, [suspect])
        if found and found[0][1] == Match.EXACT:
            return explain(found[0][0], case.declared)
        best = best or (found[0][0] if found else None)
    return None if best is None else explain(best, case.declared)


def _scaled(case: Case) -> Explanation | None:
    """A candidate with every position multiplied."""
    return _first(case, scaled_candidates(case))


def _rounded(case: Case) -> Explanation | None:
    """A suspect computed in half precision."""
    return _first(case, _roundings(case.suspects))


def _rounded_plain(case: Case) -> Explanation | None:
    """A plain schedule of any theta computed in half precision."""
    return _first(case, _roundings(rough_thetas(case)))


def _roundings(among: Iterable[Suspect]) -> Iterator[Suspect]:
    for suspect in among:
        for dtype in SHORT_DTYPES:
            for steps in ROUNDINGS:
                yield replace(
                    suspect,
                    label=f"{suspect.label}, {steps.what} {dtype}",
                    baked=replace(suspect.baked, rounding=(steps, dtype)),
                    mistake=suspect.mistake or "rounded",
                    equivalents=(),
                )


def _reordered(case: Case) -> Explanation | None:
    """Any of the above with its pairs in another order, or stored twice."""
    for order in other_orders(case):
        found = known(order.case) or fitted(order.case)
        if found is not None:
            return replace(
                found,
                label=f"{found.label}, {order.text}",
                ambiguous=tuple(f"{name}, {order.text}" for name in found.ambiguous),
                frequencies=found.frequencies[order.stored],
                mistake=found.mistake or order.mistake,
                equivalents=(),
                baked=None,
            )
    return None


def mostly(case: Case) -> tuple[Explanation, str] | None:
    """The suspect that most of the rows looked at follow, and where the others begin."""
    rows = case.sample.rows
    best, most = None, len(rows) // 2
    for suspect in case.suspects:
        if suspect.baked.then is None:
            agreeing = int(np.count_nonzero(case.sample.agreeing(suspect.baked)))
            if agreeing > most:
                best, most = suspect, agreeing
    if best is None:
        return None
    off = np.flatnonzero(~case.sample.agreeing(best.baked))
    before = int(rows[off[0] - 1]) if off[0] else -1
    gap = case.take(np.arange(before + 1, int(rows[off[0]]) + 1))
    first = int(gap.rows[np.argmin(gap.agreeing(best.baked))])
    rest = len(off) == len(rows) - off[0]
    return (
        explain(best, case.declared),
        f"other values from row {first} on" if rest else f"other values at row {first} and others",
    )


Stage = Callable[[Case], "Explanation | None"]

LATER: tuple[Stage, ...] = (_scaled, _rounded, fitted, _reordered, _rounded_plain)


def later(case: Case) -> Explanation | None:
    """What explains a table that is neither declared nor a known mistake."""
    return next((found for stage in LATER if (found := stage(case)) is not None), None)
