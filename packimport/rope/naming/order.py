"""Order: tables whose pairs lie in another order, or are stored twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packimport.rope.naming.case import Case
from packimport.rope.naming.suspects import Suspect, suspects


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """A case with its pairs put in order.

    stored: int64 [pairs of the table]: which pair of `case` each stored one is.
    """

    case: Case
    stored: NDArray[np.int64]
    text: str
    mistake: str


def other_orders(case: Case) -> Iterator[Order]:
    """The orders in which the table's pairs may be meant."""
    yield from _repeated(case)
    yield from _sorted(case)


def _repeated(case: Case) -> Iterator[Order]:
    """Each pair twice: neighbours, or the second half a copy of the first."""
    pairs = case.sample.pairs
    half = pairs // 2
    if pairs % 2 or pairs < 4:
        return
    index = np.arange(pairs)
    for stored, text in ((index // 2, "each pair stored twice"), (index % half, "stored twice")):
        first = np.array([int(np.argmax(stored == i)) for i in range(half)])
        same = first[stored]
        cos, sin = case.sample.cos, case.sample.sin
        if (cos == cos[:, same]).all() and (sin == sin[:, same]).all():
            # Either the whole schedule over half as many pairs, or its first half.
            halves = (*suspects(case.candidates, half, case.rows), *_halves(case, half))
            yield Order(
                replace(case.columns(first), suspects=halves), stored, text, "pairs-repeated"
            )


def _halves(case: Case, half: int) -> Iterator[Suspect]:
    for suspect in case.suspects:
        if suspect.baked.then is None:
            half_baked = replace(suspect.baked, inv_freq=suspect.baked.inv_freq[:half])
            yield replace(suspect, rope=None, baked=half_baked)


def _sorted(case: Case) -> Iterator[Order]:
    """The pairs by falling frequency, in the table and in every suspect alike."""
    found = case.recovery.frequencies
    if not np.isfinite(found).all():
        return
    order = np.argsort(-found, kind="stable")
    if (order == np.arange(len(order))).all():
        return
    falling = tuple(
        replace(s, baked=replace(s.baked, inv_freq=np.sort(s.baked.inv_freq)[::-1]))
        for s in case.suspects
        if s.baked.then is None
    )
    yield Order(
        replace(case.columns(order), suspects=falling),
        np.argsort(order),
        "pairs in another order",
        "pairs-permuted",
    )
