"""Every family of Ryzen AI packs with the right tables and with every fault: named, mended, ok.

Right tables are those of `ryzen_tables`, and what a mended pack holds is read with onnx alone.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from ryzen_bytes import baked, changed_tables, every_node, files
from ryzen_graphs import Shape
from ryzen_packs import FAMILIES, Pack, build
from ryzen_reports import errors, judged
from ryzen_tables import (
    FAULTS,
    LLAMA3,
    PLAIN,
    YARN,
    Declared,
    Tables,
    llama3,
    plain_instead,
)

from packimport import Report, check, patch, patch_in_place, undo
from packimport.errors import PatchError

ROWS = 1024
FUSED = sorted(name for name, family in FAMILIES.items() if family.fused)
LABELS = {
    "plain": "default",
    "original is the longest": "llama3 with original_max_position_embeddings 4096",
    "yarn lost": "default",
    "no attention factor": "yarn with attention_factor 1",
    "positions doubled": "positions scaled by 2",
    "half precision angles": "llama3, angles computed in float16",
    "sin negated": "llama3, sin negated",
    "swapped": "llama3, cos and sin swapped",
    "NaN": "llama3, NaN or infinite values in row 512",
}
SCHEDULES = {"llama3": LLAMA3, "yarn": YARN, "default": PLAIN}


def made(family: str, folder: Path, declared: Declared, tables: Tables, **options: object) -> Pack:
    return build(family, folder / "pack", declared, tables=tables, **options)  # type: ignore[arg-type]


def labels(report: Report) -> set[str]:
    return {site.measurement.baked_as for site in report.sites}


def places(family: str) -> set[tuple[str, ...]]:
    """The tensors of each table that a pack of a family holds."""
    token, prefill = ("sin_cos_cache_token",), ("sin_cos_cache_prefill",)
    if family == "full fusion 1.8":
        return {token, prefill}
    pair = ("cos_cache", "sin_cache")
    return {pair, token} if FAMILIES[family].fused else {pair}


def names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in every_node(model.graph)]


def mended(pack: Pack, declared: Declared, out: Path) -> set[str]:
    """Patch; the tensors that changed, after every table was held to the reference."""
    patched = patch(pack.path, out, config=pack.config)
    assert not patched.graph_changes
    assert patched.after.exit_code == 0
    again = check(out)
    assert (again.verdict, errors(again)) == ("ok", set()), again.text()
    for place in baked(out, pack.graph).values():
        assert place.is_right(declared), place.names
    # The header of offloaded weights is keyed by them.
    new = onnx.load(str(out / pack.graph), load_external_data=False)
    assert names(new) == names(pack.model())
    return changed_tables(pack.path, out, pack.graph)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_right_tables(family: str, schedule: str, tmp_path: Path) -> None:
    declared = SCHEDULES[schedule]
    pack = made(family, tmp_path, declared, declared.right(ROWS))
    report = judged(pack)
    assert (report.verdict, report.exit_code, errors(report)) == ("ok", 0, set()), report.text()
    assert labels(report) == {schedule}
    sites = [site.site for site in report.sites]
    assert {tuple(span.name for span in site.tensors) for site in sites} == places(family)
    assert all((site.rows, site.pairs) == (ROWS, declared.pairs) for site in sites)
    assert all(site.layers == (0, 1, 2) for site in sites)
    # context_length is the model's, 4096, and the option allows 1024.
    assert "RPE010" in {f.code for f in report.findings}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_right_pack_is_copied(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path, LLAMA3, LLAMA3.right(ROWS))
    assert mended(pack, LLAMA3, tmp_path / "out") == set()


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_faults(family: str, fault: str, tmp_path: Path) -> None:
    declared, wrong = FAULTS[fault]
    pack = made(family, tmp_path, declared, wrong(declared, ROWS))
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("mismatch", 1), report.text()
    assert "RPE001" in errors(report)
    assert labels(report) == {LABELS[fault]}
    if fault == "original is the longest":
        # The releases that made such packs are named.
        assert "0.6.0 to 0.13.2 (Ryzen AI 1.4 to 1.7.1)" in report.text()
        assert "Ryzen AI 1.5" in report.text()
    assert mended(pack, declared, tmp_path / "out") == {n for p in places(family) for n in p}


@pytest.mark.parametrize("right", ["prefill", "token"])
@pytest.mark.parametrize("family", FUSED)
def test_only_one_branch_is_right(family: str, right: str, tmp_path: Path) -> None:
    good, bad = LLAMA3.right(ROWS), plain_instead(LLAMA3, ROWS)
    prefill, token = (good, bad) if right == "prefill" else (bad, good)
    pack = made(family, tmp_path, LLAMA3, prefill, token_tables=token)
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    assert {"RPE001", "RPE020"} <= errors(report), report.text()
    found = {site.site.tensors[0].name: site.measurement for site in report.sites}
    by_role = {"token" if "token" in n else "prefill": m for n, m in found.items()}
    wrong = "token" if right == "prefill" else "prefill"
    assert by_role[right].baked_as == "llama3"
    assert by_role[right].wrong_pairs == 0
    assert by_role[wrong].baked_as == "default"
    changed = mended(pack, LLAMA3, tmp_path / "out")
    assert {"token" in name for name in changed} == {wrong == "token"}


def test_the_text_tells_tables_in_two_parts_from_rounded_ones(tmp_path: Path) -> None:
    """One step of float16, with what machines differ by, against half a step of bfloat16."""
    report = judged(made("full fusion 1.8", tmp_path, LLAMA3, LLAMA3.right(ROWS)))
    sizes = {site.site.tensors[0].name: f"{site.site.rows} rows" for site in report.sites}
    lines = report.text().splitlines()
    for name, kind, least, most in (
        ("sin_cos_cache_prefill", "bfloat16 hi + lo", 1e-5, 2.0**-11),
        ("sin_cos_cache_token", "bfloat16", 2.0**-11, 2.0**-8),
    ):
        (tensor,) = (full for full in sizes if name in full)
        (at,) = (i for i, line in enumerate(lines) if line.endswith(f": {tensor}"))
        assert f"; {kind}, {sizes[tensor]}" in lines[at + 1]
        (found,) = (s.measurement for s in report.sites if s.site.tensors[0].name == tensor)
        assert found.max_abs_cos_error is not None
        assert least < found.max_abs_cos_error < most


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_in_place_and_back(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path, LLAMA3, plain_instead(LLAMA3, ROWS))
    before = files(pack.path)
    patch_in_place(pack.path, config=pack.config)
    after = files(pack.path)
    assert check(pack.path).verdict == "ok"
    assert {name for name in before if before[name] != after[name]} <= {
        pack.graph,
        f"{pack.graph}.data",
    }
    assert all(len(after[name]) == len(data) for name, data in before.items())
    undo(pack.path)
    assert files(pack.path) == before


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_too_few_rows(family: str, tmp_path: Path) -> None:
    """Tables are as long as the compiled graph takes them: other bytes are no cure."""
    pack = made(family, tmp_path, LLAMA3, LLAMA3.right(512), usable=ROWS)
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    assert errors(report) == {"RPE009"}, report.text()
    assert labels(report) == {"llama3"}
    out = tmp_path / "out"
    try:
        patched = patch(pack.path, out, config=pack.config)
    except PatchError as refused:
        assert refused.exit_code == 3
        assert not out.exists()
    else:
        assert patched.graph_changes
        assert all(place.cos.shape[0] >= ROWS for place in baked(out, pack.graph).values())
    # And bytes alone never do.
    with pytest.raises(PatchError):
        patch(pack.path, tmp_path / "bytes", config=pack.config, bytes_only=True)
    assert not (tmp_path / "bytes").exists()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_pack_without_a_declaration(family: str, tmp_path: Path) -> None:
    """What is baked is told where nothing is declared; the written pack carries its declaration."""
    pack = made(family, tmp_path, LLAMA3, plain_instead(LLAMA3, ROWS))
    form = FAMILIES[family].config
    if form == "full":
        (pack.path / "config.json").unlink()
    report = check(pack.path)
    assert report.verdict in {"undeclared", "mismatch"}
    assert (report.exit_code, labels(report)) == (1, {"default with theta 500000"})
    assert "RPE002" in errors(report)
    with pytest.raises(PatchError):
        patch(pack.path, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    out = tmp_path / "out"
    patch(pack.path, out, config=pack.source)
    # No `config` from here on.
    assert check(out).verdict == "ok"
    written = (out / "config.json").read_bytes()
    given = (pack.source / "config.json").read_bytes()
    assert written == (b"{}\n" if form == "empty" else given)


LLAMA_3_2 = Declared(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    llama3(32, 500000.0, 32.0, 8192),
)
# The dimensions of Llama-3.2-1B that genai_config.json tells.
SIZES = Shape(layers=16, heads=32, kv_heads=8, head_size=64, hidden=2048, vocab=96)


@pytest.mark.parametrize("family", ["npu 1.6", "hybrid 1.7"])
def test_the_known_models_that_fit_are_named(family: str, tmp_path: Path) -> None:
    """`--model` then declares, and the pack that is written needs it no more."""
    right = LLAMA_3_2.right(8192)
    pack = made(family, tmp_path, LLAMA_3_2, right, shape=SIZES, sparse=True)
    report = check(pack.path)
    assert (report.verdict, report.exit_code) == ("undeclared", 1)
    (missing,) = (f for f in report.findings if f.code == "RPE002")
    told = f"{missing.message} {missing.found} {missing.fix} {missing.expected}"
    assert "Llama-3.2-1B" in told, told
    assert "Llama-3.1-8B" not in told, told
    model = "meta-llama/Llama-3.2-1B-Instruct"
    assert check(pack.path, model=model).verdict == "ok"
    patch(pack.path, tmp_path / "out", model=model)
    assert check(tmp_path / "out").verdict == "ok"
