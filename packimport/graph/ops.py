"""Ops: which op types may rotate, and why one that is not read is refused.

The op types of onnx 1.23 and of onnxruntime 1.32 (`com.microsoft`). Their names
say what they do; ops of any other domain may do anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packimport.graph import ryzen_ai
from packimport.graph.node import MICROSOFT, STANDARD

GROUP_QUERY_ATTENTION = (MICROSOFT, "GroupQueryAttention")
ROTARY_EMBEDDING = (MICROSOFT, "RotaryEmbedding")
ONNX_ROTARY_EMBEDDING = (STANDARD, "RotaryEmbedding")
MROTARY_EMBEDDING = (MICROSOFT, "MRotaryEmbedding")
NORM_ROTARY = (MICROSOFT, "RMSNormRotary")
SOFTMAX = (STANDARD, "Softmax")

# Ops that rotate a value ─▶ which input that is.
ROTATING_OPS: Mapping[tuple[str, str], int] = {
    ROTARY_EMBEDDING: 0,
    ONNX_ROTARY_EMBEDDING: 0,
    MROTARY_EMBEDDING: 0,
    NORM_ROTARY: 0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInputs:
    """Which inputs of an attention op are what; None where it has none.

    query, key: the values whose scores it takes; key None: q, k and v are one value.
    past_key: the cache of keys.
    cos, sin, positions: of an op that rotates by itself, where do_rotary is 1.
    """

    query: int = 0
    key: int | None = 1
    past_key: int
    cos: int | None = None
    sin: int | None = None
    positions: int | None = None


# onnx 1.23 and onnxruntime 1.32.
ATTENTIONS: Mapping[tuple[str, str], AttentionInputs] = {
    GROUP_QUERY_ATTENTION: AttentionInputs(past_key=3, cos=7, sin=8, positions=9),
    (MICROSOFT, "PagedAttention"): AttentionInputs(past_key=3, cos=8, sin=9),
    (MICROSOFT, "SparseAttention"): AttentionInputs(past_key=3, cos=9, sin=10),
    (MICROSOFT, "DynamicSparseAttention"): AttentionInputs(
        past_key=3, cos=11, sin=12, positions=13
    ),
    (MICROSOFT, "SparsePagedAttention"): AttentionInputs(past_key=3, cos=14, sin=15),
    (MICROSOFT, "MultiHeadAttention"): AttentionInputs(past_key=6),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): AttentionInputs(past_key=5),
    (STANDARD, "Attention"): AttentionInputs(past_key=4),
}
# Ops that project and rotate inside, by a table of their own where do_rotary is 1.
OWN_TABLE = frozenset(
    {
        (MICROSOFT, "Attention"),
        (MICROSOFT, "QAttention"),
        (MICROSOFT, "DecoderMaskedSelfAttention"),
    }
)
READ = frozenset(
    {*ATTENTIONS, *ROTATING_OPS, *OWN_TABLE, *ryzen_ai.GROUP_QUERY, *ryzen_ai.DISPATCH}
)

# By the number of inputs. The older forms leave the empty key and value out.
_OLD_GQO = AttentionInputs(key=None, past_key=1, cos=5, sin=6)
_GQO: Mapping[int, AttentionInputs] = {
    17: AttentionInputs(past_key=3, cos=7, sin=8, positions=9),
    11: _OLD_GQO,
    10: _OLD_GQO,
}

_KNOWN_DOMAINS = frozenset({STANDARD, MICROSOFT, "ai.onnx.ml"})
_ATTENTION = re.compile("attention|attn", re.IGNORECASE)
_NO_LAYER = re.compile("gate|indexer", re.IGNORECASE)
_ROTATING = re.compile("attention|attn|rotary|rope", re.IGNORECASE)
_NOT_READ = "is a form that is not read yet"

# Recurrences over q and k as they are given, and their gates: none of their inputs is a position.
STILL = frozenset({(MICROSOFT, "LinearAttention"), (MICROSOFT, "LinearAttentionGate")})
_REASONS: Mapping[tuple[str, str], str] = {
    (MICROSOFT, "EPContext"): "holds a compiled graph, which can't be read",
    (STANDARD, "Cos"): "computes a table in the graph that no rotation is known to take",
    (STANDARD, "Sin"): "computes a table in the graph that no rotation is known to take",
}


def is_attention(kind: tuple[str, str]) -> bool:
    """Whether an op type (domain, op) is one whole attention layer, by its name."""
    if kind in ryzen_ai.GROUP_QUERY:
        return True
    if kind in STILL:
        return False
    return bool(_ATTENTION.search(kind[1])) and not _NO_LAYER.search(kind[1])


def inputs_of(kind: tuple[str, str], count: int) -> AttentionInputs | None:
    """Which of the `count` inputs of an op are what; None for an op, or a form, not read."""
    if kind in ryzen_ai.GQO:
        return _GQO.get(count)
    if kind in ryzen_ai.GQA:
        return ATTENTIONS[GROUP_QUERY_ATTENTION]
    return ATTENTIONS.get(kind)


def gqo_counts() -> str:
    """The numbers of inputs that a GQO node may have, as text."""
    return ", ".join(map(str, sorted(_GQO)))


def refusal(kind: tuple[str, str]) -> str | None:
    """Why an op type (domain, op) may rotate in a way that is not read; None where it can't.

    The nodes of `READ` that are read are not judged here.
    """
    domain, op = kind
    if kind in ryzen_ai.STILL or kind in STILL:
        return None
    if kind in _REASONS:
        return _REASONS[kind]
    if domain not in _KNOWN_DOMAINS:
        return f"is an op of the domain {domain}, which may rotate and is not read"
    return _NOT_READ if _ROTATING.search(op) else None
