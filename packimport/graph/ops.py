"""Ops: which op types may rotate, and why one that is not read is refused.

The op types of onnx 1.23 and of onnxruntime 1.32 (`com.microsoft`). Their names
say what they do; ops of any other domain may do anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from packimport.graph.node import MICROSOFT, STANDARD

GROUP_QUERY_ATTENTION = (MICROSOFT, "GroupQueryAttention")
ROTARY_EMBEDDING = (MICROSOFT, "RotaryEmbedding")

_KNOWN_DOMAINS = frozenset({STANDARD, MICROSOFT, "ai.onnx.ml"})
_ATTENTION = re.compile("attention|attn", re.IGNORECASE)
_NO_LAYER = re.compile("gate|indexer", re.IGNORECASE)
_ROTATING = re.compile("attention|attn|rotary|rope", re.IGNORECASE)
_OWN_TABLE = "makes its own plain table where do_rotary is 1, which nothing can mend"
_NOT_READ = "is a form that is not read yet"

_REASONS: Mapping[tuple[str, str], str] = {
    (MICROSOFT, "Attention"): _OWN_TABLE,
    (MICROSOFT, "QAttention"): _OWN_TABLE,
    (MICROSOFT, "DecoderMaskedSelfAttention"): _OWN_TABLE,
    (MICROSOFT, "EPContext"): "holds a compiled graph, which can't be read",
    (STANDARD, "Cos"): "computes a table in the graph, " + _NOT_READ.removeprefix("is "),
    (STANDARD, "Sin"): "computes a table in the graph, " + _NOT_READ.removeprefix("is "),
}


def is_attention(kind: tuple[str, str]) -> bool:
    """Whether an op type (domain, op) is one whole attention layer, by its name."""
    return bool(_ATTENTION.search(kind[1])) and not _NO_LAYER.search(kind[1])


def refusal(kind: tuple[str, str]) -> str | None:
    """Why an op type (domain, op) may rotate in a way that is not read; None where it can't.

    The two ops that are read are not judged here.
    """
    domain, op = kind
    if kind in _REASONS:
        return _REASONS[kind]
    if domain not in _KNOWN_DOMAINS:
        return f"is an op of the domain {domain}, which may rotate and is not read"
    return _NOT_READ if _ROTATING.search(op) else None
