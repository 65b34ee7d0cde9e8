"""The text of a report: what holds of several tables, or of several places, is said once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from packimport.audit.checks import Finding
from packimport.audit.exporters import exporter_of
from packimport.audit.judge import JudgedSite, counted
from packimport.errors import printable
from packimport.graph.site import Site
from packimport.rope.naming.mistakes import MISTAKES
from packimport.semantics.model import Semantics

# Name and value; a field without a value is left out.
_Field = tuple[str, str]
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def sites_lines(sites: Sequence[JudgedSite], semantics: Semantics) -> Iterator[str]:
    """The lines of all sites, a blank one before each group that is judged alike."""

    def judgement(judged: JudgedSite) -> tuple[_Field, ...]:
        return (*_schedule(judged, exporter_of(judged, semantics)), *_gap(judged))

    for fields, group in _alike(sites, judgement):
        errors = [_errors(judged) for judged in group]
        # A right table shows its rounding, which is another one in another dtype.
        is_shared = len(set(errors)) == 1
        yield ""
        for judged, error in zip(group, errors, strict=True):
            yield printable(f"  {judged.site.graph}: {judged.site.names}")
            yield from _lines(_place(judged))
            if not is_shared:
                yield from _lines((error,))
        if len(group) > 1:
            yield "  both:" if len(group) == 2 else f"  all {len(group)}:"
        at = next((i for i, (name, _) in enumerate(fields) if name == "angle off"), len(fields))
        shared = errors[:1] if is_shared else []
        yield from _lines((*fields[:at], *shared, *fields[at:]))


def findings_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of all findings, a blank one before each; those that say the same are one."""

    def said(found: Finding) -> Finding:
        return replace(found, graph=None, where=None, pointer=None)

    for what, group in _alike(findings, said):
        yield ""
        yield printable(f"  {what.severity} {what.code}: {what.message}")
        yield from _lines(
            (
                *_places(group),
                ("expected", what.expected or ""),
                ("found", what.found or ""),
                ("do", what.fix or ""),
            )
        )


def _places(findings: Sequence[Finding]) -> Iterator[_Field]:
    """One line each; what is folded stands below, so that a semicolon ends all but the last."""
    texts = (", ".join(x for x in (f.graph, f.where, f.pointer) if x) for f in findings)
    places = list(dict.fromkeys(texts))
    for place in places:
        yield (
            "where" if place == places[0] else "",
            place if place == places[-1] else f"{place};",
        )


def _alike(
    items: Iterable[_Item], key: Callable[[_Item], _Key]
) -> Iterator[tuple[_Key, list[_Item]]]:
    """The items by key, in the order in which the keys come first."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from groups.items()


def _place(judged: JudgedSite) -> tuple[_Field, ...]:
    site = judged.site
    return (
        ("serves", f"{site.form} in {counted(site.layers)}; {_constants(site)}"),
        ("in", site.branch),
        ("for", _length(site)),
    )


def _schedule(judged: JudgedSite, exporter: str | None) -> tuple[_Field, ...]:
    m = judged.measurement
    return (
        ("declared", judged.declared or "nothing"),
        ("baked as", m.baked_as),
        ("fault", "" if m.mistake is None else MISTAKES[m.mistake].text),
        ("known of", exporter or ""),
        ("could be", " or ".join(m.ambiguous)),
        ("same as", "; ".join(m.equivalents)),
    )


def _gap(judged: JudgedSite) -> tuple[_Field, ...]:
    """How far a table is from the declared one; nothing where they can't be compared."""
    m = judged.measurement
    if m.wrong_pairs is None:
        return ()
    ratio = "unknown ratio" if m.max_ratio is None else f"up to {m.max_ratio:.4g}x"
    first = m.first_bad_position
    return (
        (
            "wrong pairs",
            f"{m.wrong_pairs} of {judged.site.pairs}" + f", {ratio}" * bool(m.wrong_pairs),
        ),
        ("angle off", _angles(judged) if m.wrong_pairs else ""),
        ("", f"first beyond 0.1 rad at position {first}" if first is not None else ""),
    )


def _errors(judged: JudgedSite) -> _Field:
    m = judged.measurement
    if m.wrong_pairs is None:
        return ("max error", "")
    cos, sin = _number(m.max_abs_cos_error), _number(m.max_abs_sin_error)
    return ("max error", f"cos {cos}, sin {sin}")


def _constants(site: Site) -> str:
    if site.waves is None:
        # Its values are of float16's precision, which the dtype of the tensor does not tell.
        dtype = f"{site.dtype} hi + lo" if site.encoding == "hi-lo" else site.dtype
        return f"{dtype}, {site.rows} rows x {site.pairs} pairs"
    factor = site.waves.cos_factor
    return f"{site.dtype}, {site.pairs} frequencies" + (f" x {factor:.7g}" if factor != 1 else "")


def _length(site: Site) -> str:
    if site.length is None:
        return ""
    return f"calls {'above' if site.length.long else 'up to'} {site.length.limit} tokens"


def _number(error: float | None) -> str:
    return "not a number" if error is None else f"{error:.2g}"


def _angles(judged: JudgedSite) -> str:
    known = [
        f"{'unknown' if value is None else f'{value:.4g}'} at {position}"
        for position, value in judged.measurement.angle_error
    ]
    return "rad: " + ", ".join(known)


def _lines(fields: Iterable[_Field]) -> Iterator[str]:
    for name, value in fields:
        if value:
            yield f"    {name:<12}{printable(value)}"
