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
from packimport.graph.site import ByLength, GraphFacts, Hints, Site
from packimport.pack.container import open_container

EVERY = sorted(path.name for path in PACKS.iterdir())
# Per pack: of each site, form, layers, nodes, rows, pairs, dtype and the tensors.
GQA, ROTARY = "GroupQueryAttention", "RotaryEmbedding"
SITES = {
    "amd-oga-0.7.0.1-llama3-int4-dml": [
        (ROTARY, (0, 1), 4, 2048, 8, "float16", "cos_cache, sin_cache")
    ],
    "oga-0.11.2-gemma3": [
        (GQA, (0, 1, 2, 3, 4), 5, 1024, 8, "float32", "cos_cache_local, sin_cache_local"),
        (GQA, (5,), 1, 1024, 8, "float32", "cos_cache_global, sin_cache_global"),
    ],
    "oga-0.11.2-llama3": [(GQA, (0, 1), 2, 2048, 8, "float32", "cos_cache, sin_cache")],
    "oga-0.11.2-smollm3": [(GQA, (0, 1, 2), 3, 1024, 8, "float32", "cos_cache, sin_cache")],
    "oga-0.18.0-linear": [(GQA, (0, 1), 2, 1024, 8, "float32", "cos_cache, sin_cache")],
    "oga-0.18.0-llama3-int4": [(GQA, (0, 1), 2, 2048, 8, "float32", "cos_cache, sin_cache")],
    "oga-0.18.0-longrope-dml": [
        (ROTARY, (0, 1), 4, 256, 8, "float16", "cos_cache, sin_cache"),
        (ROTARY, (0, 1), 4, 1024, 8, "float16", "cos_cache, sin_cache"),
    ],
    "oga-0.18.0-longrope-if": [
        (GQA, (0, 1), 2, 1024, 8, "float32", "cos_cache_large, sin_cache_large"),
        (GQA, (0, 1), 2, 256, 8, "float32", "cos_cache_small, sin_cache_small"),
    ],
    "oga-0.18.0-qwen3": [(GQA, (0, 1), 2, 1024, 8, "float32", "cos_cache, sin_cache")],
    "optimum-0.1.0-llama3": [("plain ops", (0, 1), 4, None, 8, "float32", "onnx::Expand_119")],
}
# Per pack: of each site, the lengths of call that it serves.
LENGTHS = {
    "oga-0.18.0-longrope-dml": [ByLength(limit=256, long=False), ByLength(limit=256, long=True)],
    "oga-0.18.0-longrope-if": [ByLength(limit=256, long=True), ByLength(limit=256, long=False)],
}
# Per pack: layers that are rotated by positions that nothing makes.
DANGLING = {"oga-0.11.2-smollm3": [(ROTARY, 3), (ROTARY, 3)]}


def outline(site: Site) -> tuple[object, ...]:
    rows = None if site.table is None else site.rows
    return (site.form, site.layers, len(site.nodes), rows, site.pairs, site.dtype)


@pytest.mark.parametrize("name", EVERY)
def test_what_each_pack_holds(name: str) -> None:
    found = facts(PACKS / name)
    assert [(*outline(s), s.names) for s in found.sites] == SITES[name]
    assert [s.length for s in found.sites] == LENGTHS.get(name, [None] * len(found.sites))
    assert all(s.rotary_dim == 2 * s.pairs and not s.interleaved for s in found.sites)
    assert all(s.sides == ("query", "key") for s in found.sites)
    assert found.unread == ()
    assert [(u.op, u.layer) for u in found.dangling] == DANGLING.get(name, [])
    assert found.layers == {"oga-0.11.2-gemma3": 6, "oga-0.11.2-smollm3": 4}.get(name, 2)
    assert found.unrotated == ()


@pytest.mark.parametrize("name", EVERY)
def test_without_hints_the_facts_are_the_same(name: str) -> None:
    assert facts(PACKS / name, Hints()) == facts(PACKS / name, HINTS)


def constants(body: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Every initializer and Constant of a graph and those nested in it, as onnx reads them."""
    found = {t.name: numpy_helper.to_array(t) for t in body.initializer}
    for node in body.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= constants(attribute.g)
            elif attribute.HasField("t") and node.op_type == "Constant":
                found[node.output[0]] = numpy_helper.to_array(attribute.t)
    return found


@pytest.mark.parametrize("name", EVERY)
def test_constants_are_those_that_onnx_loads(name: str) -> None:
    loaded = constants(onnx.load(PACKS / name / "model.onnx").graph)
    container = open_container(PACKS / name)
    for site in facts(PACKS / name).sites:
        if site.waves is not None:
            assert site.waves.span is not None
            assert np.array_equal(site.waves.values, loaded[site.waves.span.name].ravel())
            continue
        assert site.table is not None
        rows = slice(site.table.start, site.table.stop)
        cos, sin = decode(site, container)
        assert np.array_equal(cos, loaded[site.cos.name][rows])
        assert np.array_equal(sin, loaded[site.sin.name][rows])
        assert cos.dtype == loaded[site.cos.name].dtype


def nameless(found: GraphFacts) -> tuple[object, ...]:
    """The facts, without the names that renaming changes."""
    # Inside the graph's own file the names move the bytes.
    places = [
        [(span.file, span.offset if span.file.endswith(".data") else 0) for span in s.tensors]
        for s in found.sites
    ]
    sites = [(*outline(s), s.length) for s in found.sites]
    return found.layers, sites, places, [(u.op, u.layer) for u in found.unread], found.unrotated


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
