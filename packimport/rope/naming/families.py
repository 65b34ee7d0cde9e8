"""Families: schedules of any parameters, fitted and compared, the simplest family first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from packimport.rope.naming import fits
from packimport.rope.naming.attention import with_amplitude
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.case import Case
from packimport.rope.naming.explanation import Explanation, explain, with_scale
from packimport.rope.naming.labels import joined
from packimport.rope.naming.lengths import at_length
from packimport.rope.naming.llama3_fits import llama3
from packimport.rope.naming.mold import Fit
from packimport.rope.naming.phases import phases, unwrap
from packimport.rope.naming.sample import Match
from packimport.rope.naming.suspects import Suspect
from packimport.rope.naming.yarn_fits import yarn

# How many members of a family are compared before it is given up.
_PATIENCE = 200
# Fits whose frequencies lie farther outside the ranges are not worth comparing.
_NEAR = 2.0**-19
# bfloat16 moves a number by at most this share.
_ROUGH = 2.0**-8

Family = Callable[[Case, Range], "Iterator[Fit]"]


def _yarn(case: Case, seen: Range, thetas: tuple[float, ...] = ()) -> Iterator[Fit]:
    return yarn(seen, case.mold, case.recovery.amplitude, thetas)


def _llama3(case: Case, seen: Range) -> Iterator[Fit]:
    return llama3(seen, case.mold)


FAMILIES: tuple[Family, ...] = (
    lambda case, seen: fits.plain(seen, case.mold),
    lambda case, seen: fits.scaled(seen, case.mold),
    lambda case, seen: fits.proportional(seen, case.mold),
)


def fitted(case: Case) -> Explanation | None:
    """The schedule of the simplest family that fits as if rounded once, else that fits."""
    case = case.refined()
    loose: Suspect | None = None
    # llama3 has no attention factor; yarn may have 1.
    amplitude = case.recovery.amplitude
    bands = (_llama3, _yarn) if amplitude.low <= 1 <= amplitude.high else (_yarn,)
    for family in (*FAMILIES, *bands):
        found = _best(case, family)
        if found is None:
            continue
        suspect, match = found
        if match == Match.EXACT:
            return _either(case, suspect) if family is _llama3 else _explain(case, suspect)
        loose = loose or suspect
    return None if loose is None else _explain(case, loose)


def _best(case: Case, family: Family) -> tuple[Suspect, Match] | None:
    best = None
    for seen in case.recovery.ranges:
        near = seen.widened(_NEAR)
        for fit in islice(family(case, seen), _PATIENCE):
            if not near.holds(fit.baked.inv_freq.astype(np.float64) * fit.scale):
                continue
            suspect = with_amplitude(_suspect(case, fit), case.recovery.amplitude, case.declared)
            match = case.sample.match(suspect.baked)
            if match == Match.EXACT:
                return suspect, match
            if match == Match.WITHIN and best is None:
                best = suspect, match
    return best


def _suspect(case: Case, fit: Fit) -> Suspect:
    name = with_scale(fit.rope, fit.scale, case.declared)
    return Suspect(name, fit.rope, fit.baked, "positions-scaled" if fit.scale != 1 else None)


def _explain(case: Case, suspect: Suspect) -> Explanation:
    return explain(at_length(case, suspect) or suspect, case.declared)


def _either(case: Case, suspect: Suspect) -> Explanation:
    """llama3, and yarn if that fits too: few pairs may all lie off both ramps."""
    explanation = _explain(case, suspect)
    thetas = (suspect.rope.theta,) if suspect.rope is not None else ()
    other = _best(case, partial(_yarn, thetas=thetas))
    if other is None or other[1] != Match.EXACT:
        return explanation
    names = (suspect.label, other[0].label)
    return replace(explanation, label=joined(names), ambiguous=names)


def rough_thetas(case: Case) -> Iterator[Suspect]:
    """Plain schedules near frequencies that rounding has moved."""
    few = case.sample.doublings()
    rough = unwrap(few, phases(few))
    if np.isfinite(rough).all():
        seen = Range(rough, rough).widened(_ROUGH)
        for fit in fits.plain(seen, case.mold):
            yield _suspect(case, fit)
