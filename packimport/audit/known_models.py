"""Known models: which of them a pack that declares nothing may have been made from."""

from __future__ import annotations

from collections.abc import Sequence

from packimport.audit.judge import JudgedSite, seq_len_of
from packimport.graph.encodings import decode
from packimport.pack.container import Container
from packimport.rope.difference import difference
from packimport.rope.frequencies import frequencies
from packimport.semantics.model import Semantics
from packimport.semantics.models import fitting_models
from packimport.semantics.reader import read_model

# Rows that are compared: schedules differ long before, and a table may have a million.
_ROWS = 8192


def candidates(
    container: Container, semantics: Semantics, sites: Sequence[JudgedSite]
) -> tuple[str, ...]:
    """The known models whose sizes are those of a pack, with whether their tables are baked.

    One text per model, such as "meta-llama/Llama-3.2-1B-Instruct (as baked)".
    """
    return tuple(
        f"{model} (as baked)" if _is_baked(container, read_model(model), sites) else model
        for model in fitting_models(semantics)
    )


def _is_baked(container: Container, model: Semantics, sites: Sequence[JudgedSite]) -> bool:
    """Whether every table is the one that a model declares for its layers."""
    tables = [judged.site for judged in sites if judged.site.table is not None]
    if not tables or len(tables) < len(sites):
        return False
    for site in tables:
        cos, sin = (part[:_ROWS] for part in decode(site, container))
        for rope in {model.layers[i] for i in site.layers if i < len(model.layers)}:
            if rope is None or rope.pairs != site.pairs:
                return False
            declared = frequencies(rope, seq_len_of(site, rope))
            if difference(cos, sin, declared).wrong_pairs:
                return False
    return True
