"""Checks of one site: one function per check."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.audit.checks import PATCH, Finding, finding
from packimport.audit.computed_checks import by_length, factor, growth, precision
from packimport.audit.judge import JudgedSite, counted, cure_of, place_of
from packimport.semantics.model import Semantics


def site_findings(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    """Every check that looks at one site."""
    if semantics.declaration is None:
        return
    for check in _CHECKS:
        yield from check(judged, semantics)


def _values(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    m = judged.measurement
    waves = judged.site.waves
    if waves is None or (m.wrong_frequencies and waves.span) or _has_own_factor(judged):
        code = "RPE001"
    else:
        code = "RPE025"
    if m.wrong_pairs and (waves is None or m.wrong_frequencies or code == "RPE001"):
        yield finding(
            code,
            f"{m.wrong_pairs} of {judged.site.pairs} pairs are wrong",
            **place_of(judged),
            expected=judged.declared,
            found=m.baked_as,
            fix=f"{PATCH} writes a pack with the declared table",
        )


def _has_own_factor(judged: JudgedSite) -> bool:
    """Whether a wrong attention factor lies in constants that nothing else uses."""
    waves = judged.site.waves
    return bool(
        waves
        and waves.factors
        and judged.measurement.wrong_factor
        and not judged.measurement.wrong_frequencies
    )


def _sections(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    mrope = judged.site.mrope
    if mrope is None:
        return
    for rope in judged.ropes:
        if rope is None or rope.mrope_section is None:
            continue
        layout = int(rope.mrope_layout == "interleaved")
        declared = (layout, *rope.mrope_section)
        if mrope != declared:
            yield finding(
                "RPE026",
                "the node splits its pairs among the axes of positions otherwise than declared",
                **place_of(judged),
                expected=f"layout {declared[0]}, sections {list(declared[1:])}",
                found=f"layout {mrope[0]}, sections {list(mrope[1:])}",
                fix="the node's attributes decide: export the model again",
            )


def _rotated(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    if None not in judged.ropes:
        return
    layers = [i for i in judged.site.layers if semantics.layers[i] is None]
    yield finding(
        "RPE005",
        counted(
            layers,
            "is declared without RoPE and is rotated",
            "are declared without RoPE and are rotated",
        ),
        **place_of(judged),
        expected="no rotation",
        found=judged.measurement.baked_as,
        fix=cure_of(judged, "the model does not have this rotation: export it again"),
    )


def _shared(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    ropes = [rope for rope in judged.ropes if rope is not None]
    if len(ropes) > 1:
        yield finding(
            "RPE011",
            f"one table serves {counted(judged.site.layers)}, which declare {len(ropes)}"
            " different schedules",
            **place_of(judged),
            expected=judged.declared,
            found=judged.measurement.baked_as,
            fix=cure_of(judged, "the graph needs one table per schedule: export it again"),
        )


def _width(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    site = judged.site
    for rope in judged.ropes:
        if rope is None or (rope.pairs == site.pairs and rope.rotary_dim == site.rotary_dim):
            continue
        yield finding(
            "RPE008" if rope.pairs != site.pairs else "RPE018",
            f"the node rotates {site.rotary_dim} entries by a table of {site.pairs} pairs",
            **place_of(judged),
            expected=f"{rope.rotary_dim} entries, {rope.pairs} pairs",
            found=f"{site.rotary_dim} entries, {site.pairs} pairs",
            fix=cure_of(judged, "other values can't cure a width: export the model again"),
        )


def _kernel(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    # onnxruntime 1.32: "cos_cache dimension 1 must be <= head_size / 2 and a multiple of 8".
    site = judged.site
    is_declared = all(rope is None or rope.pairs == site.pairs for rope in judged.ropes)
    if site.form == "GroupQueryAttention" and site.pairs % 8 and is_declared:
        yield finding(
            "RPE040",
            f"GroupQueryAttention takes no table of {site.pairs} pairs",
            **place_of(judged),
            expected="a multiple of 8 pairs",
            found=f"{site.pairs} pairs",
            fix="export again, with RotaryEmbedding nodes before the attention",
        )


def _head(judged: JudgedSite, _: Semantics) -> Iterator[Finding]:
    site = judged.site
    for rope in judged.ropes:
        if rope is not None and site.head_dim not in (None, rope.head_dim):
            yield finding(
                "RPE008",
                f"the node cuts its input into heads of {site.head_dim} entries",
                **place_of(judged),
                expected=f"heads of {rope.head_dim} entries",
                found=f"heads of {site.head_dim} entries",
                fix=cure_of(
                    judged, "the node needs num_heads and rotary_embedding_dim: export it again"
                ),
            )


def _layout(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    # A de-interleaved model reorders q and k and then turns them half-split; to turn the
    # neighbours of the unsorted ones gives the same scores.
    interleaved = judged.site.interleaved
    if semantics.pair_layout == "de-interleaved" or interleaved is None:
        return
    names = {True: "interleaved", False: "half-split"}
    for rope in judged.ropes:
        if rope is not None and rope.interleaved != interleaved:
            yield finding(
                "RPE007",
                "the node pairs entries otherwise than the model",
                **place_of(judged),
                expected=names[rope.interleaved],
                found=names[interleaved],
                fix=cure_of(judged, "the node's attribute decides: export the model again"),
            )


def _rows(judged: JudgedSite, semantics: Semantics) -> Iterator[Finding]:
    if judged.site.table is None:
        return
    rows, usable = judged.site.rows, semantics.usable_length
    length = judged.site.length
    if length is not None and not length.long:
        if rows >= min(length.limit, usable or length.limit):
            return
        usable = length.limit
    if usable is not None and rows < usable:
        yield finding(
            "RPE009",
            f"the table ends at position {rows - 1}, the pack is used up to {usable - 1}",
            **place_of(judged),
            pointer="genai_config.json",
            expected=f"at least {usable} rows",
            found=f"{rows} rows",
            fix=cure_of(
                judged,
                f"limit search.max_length in genai_config.json to {rows}, or export with more rows",
            ),
        )
    elif semantics.context_length is not None and rows < semantics.context_length:
        yield finding(
            "RPE010",
            f"context_length {semantics.context_length} lies beyond the {rows} rows of the table",
            **place_of(judged),
            pointer="genai_config.json#/model/context_length",
            expected=f"at most {rows}",
            found=str(semantics.context_length),
            fix="the usable length is smaller, so nothing breaks; a smaller figure tells the truth",
        )


_CHECKS = (
    _rotated,
    _shared,
    _width,
    _kernel,
    _head,
    _layout,
    _sections,
    _values,
    growth,
    factor,
    precision,
    by_length,
    _rows,
)
