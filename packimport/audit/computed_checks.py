"""Checks of what a graph computes or chooses at every call: angles, factors, tables by length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packimport.audit.checks import PATCH, Finding, finding
from packimport.audit.judge import JudgedSite, cure_of, fixed_length, place_of, used_length
from packimport.graph.changes.uses import is_changeable
from packimport.semantics.model import Semantics


def factor(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    """Another attention factor than declared, where no constant of its own holds it."""
    m, waves = judged.measurement, judged.site.waves
    if waves is None or m.wrong_factor is None or waves.factors:
        return
    cos, sin, declared = m.wrong_factor
    yield finding(
        "RPE024",
        "the graph multiplies cos and sin by another attention factor than declared",
        **place_of(judged),
        expected=f"{declared:.9g}",
        found=f"{cos:.9g}" if cos == sin else f"{cos:.9g} for cos, {sin:.9g} for sin",
        fix=f"{PATCH} multiplies cos and sin by what is missing",
    )


def precision(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    """Angles in half precision."""
    waves = judged.site.waves
    if waves is not None and waves.dtype in {"float16", "bfloat16"}:
        exact = {"float16": 2048, "bfloat16": 256}[waves.dtype]
        yield finding(
            "RPE021",
            f"angles are computed in {waves.dtype}: positions above {exact} are inexact",
            **place_of(judged),
            expected="float32",
            found=waves.dtype,
            fix="keep the rotary embedding in float32 when converting, and export again",
        )


def growth(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    """The numbers of a base that follows the length; `_values` sees it at one length."""
    growth = judged.site.waves.growth if judged.site.waves is not None else None
    for rope in judged.ropes:
        if growth is None or rope is None or judged.measurement.wrong_pairs:
            continue
        found = (growth.theta, growth.factor, growth.longest)
        declared = (rope.theta, rope.factor, rope.max_position_embeddings)
        if rope.type != "dynamic" or not np.array_equal(
            np.array(found, np.float32), np.array(declared, np.float32)
        ):
            names = "theta {}, factor {}, from {} positions on"
            yield finding(
                "RPE025",
                "the base follows the length of the call otherwise than declared",
                **place_of(judged),
                expected=judged.declared,
                found=names.format(*found),
                fix="the numbers are constants of the graph: export the model again",
            )


def by_length(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    """One table where the schedule changes with length, or a change at another length."""
    # One table is right for these types only while the run stays within the length
    # up to which the schedule does not change.
    if judged.site.length is not None:
        yield from _switch(judged, semantics)
        return
    for rope in judged.ropes:
        # Where the graph can't be changed, right values would not be enough.
        is_last_word = judged.site.table is not None and not is_changeable(judged.site)
        if rope is None or (judged.measurement.wrong_pairs != 0 and not is_last_word):
            continue
        limit = fixed_length(rope)
        length = used_length(judged.site, rope, semantics)
        if limit is not None and length > limit:
            yield finding(
                "RPE012",
                f"{rope.type} needs another table beyond {limit} positions",
                **place_of(judged),
                expected=f"a usable length of at most {limit}, or tables by length",
                found=f"one table, usable length {length}",
                fix=cure_of(judged, f"limit search.max_length in genai_config.json to {limit}"),
            )


def _switch(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    length = judged.site.length
    assert length is not None
    for rope in judged.ropes:
        limit = fixed_length(rope) if rope is not None else None
        used = semantics.usable_length
        if limit is None or limit == length.limit or not length.long:
            continue
        if used is None or used > min(limit, length.limit):
            yield finding(
                "RPE022",
                f"the tables change beyond {length.limit} positions",
                **place_of(judged),
                expected=f"a change beyond {limit}",
                found=f"a change beyond {length.limit}",
                fix="the number is a constant of the graph: export the model again",
            )
