"""In place: the bytes that give a site the constants that its layers declare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packimport.audit.judge import JudgedSite
from packimport.graph.encodings import DTYPES, encode, values_dtype
from packimport.graph.forms import ryzen_ai_dispatch
from packimport.graph.site import Site, TableSpans, TensorSpan, Waves
from packimport.pack.container import Container
from packimport.pack.edits import Edit
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.rope.tables import table
from packimport.semantics.describe import describe


def edits_of(container: Container, judged: JudgedSite) -> Iterator[Edit]:
    """The Edits that give wrong constants the values that their layers declare.

    Nothing where they are right. Only bytes change: a table keeps its rows, its
    width and its place, and so do frequencies.
    """
    if not judged.measurement.wrong_pairs:
        return
    (rope,) = judged.ropes
    assert rope is not None  # a rotation that must not be there is no matter of bytes
    site = judged.site
    reason = f"{judged.measurement.baked_as} becomes {describe(rope)}"
    if site.length is not None:
        reason += f", for calls {'above' if site.length.long else 'up to'} {site.length.limit}"
    if site.form == ryzen_ai_dispatch.FORM:
        reason += "; the device is taken to get it from here (inferred, not run on hardware)"
    if site.table is not None:
        spans = _tables(site, site.table, rope, judged.seq_len(rope))
    else:
        assert site.waves is not None
        spans = _waves(site.waves, judged, rope)
    for span, new in spans:
        yield from edit_of(container, span, new, reason)


def _tables(
    site: Site, place: TableSpans, rope: Rope, seq_len: int | None
) -> Iterator[tuple[TensorSpan, bytes]]:
    """The rows that are a site's, and their new bytes."""
    rows = place.stop - place.start
    right = table(rope, rows, seq_len=seq_len, dtype=values_dtype(site))
    encoded = encode(right, place.cos.dtype, site.encoding)
    for span, new in zip(place.tensors, encoded, strict=True):
        start = place.start * (len(new) // rows)
        yield replace(span, offset=span.offset + start, length=len(new)), new


def _waves(waves: Waves, judged: JudgedSite, rope: Rope) -> Iterator[tuple[TensorSpan, bytes]]:
    """The frequencies, and the attention factor where it is wrong."""
    right = frequencies(rope, judged.seq_len(rope))
    if judged.measurement.wrong_frequencies and waves.span is not None:
        yield waves.span, _cast(right.inv_freq, waves.span)
    if judged.measurement.wrong_factor is not None:
        for span in waves.factors:
            yield span, _cast(right.attention_factor, span)


def _cast(values: NDArray[np.float32] | float, span: TensorSpan) -> bytes:
    return np.asarray(values).astype(DTYPES[span.dtype]).tobytes()


def edit_of(container: Container, span: TensorSpan, new: bytes, reason: str) -> Iterator[Edit]:
    """The Edit of a span; nothing where its bytes are the new ones already."""
    old = container.span(span.file, span.offset, span.length)
    edit = Edit(
        file=span.file,
        offset=span.offset,
        new=new,
        old_sha256=hashlib.sha256(old).hexdigest(),
        reason=f"{span.name}: {reason}",
    )
    if old != new:
        yield edit
