"""Probe: the rotation of each site alone in onnxruntime, against the declared schedule.

Neither the pack's graph nor any library of it runs, so a pack of an NPU can be probed
on any machine. What is taken from the pack are the stored tables or frequencies and how
the node rotates by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from forward.probe_case import Case, Doubles, cases
from forward.probe_model import Array, op_of, tiny_model
from forward.probe_report import NOT_PROBED, WITHIN, WRONG, Gap, Probe, Probed
from forward.session import version
from packimport.audit.audit import find, judge
from packimport.audit.checks import CHECKS, Finding
from packimport.audit.judge import counted, declared_ropes, used_length
from packimport.errors import ContainerError, GraphError
from packimport.graph.encodings import decode
from packimport.graph.site import GraphFacts, Site
from packimport.pack.archive import opened
from packimport.pack.container import Container
from packimport.pack.signals import interruptible
from packimport.rope.schedule import Rope
from packimport.semantics.describe import describe
from packimport.semantics.model import Semantics
from packimport.semantics.reader import read_semantics

# Checks whose errors make a probed site wrong, or a gap.
_SHOWN = frozenset(
    f"RPE{number:03}"
    for number in (1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 16, 18, 19, 20, 22, 23, 24, 25, 26, 27, 30)
)
# As few heads as show how a node cuts its input into heads.
_HEADS = {"query": 2, "key": 1}


def probe(path: Path, config: Path | None = None, model: str | None = None) -> Probe:
    """Probe every site of the pack at `path`; config, model: as `packimport.check` takes them.

    Raises PackimportError where the pack can't be read, declares nothing, or where
    onnxruntime is missing.
    """
    with opened(path) as container, interruptible():
        semantics = read_semantics(container, config, model)
        if semantics.declaration is None:
            raise ContainerError(
                "no config declares a RoPE schedule, so there is nothing to hold the pack to",
                place=str(path),
                fix="Name the source model's config.json with --config, or pass --model ID.",
            )
        facts = list(find(container, semantics))
        sites = tuple(_probed(container, semantics, facts))
        gaps = tuple(_gaps(facts, semantics))
        findings = judge(container, semantics, facts).findings
        return Probe(
            path=str(path),
            format=container.format,
            declaration=semantics.declaration,
            engine=version(),
            sites=sites,
            gaps=(*gaps, *_not_settled(findings, (*sites, *gaps))),
            cures={f.code: f.fix for f in findings if f.severity == "error" and f.fix},
        )


def _probed(
    container: Container, semantics: Semantics, facts: Sequence[GraphFacts]
) -> Iterator[Probed]:
    for graph in facts:
        for site in graph.sites:
            stored = decode(site, container) if site.table is not None else None
            ropes = declared_ropes(site, semantics)
            if not ropes:
                yield _refused(site, None, "no declared layer is known to be served by it")
            for rope in ropes:
                yield _probe(site, rope, semantics, stored)


def _probe(
    site: Site, rope: Rope | None, semantics: Semantics, stored: tuple[Array, Array] | None
) -> Probed:
    """One site against one schedule of its layers, at every length of call that tells."""
    why_not = _why_not(site, rope)
    if why_not is not None:
        return _refused(site, rope, why_not)
    dtype = np.dtype(np.float32) if stored is None else stored[0].dtype
    head_dim = rope.head_dim if rope is not None else site.rotary_dim
    meant = rope is not None and rope.interleaved
    paired = meant if site.interleaved is None else site.interleaved
    # A de-interleaved model reorders q and k: either way of pairing gives its scores.
    if semantics.pair_layout == "de-interleaved":
        meant = paired
    worst = Probed(site=site, declared=_declared(rope), op=op_of(site), verdict=WITHIN)
    for case in cases(site, rope, semantics):
        for index, side in enumerate(site.sides):
            shape = (len(case.positions), _HEADS[side], head_dim)
            x = np.random.default_rng(index).standard_normal(shape, np.float32)
            try:
                made = tiny_model(site, x, case.by_axis, stored, interleaved=paired)
                found = made.run()
            except GraphError as error:
                return _refused(site, rope, error.message)
            expected, allowed = case.expected(x, dtype, meant)
            worst = _worse(worst, case, side, np.abs(found - expected), allowed)
    if rope is not None and site.table is not None:
        return _long_enough(worst, rope, semantics)
    return worst


def _worse(worst: Probed, case: Case, side: str, error: Doubles, allowed: Doubles) -> Probed:
    """What is known so far, and the errors of one case more; [tokens, heads, head_dim]."""
    error = np.where(np.isnan(error), np.inf, error)
    # Not `error > allowed`: an entry without room is wrong by any error.
    beyond = (~(error <= allowed)).any(axis=(1, 2))
    by_token = error.max(axis=(1, 2))
    at = int(by_token.argmax())
    with np.errstate(divide="ignore", invalid="ignore"):
        share = float(np.nanmax(error / allowed, initial=0.0))
    first = int(case.positions[beyond.argmax()]) if beyond.any() else None
    known = worst.first_wrong_position
    firsts = [position for position in (known, first) if position is not None]
    made = worst.joined(
        positions=case.positions.tolist(),
        verdict=WRONG if beyond.any() else worst.verdict,
        first_wrong_position=min(firsts, default=None),
        times_allowed=max(share, worst.times_allowed or 0.0),
    )
    if worst.max_abs_error is not None and by_token[at] <= worst.max_abs_error:
        return made
    flat = int(error[at].argmax())
    return made.joined(
        max_abs_error=float(by_token[at]),
        allowed=float(allowed[at].reshape(-1)[flat]),
        worst_position=int(case.positions[at]),
        side=side,
        length=case.length,
    )


def _long_enough(found: Probed, rope: Rope, semantics: Semantics) -> Probed:
    """The same, wrong where the table ends before the positions that the pack is used for."""
    site = found.site
    used = used_length(site, rope, semantics)
    if site.length is not None and not site.length.long:
        used = min(used, site.length.limit)
    if site.rows >= used:
        return found
    reason = f"the table ends at position {site.rows - 1}, the pack is used up to {used - 1}"
    return found.joined(verdict=WRONG, reason=reason)


def _why_not(site: Site, rope: Rope | None) -> str | None:
    """Why a site can't be probed; None where it can."""
    if rope is None:
        return None
    if rope.mrope_layout == "doubled" and site.mrope is not None:
        return "the two entries of a pair have positions of their own, which no op here rotates"
    if site.rotary_dim > rope.head_dim:
        return f"it rotates {site.rotary_dim} entries, and a head has {rope.head_dim}"
    return None


def _declared(rope: Rope | None) -> str:
    return "no rotation" if rope is None else describe(rope)


def _refused(site: Site, rope: Rope | None, reason: str) -> Probed:
    """A site that was not rotated: wrong where it is known to rotate other entries."""
    fits = rope is None or (rope.pairs, rope.rotary_dim) == (site.pairs, site.rotary_dim)
    verdict = NOT_PROBED if fits else WRONG
    return Probed(
        site=site, declared=_declared(rope), op=op_of(site), verdict=verdict, reason=reason
    )


def _not_settled(findings: Sequence[Finding], parts: Sequence[Probed | Gap]) -> Iterator[Gap]:
    """The errors of the check that a rotation on this machine does not show.

    And all of them where all that was rotated is within: the check looks at every entry, and
    at what a device makes of the tables.
    """
    is_within = all(part.verdict == WITHIN for part in parts)
    for found in findings:
        if found.severity == "error" and (is_within or found.code not in _SHOWN):
            is_wrong = CHECKS[found.code].verdict == "mismatch"
            yield Gap(
                graph=found.graph,
                where=found.where,
                verdict=WRONG if is_wrong else NOT_PROBED,
                reason=f"not settled by the probe: {found.message}",
                code=found.code,
            )


def _gaps(facts: Sequence[GraphFacts], semantics: Semantics) -> Iterator[Gap]:
    """What rotates, or should, and is no site."""
    declared = {index for index, rope in enumerate(semantics.layers) if rope is not None}
    if not facts:
        yield Gap(graph=None, where=None, verdict=NOT_PROBED, reason="there is no ONNX file")
    if not semantics.family_known:
        yield Gap(
            graph=None,
            where=f"config.json#/model_type: {semantics.model_type}",
            verdict=NOT_PROBED,
            reason="which entries this family pairs, and which layers it rotates, is not known",
        )
    seen: set[int] = set()
    for graph in facts:
        seen |= {layer for site in graph.sites for layer in site.layers}
        for item in (*graph.unread, *graph.dangling):
            seen |= {item.layer} if item.layer is not None else declared
            yield Gap(
                graph=graph.graph,
                where=f"{item.op} {item.node}",
                verdict=NOT_PROBED,
                reason=item.reason,
            )
        unrotated = sorted(declared.intersection(graph.unrotated))
        seen |= set(unrotated)
        if unrotated:
            reason = counted(
                unrotated,
                "is declared with RoPE and nothing rotates it",
                "are declared with RoPE and nothing rotates them",
            )
            yield Gap(graph=graph.graph, where=None, verdict=WRONG, reason=reason)
    if facts and declared - seen:
        reason = f"nothing is found that rotates {counted(sorted(declared - seen))}"
        yield Gap(graph=None, where=None, verdict=NOT_PROBED, reason=reason)
