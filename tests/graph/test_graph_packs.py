"""The packs of real exporters: what their graphs hold, as read off them with onnx 1.23.2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import rename_everything
from graphs import HINTS, PACKS, copy_of, facts
from onnx import numpy_helper

from packimport.graph.encodings import decode
from packimport.graph.site import GraphFacts, Hints, Site
from packimport.pack.container import open_container

EVERY = sorted(path.name for path in PACKS.iterdir())
# Per pack: of each site, form, layers, nodes, rows, pairs, dtype and the cos tensor.
GQA, ROTARY = "GroupQueryAttention", "RotaryEmbedding"
SITES = {
    "amd-oga-0.7.0.1-llama3-int4-dml": [(ROTARY, (0, 1), 4, 2048, 8, "float16", "cos_cache")],
    "oga-0.11.2-gemma3": [
        (GQA, (0, 1, 2, 3, 4), 5, 1024, 8, "float32", "cos_cache_local"),
        (GQA, (5,), 1, 1024, 8, "float32", "cos_cache_global"),
    ],
    "oga-0.11.2-llama3": [(GQA, (0, 1), 2, 2048, 8, "float32", "cos_cache")],
    "oga-0.11.2-smollm3": [(GQA, (0, 1, 2), 3, 1024, 8, "float32", "cos_cache")],
    "oga-0.18.0-linear": [(GQA, (0, 1), 2, 1024, 8, "float32", "cos_cache")],
    "oga-0.18.0-llama3-int4": [(GQA, (0, 1), 2, 2048, 8, "float32", "cos_cache")],
    "oga-0.18.0-longrope-dml": [],
    "oga-0.18.0-longrope-if": [],
    "oga-0.18.0-qwen3": [(GQA, (0, 1), 2, 1024, 8, "float32", "cos_cache")],
    "optimum-0.1.0-llama3": [],
}
# Per pack: op, layer and the heart of the reason of each node that is not read.
MISSING = "position_ids, which nothing in the graph makes"
ADD, IF = "come from the Add node", "comes from the If node"
UNREAD = {
    "oga-0.11.2-smollm3": [
        (ROTARY, 3, MISSING),
        (ROTARY, 3, MISSING),
        (GQA, 3, "its key comes from an input that is left out"),
    ],
    "oga-0.18.0-longrope-dml": [(ROTARY, n, ADD) for n in (0, 0, 1, 1)],
    "oga-0.18.0-longrope-if": [(GQA, n, IF) for n in (0, 1)],
    "optimum-0.1.0-llama3": [
        ("Cos", None, "computes a table in the graph"),
        ("Sin", None, "computes a table in the graph"),
        ("Softmax", 0, "attention in plain ops"),
        ("Softmax", 1, "attention in plain ops"),
    ],
}


def outline(site: Site) -> tuple[object, ...]:
    return (site.form, site.layers, len(site.nodes), site.rows, site.pairs, site.cos.dtype)


@pytest.mark.parametrize("name", EVERY)
def test_what_each_pack_holds(name: str) -> None:
    found = facts(PACKS / name)
    assert [(*outline(s), s.cos.name) for s in found.sites] == SITES[name]
    assert all(s.rotary_dim == 2 * s.pairs and not s.interleaved for s in found.sites)
    expected = UNREAD.get(name, [])
    assert [(u.op, u.layer) for u in found.unread] == [(op, layer) for op, layer, _ in expected]
    for unread, (_, _, reason) in zip(found.unread, expected, strict=True):
        assert reason in unread.reason
    assert found.layers == {"oga-0.11.2-gemma3": 6, "oga-0.11.2-smollm3": 4}.get(name, 2)
    assert found.unrotated == ()


@pytest.mark.parametrize("name", EVERY)
def test_without_hints_the_facts_are_the_same(name: str) -> None:
    assert facts(PACKS / name, Hints()) == facts(PACKS / name, HINTS)


@pytest.mark.parametrize("name", EVERY)
def test_tables_are_those_that_onnx_loads(name: str) -> None:
    model = onnx.load(PACKS / name / "model.onnx")
    loaded = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    container = open_container(PACKS / name)
    for site in facts(PACKS / name).sites:
        cos, sin = decode(site, container)
        assert np.array_equal(cos, loaded[site.cos.name])
        assert np.array_equal(sin, loaded[site.sin.name])
        assert cos.dtype == loaded[site.cos.name].dtype


def nameless(found: GraphFacts) -> tuple[object, ...]:
    """The facts, without the names that renaming changes."""
    sites = [(*outline(s), s.cos.file, s.cos.offset, s.sin.offset) for s in found.sites]
    return found.layers, sites, [(u.op, u.layer) for u in found.unread], found.unrotated


@pytest.mark.parametrize("hints", [HINTS, Hints()])
@pytest.mark.parametrize("name", EVERY)
def test_renaming_every_tensor_and_node_changes_nothing(
    name: str, hints: Hints, tmp_path: Path
) -> None:
    pack = copy_of(name, tmp_path)
    before = facts(pack, hints)
    rename_everything(pack)
    assert "cos_cache" not in str(facts(pack, hints))
    assert nameless(facts(pack, hints)) == nameless(before)


def test_producer() -> None:
    assert facts(PACKS / "oga-0.18.0-qwen3").producer.startswith("onnxruntime-genai 0.18.0")
