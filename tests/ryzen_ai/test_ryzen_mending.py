"""Every way to mend a Ryzen AI pack: to a copy, in place and back, without writing, on hold.

What a pack holds is read with onnx alone (`ryzen_bytes`).
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from ryzen_bytes import baked, files
from ryzen_packs import FAMILIES, Pack, build
from ryzen_tables import GEMMA, LLAMA3, LONGROPE, ORIGINAL, default, plain_instead, tables

from packimport import check, patch, patch_in_place, undo
from packimport.dry_run import dry_run
from packimport.errors import PatchError
from packimport.pack.container import open_container
from packimport.pack.verification import verify_container

ROWS = 512
INFERRED = "inferred, not run on hardware"
FUSED = sorted(name for name, family in FAMILIES.items() if family.fused)


def wrong(family: str, folder: Path, **options: object) -> Pack:
    return build(family, folder / "p", LLAMA3, tables=plain_instead(LLAMA3, ROWS), **options)  # type: ignore[arg-type]


def names(graph: onnx.GraphProto) -> list[tuple[str, str]]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    here = [(node.op_type, node.name) for node in graph.node]
    return [*here, *(name for body in inner for name in names(body))]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_in_place_and_back(family: str, tmp_path: Path) -> None:
    pack = wrong(family, tmp_path)
    before = files(pack.path)
    done = patch_in_place(pack.path, config=pack.config)
    assert (done.before.verdict, done.after.verdict) == ("mismatch", "ok")
    after = files(pack.path)
    for name, data in before.items():
        assert len(after[name]) == len(data), name
    changed = {name for name in before if after[name] != before[name]}
    assert changed <= {pack.graph, f"{pack.graph}.data"}
    for place in baked(pack.path, pack.graph).values():
        assert place.is_right(LLAMA3), place.names
    assert verify_container(open_container(pack.path)).exit_code == 0
    undo(pack.path)
    left = files(pack.path)
    assert {name: left[name] for name in before} == before
    assert not [name for name in left.keys() - before.keys() if not name.startswith(".packimport")]


@pytest.mark.parametrize("family", FUSED)
def test_both_branches_or_nothing(family: str, tmp_path: Path) -> None:
    """One graph, every encoding: no node gets another name, and no file another size."""
    pack = wrong(family, tmp_path)
    out = tmp_path / "out"
    done = patch(pack.path, out, config=pack.config)
    assert len(baked(out, pack.graph)) == 2
    assert not done.graph_changes
    old, new = files(pack.path), files(out)
    assert len(old[pack.graph]) == len(new[pack.graph])
    assert len(old[f"{pack.graph}.data"]) == len(new[f"{pack.graph}.data"])
    graphs = [onnx.ModelProto.FromString(held[pack.graph]).graph for held in (old, new)]
    assert names(graphs[0]) == names(graphs[1])
    # Patched again it stays as it is.
    again = patch(out, tmp_path / "again")
    assert not again.changes
    manifest = "packimport.json"
    assert {n: d for n, d in files(tmp_path / "again").items() if n != manifest} == {
        n: d for n, d in new.items() if n != manifest
    }


@pytest.mark.parametrize("family", FUSED)
def test_what_is_inferred_is_said(family: str, tmp_path: Path) -> None:
    pack = wrong(family, tmp_path)
    report = check(pack.path, config=pack.config)
    assert "RPE031" in {finding.code for finding in report.findings}
    assert "not run on hardware" in report.text()
    shown = dry_run(pack.path, None, pack.config)
    done = patch(pack.path, tmp_path / "out", config=pack.config)
    for text in (shown.text(), done.text()):
        assert INFERRED in text
    edits = json.loads((tmp_path / "out" / "packimport.json").read_text("utf-8"))["edits"]
    for edit in edits:
        assert (INFERRED in edit["reason"]) == edit["reason"].startswith("sin_cos_cache")


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8"])
def test_a_table_of_a_node_rests_on_nothing(family: str, tmp_path: Path) -> None:
    pack = wrong(family, tmp_path)
    report = check(pack.path, config=pack.config)
    assert "RPE031" not in {finding.code for finding in report.findings}
    assert INFERRED not in dry_run(pack.path, None, pack.config).text()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_dry_run_writes_nothing_and_lists_it_all(family: str, tmp_path: Path) -> None:
    pack = wrong(family, tmp_path)
    before = files(pack.path)
    shown = dry_run(pack.path, tmp_path / "out", pack.config)
    assert files(pack.path) == before
    assert not (tmp_path / "out").exists()
    patch(pack.path, tmp_path / "out", config=pack.config)
    written = json.loads((tmp_path / "out" / "packimport.json").read_text("utf-8"))
    assert shown.to_dict()["edits"] == written["edits"]
    assert shown.to_dict()["edits"]


@pytest.mark.parametrize("family", ["hybrid 1.7", "npu 1.6", "full fusion 1.8"])
def test_longrope_beyond_the_original_length_is_no_matter_of_bytes(
    family: str, tmp_path: Path
) -> None:
    """Wrong throughout, and right values alone would not be enough: refused, nothing written."""
    doubled = tables(LONGROPE.inv_freq, ROWS * 2, attention=LONGROPE.attention, scale=2.0)
    pack = build(family, tmp_path / "p", LONGROPE, tables=doubled, usable=ORIGINAL * 2)
    report = check(pack.path, config=pack.config)
    codes = {f.code for f in report.findings if f.severity == "error"}
    assert {"RPE001", "RPE012"} <= codes
    assert report.exit_code == 1
    with pytest.raises(PatchError, match="RPE012") as caught:
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", ["npu 1.6", "hybrid 1.7"])
@pytest.mark.parametrize("empty", [True, False])
def test_the_pack_that_declares_nothing(family: str, empty: bool, tmp_path: Path) -> None:
    """An empty config.json stays as it is; the declaration lies in packimport.json then."""
    pack = wrong(family, tmp_path)
    config = pack.path / "config.json"
    config.unlink(missing_ok=True)
    if empty:
        config.write_bytes(b"{ }\n")
    report = check(pack.path)
    assert (report.verdict, report.exit_code) == ("undeclared", 1)
    assert {site.measurement.baked_as for site in report.sites} == {"default with theta 500000"}
    done = patch_in_place(pack.path, config=pack.source)
    assert ("config.json" in done.added) == (not empty)
    assert config.read_bytes() == (
        b"{ }\n" if empty else (pack.source / "config.json").read_bytes()
    )
    assert check(pack.path).verdict == "ok"


def test_models_that_fit_are_named(tmp_path: Path) -> None:
    """By the sizes that genai_config states; one of them declares its schedule."""
    from ryzen_graphs import Shape

    shape = Shape(layers=16, heads=32, kv_heads=8, head_size=64, hidden=2048, vocab=256)
    pack = wrong("npu 1.6", tmp_path, shape=shape, sparse=True)
    (finding,) = (f for f in check(pack.path).findings if f.code == "RPE002")
    assert finding.fix is not None
    assert "meta-llama/Llama-3.2-1B-Instruct" in finding.fix
    assert "Llama-3.2-3B" not in finding.fix
    # The table is plain, and the model's is not.
    assert "as baked" not in finding.fix
    report = check(pack.path, model="meta-llama/Llama-3.2-1B-Instruct")
    assert report.verdict == "mismatch"
    patch(pack.path, tmp_path / "out", model="meta-llama/Llama-3.2-1B-Instruct")
    assert check(tmp_path / "out").verdict == "ok"
    for name in ("packimport.json", "config.json"):
        (tmp_path / "out" / name).unlink()
    (finding,) = (f for f in check(tmp_path / "out").findings if f.code == "RPE002")
    assert finding.fix is not None
    assert "meta-llama/Llama-3.2-1B-Instruct (as baked)" in finding.fix


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "npu 1.6"])
def test_tables_of_their_own_that_are_meant_to_be_one(family: str, tmp_path: Path) -> None:
    """One of them is wrong: bytes cure that, and then the device has one table."""
    good, bad = LLAMA3.right(ROWS), plain_instead(LLAMA3, ROWS)
    options = {"token_tables": good} if FAMILIES[family].fused else {}
    pack = build(
        family, tmp_path / "p", LLAMA3, tables=lambda layer: bad if layer == 1 else good, **options
    )
    report = check(pack.path, config=pack.config)
    codes = {f.code for f in report.findings if f.severity == "error"}
    assert codes == ({"RPE001", "RPE020"} if FAMILIES[family].fused else {"RPE001"})
    patch(pack.path, tmp_path / "out", config=pack.config)
    assert check(tmp_path / "out").verdict == "ok"


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7"])
def test_equal_tables_that_are_meant_to_differ(family: str, tmp_path: Path) -> None:
    """Right values would give the device two tables: refused before anything is written."""
    first, same = tables(default(32, 1e4), ROWS), tables(default(32, 1e4), ROWS)
    pack = build(family, tmp_path / "p", GEMMA, tables=lambda layer: same if layer == 2 else first)
    report = check(pack.path, config=pack.config)
    codes = {f.code for f in report.findings if f.severity == "error"}
    assert (codes, report.exit_code) == ({"RPE001", "RPE028"}, 1)
    with pytest.raises(PatchError, match="RPE028") as caught:
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "out").exists()
    off = {"hybrid_dbg_use_aie_rope": "0"}
    own = build(
        family, tmp_path / "own", GEMMA,
        tables=lambda layer: same if layer == 2 else first, settings=off,
    )  # fmt: skip
    patch(own.path, tmp_path / "out", config=own.config)
    assert check(tmp_path / "out").verdict == "ok"
