"""What Ryzen AI packs have checked beyond a table's values, and every way a table may lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ryzen_bytes import baked, changed_tables, every_node, stored
from ryzen_packs import FAMILIES, Pack, build
from ryzen_reports import errors, judged
from ryzen_tables import (
    GEMMA,
    LLAMA3,
    LONGROPE,
    ORIGINAL,
    YARN,
    Declared,
    Tables,
    default,
    plain_instead,
    tables,
)

from packimport import Report, check, patch
from packimport.errors import PatchError
from packimport.graph.encodings import decode, encode
from packimport.pack.container import open_container
from packimport.rope.tables import Table

ROWS = 1024
# GLM-4 turns half of a head, neighbours together.
GLM = Declared(
    {
        "model_type": "glm4",
        "architectures": ["Glm4ForCausalLM"],
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
    default(16, 10000.0),
)


def said(report: Report) -> str:
    """All that the findings say."""
    fields = ("message", "expected", "found", "fix")
    return "\n".join(str(getattr(f, name)) for f in report.findings for name in fields)


def gemma(family: str, folder: Path, **settings: str) -> Pack:
    local, full = tables(default(32, 1e4), ROWS), GEMMA.right(ROWS)
    return build(
        family, folder, GEMMA, tables=lambda layer: full if layer == 2 else local,
        settings=settings,
    )  # fmt: skip


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8"])
def test_the_device_takes_the_first_table_for_all_layers(family: str, tmp_path: Path) -> None:
    report = judged(gemma(family, tmp_path / "device"))
    assert (report.verdict, report.exit_code) == ("mismatch", 1), report.text()
    # Each table is right: what is wrong is that there are two.
    assert all(not site.measurement.wrong_pairs for site in report.sites)
    assert len({site.site.cos.name for site in report.sites}) == 2
    assert errors(report) == {"RPE028"}
    assert "hybrid_dbg_use_aie_rope" in said(report)
    with pytest.raises(PatchError):
        patch(tmp_path / "device", tmp_path / "out", config=tmp_path / "device-source")
    assert not (tmp_path / "out").exists()
    own = judged(gemma(family, tmp_path / "own", hybrid_dbg_use_aie_rope="0"))
    assert (own.verdict, own.exit_code) == ("ok", 0), own.text()


def concatenated(rows: int) -> Tables:
    """Short rows up to the original length, then long ones from position 0 on."""
    assert LONGROPE.long is not None
    short = LONGROPE.right(ORIGINAL)
    long = tables(LONGROPE.long, rows, attention=LONGROPE.attention)
    cos, sin = (np.concatenate(parts) for parts in zip(short, long, strict=True))
    return cos, sin


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8", "npu 1.6"])
def test_longrope_concatenated_without_position_ids(family: str, tmp_path: Path) -> None:
    """Row `original` is position 0 of the long table there: wrong from that length on."""
    made = concatenated(4096)
    pack = build(family, tmp_path / "long", LONGROPE, tables=made, usable=ROWS)
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("mismatch", 1), report.text()
    assert "RPE029" in errors(report)
    assert "position" in said(report)
    assert str(ORIGINAL) in said(report)
    with pytest.raises(PatchError):
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert not (tmp_path / "out").exists()
    within = build(family, tmp_path / "short", LONGROPE, tables=made, usable=ORIGINAL)
    assert judged(within).verdict == "ok", judged(within).text()


@pytest.mark.parametrize("family", ["hybrid 1.7", "npu 1.6"])
def test_longrope_that_is_lost_within_the_original_length(family: str, tmp_path: Path) -> None:
    wrong = plain_instead(LONGROPE, ROWS)
    pack = build(family, tmp_path / "pack", LONGROPE, tables=wrong, usable=ORIGINAL)
    report = judged(pack)
    assert (report.exit_code, errors(report)) == (1, {"RPE001"}), report.text()
    check_mended(pack, LONGROPE, tmp_path / "out")


@pytest.mark.parametrize("family", ["hybrid 1.7", "npu 1.6"])
def test_a_short_table_within_the_original_length(family: str, tmp_path: Path) -> None:
    pack = build(family, tmp_path / "pack", LONGROPE, tables=LONGROPE.right(ORIGINAL))
    assert judged(pack).verdict == "ok", judged(pack).text()


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8", "npu 1.6"])
def test_offloaded_where_a_table_is_expected(family: str, tmp_path: Path) -> None:
    pack = build(family, tmp_path / "pack", LLAMA3, tables=LLAMA3.right(ROWS), place="offloaded")
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    assert "RPE030" in errors(report)
    found = [f for f in report.findings if f.code == "RPE030"]
    assert all("[0]" in f.message for f in found)
    first = next(node for node in every_node(pack.model().graph) if node.op_type == "GQO")
    assert any(str(f.where).startswith(first.name) for f in found)
    with pytest.raises(PatchError):
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["branch", "main", "constant"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "npu 1.6"])
def test_dtypes_and_places(family: str, dtype: str, place: str, tmp_path: Path) -> None:
    options = {"table_dtype": dtype, "place": place}
    right = build(family, tmp_path / "right", YARN, tables=YARN.right(ROWS), **options)
    report = judged(right)
    assert (report.verdict, errors(report)) == ("ok", set()), report.text()
    assert {site.site.dtype for site in report.sites if len(site.site.tensors) == 2} == {dtype}
    wrong = build(family, tmp_path / "wrong", YARN, tables=plain_instead(YARN, ROWS), **options)
    assert judged(wrong).exit_code == 1
    check_mended(wrong, YARN, tmp_path / "out")


@pytest.mark.parametrize("place", ["constant", "initializer", "external"])
@pytest.mark.parametrize("family", ["npu 1.6", "full fusion 1.8"])
def test_places_of_fused_tables(family: str, place: str, tmp_path: Path) -> None:
    options = {"token_place": place, "prefill_place": place}
    wrong = build(family, tmp_path / "p", YARN, tables=plain_instead(YARN, ROWS), **options)
    report = judged(wrong)
    assert {site.measurement.baked_as for site in report.sites} == {"default"}
    assert len(report.sites) == 2
    check_mended(wrong, YARN, tmp_path / "out")


def check_mended(pack: Pack, declared: Declared, out: Path) -> None:
    patch(pack.path, out, config=pack.config)
    report = check(out)
    assert report.verdict == "ok", report.text()
    assert changed_tables(pack.path, out, pack.graph) == set(stored(pack.path, pack.graph))
    for place in baked(out, pack.graph).values():
        assert place.is_right(declared), place.names


@pytest.mark.parametrize("op", ["AMDGroupQueryAttention", "GroupQueryAttention", "GQA"])
@pytest.mark.parametrize("packed", [True, False])
def test_names_of_attention_in_com_amd(op: str, packed: bool, tmp_path: Path) -> None:
    family = "hybrid 1.4, com.amd GQA"
    wrong = plain_instead(LLAMA3, ROWS)
    pack = build(family, tmp_path / "p", LLAMA3, tables=wrong, op=op, packed=packed)
    report = judged(pack)
    assert report.exit_code == 1
    assert [site.measurement.baked_as for site in report.sites] == ["default"]
    check_mended(pack, LLAMA3, tmp_path / "out")


@pytest.mark.parametrize("family", ["hybrid 1.7", "npu 1.6"])
def test_q_k_and_v_of_their_own(family: str, tmp_path: Path) -> None:
    pack = build(family, tmp_path / "p", LLAMA3, tables=LLAMA3.right(ROWS), packed=False)
    assert judged(pack).verdict == "ok"


PARTIAL: dict[str, Any] = {"interleaved": True, "rotary_dim": 32}


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8", "npu 1.6"])
def test_partial_and_interleaved(family: str, tmp_path: Path) -> None:
    pack = build(family, tmp_path / "p", GLM, tables=GLM.right(ROWS), **PARTIAL)
    report = judged(pack)
    assert report.verdict == "ok", report.text()
    (site,) = (s.site for s in report.sites if len(s.site.tensors) == 2)
    assert (site.interleaved, site.rotary_dim, site.pairs) == (True, 32, 16)
    doubled = tables(GLM.inv_freq, ROWS, scale=2.0)
    wrong = build(family, tmp_path / "w", GLM, tables=doubled, **PARTIAL)
    assert {s.measurement.baked_as for s in judged(wrong).sites} == {"positions scaled by 2"}
    check_mended(wrong, GLM, tmp_path / "out")


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8", "npu 1.6"])
def test_half_split_where_neighbours_are_declared(family: str, tmp_path: Path) -> None:
    options = {**PARTIAL, "interleaved": False}
    report = judged(build(family, tmp_path / "p", GLM, tables=GLM.right(ROWS), **options))
    assert "RPE007" in errors(report)
    assert report.exit_code == 1


@pytest.mark.parametrize("family", ["hybrid 1.7", "npu 1.6"])
def test_the_partial_factor_is_lost(family: str, tmp_path: Path) -> None:
    """All entries of a head rotate, from a table that is too wide: values can't mend that."""
    whole = tables(default(32, 10000.0), ROWS)
    report = judged(build(family, tmp_path / "p", GLM, tables=whole, interleaved=True))
    assert "RPE008" in errors(report)
    assert report.exit_code == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_encodings_round_trip(family: str, dtype: str, tmp_path: Path) -> None:
    """encode(decode(x)) is x, bit for bit, for every right table."""
    if family == "full fusion 1.8" and dtype != "float16":
        dtype = "float16"  # its prefill table holds float16 values, whatever the source had
    right = YARN.right(ROWS)
    pack = build(family, tmp_path / "p", YARN, tables=right, table_dtype=dtype)
    container = open_container(pack.path)
    known = stored(pack.path, pack.graph)
    report = judged(pack)
    assert report.sites
    for site in (judged_site.site for judged_site in report.sites):
        cos, sin = decode(site, container)
        again = encode(Table(cos, sin), site.dtype, site.encoding)
        there = [known[span.name].values.tobytes() for span in site.tensors]
        assert list(again) == there
        truth = next(b for b in baked(pack.path, pack.graph).values() if site.cos.name in b.names)
        assert np.array_equal(cos.astype(np.float64), truth.cos)
        assert np.array_equal(sin.astype(np.float64), truth.sin)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_rests_on_inference_is_said(family: str, tmp_path: Path) -> None:
    """Nobody saw a device copy the token table from the ONNX file: where there is one, a note."""
    report = judged(build(family, tmp_path / "p", LLAMA3, tables=plain_instead(LLAMA3, ROWS)))
    notes = [f for f in report.findings if f.code == "RPE031"]
    assert bool(notes) == FAMILIES[family].fused
    assert all(f.severity == "note" and "not run on hardware" in said(report) for f in notes)
