"""Layout: which exporter's files a pack has, by their names and by what its graphs hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from packimport.audit.named_files import HEADER
from packimport.graph.forms import ryzen_ai_dispatch
from packimport.graph.site import GraphFacts
from packimport.pack.container import Container
from packimport.semantics.genai import FILE

OGA = "OGA"
HYBRID_1_4 = "Ryzen AI 1.3/1.4 hybrid"
NPU_1_6 = "Ryzen AI 1.6 NPU token fusion"
HYBRID_1_7 = "Ryzen AI 1.7 hybrid"
EAGER = "Ryzen AI 1.8 eager"
TOKEN_FUSION = "Ryzen AI 1.8 token fusion"
FULL_FUSION = "Ryzen AI 1.8 full fusion"
TORCH = "optimum or torch export"
UNKNOWN = "unknown"

LAYOUTS = (
    OGA,
    HYBRID_1_4,
    NPU_1_6,
    HYBRID_1_7,
    EAGER,
    TOKEN_FUSION,
    FULL_FUSION,
    TORCH,
    UNKNOWN,
)


def layout_of(container: Container, facts: Sequence[GraphFacts]) -> str:
    """The layout of a pack: one of `LAYOUTS`.

    facts: of its decoder graphs; the releases of Ryzen AI 1.8 differ in these alone.
    """
    names = [PurePosixPath(graph.graph).name for graph in facts]
    if "fusion.onnx" in names:
        return NPU_1_6
    if "model_jit.onnx" in names:
        return HYBRID_1_7
    if any(name.endswith("_jit.onnx") for name in names):
        return HYBRID_1_4
    if any(name.endswith(HEADER) for name in container.files) or _is_compiled(facts):
        return _release_1_8(facts)
    if container.has(FILE):
        return OGA
    is_torch = facts and all(graph.producer.startswith("pytorch") for graph in facts)
    return TORCH if is_torch else UNKNOWN


def _release_1_8(facts: Sequence[GraphFacts]) -> str:
    """Compiled are: nothing; the graph for one token; that for the prompt as well."""
    if not _is_compiled(facts):
        return EAGER
    forms = {site.form for graph in facts for site in graph.sites}
    encodings = {site.encoding for graph in facts for site in graph.sites}
    is_full = "hi-lo" in encodings or forms <= {ryzen_ai_dispatch.FORM}
    return FULL_FUSION if is_full else TOKEN_FUSION


def _is_compiled(facts: Sequence[GraphFacts]) -> bool:
    return any(
        ryzen_ai_dispatch.FORM in {*(s.form for s in graph.sites), *(u.op for u in graph.unread)}
        for graph in facts
    )
