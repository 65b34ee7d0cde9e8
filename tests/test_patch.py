"""Patching: only table bytes change, the declaration travels along, nothing is half-written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import plain, tiny_pack
from llama3 import llama3, tables_of
from onnx import numpy_helper
from test_packs import changed_outside_tables

from packimport import check, patch
from packimport.errors import ContainerError, PatchError
from packimport.pack.documents import load_schema, validate

BLOCK = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIG = {"rope_theta": 500000.0, "rope_scaling": BLOCK, "max_position_embeddings": 256}


def wrong_pack(folder: Path, **settings: object) -> Path:
    return tiny_pack(folder, rows=256, tables=plain(256, 8, 500000.0), **settings)  # type: ignore[arg-type]  # passed on


def stored(pack: Path) -> list[np.ndarray]:
    """Every cos and sin of a pack, by onnx's own reading."""
    model = onnx.load(pack / "model.onnx")
    values = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            values[node.output[0]] = node.attribute[0].t
    return [
        numpy_helper.to_array(tensor).astype(np.float64)
        for name, tensor in sorted(values.items())
        if name.split("_")[0] in ("cos", "sin")
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"inline": True}, {"constants": True}, {"shared": False}, {"form": "rotary_embedding"}],
    ids=str,
)
def test_the_table_is_the_declared_one(
    tmp_path: Path, dtype: str, settings: dict[str, object]
) -> None:
    pack = wrong_pack(tmp_path / "p", dtype=dtype, config=CONFIG, **settings)
    patched = patch(pack, tmp_path / "out")
    assert patched.after.verdict == "ok"
    assert changed_outside_tables(pack, tmp_path / "out") == []
    # Independent of our tables: float64 cos and sin of the formula, as onnx reads them.
    cos, sin = tables_of(llama3(8, 500000.0, 8.0, 1.0, 4.0, 64), 256)
    step = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    tables = stored(tmp_path / "out")
    assert len(tables) == (4 if settings.get("shared") is False else 2)
    for index, table in enumerate(tables):
        expected = cos if index < len(tables) // 2 else sin
        assert np.abs(table - expected).max() <= step + 256 * 2.0**-21


def test_the_declaration_travels_along(tmp_path: Path) -> None:
    pack = wrong_pack(tmp_path / "p")
    source = tiny_pack(tmp_path / "source", rows=256, config=CONFIG)
    patch(pack, tmp_path / "out", config=source)
    report = check(tmp_path / "out")
    assert report.verdict == "ok"
    assert report.semantics.declaration is not None
    assert report.semantics.declaration.origin == "packimport.json"
    assert (tmp_path / "out/config.json").read_bytes() == (source / "config.json").read_bytes()
    (tmp_path / "out/config.json").unlink()
    assert check(tmp_path / "out").verdict == "ok"
    patch(tmp_path / "out", tmp_path / "again")
    one, two = (
        json.loads((tmp_path / name / "packimport.json").read_text(encoding="utf-8"))
        for name in ("out", "again")
    )
    assert one["declaration"] == two["declaration"]
    assert one["declaration"]["origin"] == "--config"


def test_an_empty_config_stays_as_it_is(tmp_path: Path) -> None:
    pack = wrong_pack(tmp_path / "p")
    (pack / "config.json").write_bytes(b"{}")
    source = tiny_pack(tmp_path / "source", rows=256, config=CONFIG)
    patch(pack, tmp_path / "out", config=source)
    assert (tmp_path / "out/config.json").read_bytes() == b"{}"
    assert check(tmp_path / "out").verdict == "ok"


def test_the_manifest_is_true(tmp_path: Path) -> None:
    pack = wrong_pack(tmp_path / "p", config=CONFIG)
    (pack / "side").mkdir()
    (pack / "side" / "notes é.bin").write_bytes(bytes(range(256)))
    patch(pack, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/packimport.json").read_text(encoding="utf-8"))
    validate(manifest, "packimport.schema.json", "packimport.json")
    found = {
        path.relative_to(tmp_path / "out").as_posix(): path
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.name != "packimport.json"
    }
    assert {f["name"] for f in manifest["files"]} == found.keys()
    for record in manifest["files"]:
        data = found[record["name"]].read_bytes()
        assert record["size"] == len(data)
        assert record["sha256"] == hashlib.sha256(data).hexdigest()
    for edit in manifest["edits"]:
        there = slice(edit["offset"], edit["offset"] + edit["length"])
        for folder, key in ((pack, "old_sha256"), (tmp_path / "out", "new_sha256")):
            data = (folder / edit["file"]).read_bytes()[there]
            assert hashlib.sha256(data).hexdigest() == edit[key]
    assert manifest["declaration"]["config"]["rope_scaling"] == BLOCK
    assert "declaration" in load_schema("packimport.schema.json")["properties"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_existing_output_is_refused(tmp_path: Path, kind: str) -> None:
    pack = wrong_pack(tmp_path / "p", config=CONFIG)
    out = tmp_path / "out"
    out.mkdir() if kind == "folder" else out.write_bytes(b"")
    with pytest.raises(ContainerError, match="exists"):
        patch(pack, out)


def test_what_cant_be_mended_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    # Nothing rotates layer 1.
    pack = tiny_pack(
        tmp_path / "p", config={}, tables=lambda layer: None if layer else plain(64, 8)
    )
    with pytest.raises(PatchError, match="RPE006"):
        patch(pack, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_undeclared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="--config"):
        patch(wrong_pack(tmp_path / "p"), tmp_path / "out")


def test_a_result_that_is_not_right_never_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = wrong_pack(tmp_path / "p", config=CONFIG)
    # A fault of ours: the plain table is written once more.
    monkeypatch.setattr(
        "packimport.mending.in_place.encode",
        lambda table, dtype, encoding: tuple(
            (x + 1e-3).astype(np.float32).tobytes() for x in (table.cos, table.sin)
        ),
    )
    with pytest.raises(AssertionError, match="RPE001"):
        patch(pack, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
