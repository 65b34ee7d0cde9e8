"""Checks of how attention layers cut q and k into heads: as the declared model does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packimport.audit.checks import Finding, finding
from packimport.audit.judge import counted
from packimport.graph.site import GraphFacts, Heads
from packimport.semantics.model import Semantics

# Of latent attention the declared head is the slice that rotates, and a graph's is longer.
_LATENT = "qk_rope_head_dim"


def head_findings(facts: GraphFacts, semantics: Semantics) -> Iterator[Finding]:
    """A finding for each way of cutting that is not the declared model's."""
    for heads in facts.heads if semantics.declaration is not None else ():
        other = [
            (what, found, expected)
            for what, found, expected in (
                ("heads of the query", heads.query, _query(heads, semantics)),
                ("heads of the key", heads.keys, _keys(heads, semantics)),
                ("entries of a head", heads.sizes, _sizes(heads, semantics)),
            )
            if expected and not set(found) <= expected
        ]
        if other:
            yield finding(
                "RPE041",
                counted(
                    heads.layers,
                    "cuts q and k into other heads than declared",
                    "cut q and k into other heads than declared",
                ),
                graph=facts.graph,
                where=heads.node,
                expected=", ".join(f"{_listed(n, 'or')} {what}" for what, _, n in other),
                found=", ".join(f"{_listed(n, 'and')} {what}" for what, n, _ in other),
                fix="the config is that of another model (pass its own with --config), or the"
                " graph is damaged: export the model again",
            )


def _listed(numbers: Iterable[int], word: str) -> str:
    return f" {word} ".join(map(str, sorted(numbers)))


def _query(heads: Heads, semantics: Semantics) -> set[int]:
    declared = semantics.num_attention_heads
    return set() if declared is None or _by_layer(semantics) else {declared}


def _keys(heads: Heads, semantics: Semantics) -> set[int]:
    """As many as declared; or a multiple of that, where an exporter repeats them."""
    declared, whole = semantics.num_key_value_heads, semantics.num_attention_heads
    if declared is None or whole is None or _by_layer(semantics):
        return set()
    if len(heads.keys) > 1:
        return {declared}
    allowed = {n for n in range(declared, whole + 1, declared) if whole % n == 0}
    # Of Falcon's one key the config says so in a key that is not about sizes.
    return allowed | ({1} if declared == whole else set())


def _sizes(heads: Heads, semantics: Semantics) -> set[int]:
    assert semantics.declaration is not None
    if _LATENT in semantics.declaration.config:
        return set()
    layers = semantics.layers
    ropes = [layers[i] for i in heads.layers if i < len(layers)]
    declared = {rope.head_dim for rope in ropes if rope is not None}
    if not declared and semantics.head_dim is not None and not _by_layer(semantics):
        declared = {semantics.head_dim}
    return declared


def _by_layer(semantics: Semantics) -> bool:
    """Whether layers have heads of their own, of whose number the one declared may not tell."""
    return len({rope.head_dim for rope in semantics.layers if rope is not None}) > 1
