"""The probe of every Ryzen AI family: no device, no library and no graph of the pack runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ryzen_graphs import Shape
from ryzen_packs import FAMILIES, Pack, build
from ryzen_tables import FAULTS, LLAMA3, PLAIN, YARN, Declared, plain_instead

from forward import cli
from forward.probe import probe
from forward.probe_report import SCHEMA, Probe
from packimport.pack.documents import validate

ROWS = 1024
FUSED = sorted(name for name, family in FAMILIES.items() if family.fused)


def probed(pack: Pack) -> Probe:
    found = probe(pack.path, pack.config)
    validate(found.to_dict(), SCHEMA, "out")
    return found


def made(family: str, folder: Path, declared: Declared = LLAMA3, **options: Any) -> Pack:
    tables = options.pop("tables", None) or declared.right(ROWS)
    return build(family, folder / "pack", declared, tables=tables, **options)


def verdicts(found: Probe) -> list[tuple[str, str]]:
    """Encoding and verdict of each site."""
    return [(site.site.encoding, site.verdict) for site in found.sites]


@pytest.mark.parametrize("declared", [LLAMA3, YARN, PLAIN], ids=["llama3", "yarn", "default"])
@pytest.mark.parametrize("family", FAMILIES)
def test_right_tables_pass(family: str, declared: Declared, tmp_path: Path) -> None:
    found = probed(made(family, tmp_path, declared))
    assert (found.verdict, found.exit_code, found.gaps) == ("within", 0, ()), found.text()
    assert len(found.sites) == (2 if FAMILIES[family].fused else 1)
    for site in found.sites:
        assert site.site.layers == (0, 1, 2)
        assert {0, 511, 512, 1023} <= set(site.positions)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_fault_is_seen_in_every_table(family: str, fault: str, tmp_path: Path) -> None:
    declared, make = FAULTS[fault]
    found = probed(made(family, tmp_path, declared, tables=make(declared, ROWS)))
    assert (found.verdict, found.exit_code) == ("wrong", 1)
    assert {site.verdict for site in found.sites} == {"wrong"}, found.text()


@pytest.mark.parametrize("family", FUSED)
def test_the_branches_are_told_apart(family: str, tmp_path: Path) -> None:
    wrong = plain_instead(LLAMA3, ROWS)
    found = probed(made(family, tmp_path, token_tables=wrong))
    assert found.exit_code == 1
    for site in found.sites:
        is_token = site.site.encoding == "cos-sin"
        assert site.verdict == ("wrong" if is_token else "within")
        assert site.site.branch.startswith("then" if is_token else "else")


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "full fusion 1.8"])
def test_pairs_of_neighbours_where_halves_are_declared(family: str, tmp_path: Path) -> None:
    """A compiled node does not say how it pairs entries, so its tables alone are probed."""
    found = probed(made(family, tmp_path, interleaved=True))
    assert found.exit_code == 1
    for site in found.sites:
        told = site.site.interleaved is not None
        assert site.verdict == ("wrong" if told else "within")
        assert site.first_wrong_position == (1 if told else None)
    assert any(site.site.interleaved for site in found.sites)


def test_a_part_of_a_head(tmp_path: Path) -> None:
    config = {"model_type": "phi", "partial_rotary_factor": 0.5}
    half = Declared({**PLAIN.config, **config}, 10000.0 ** -(np.arange(16) / 16))
    pack = build("eager 1.8", tmp_path / "pack", half, tables=half.right(ROWS), rotary_dim=32)
    assert verdicts(probed(pack)) == [("pairs", "within")]


@pytest.mark.parametrize("family", FUSED)
def test_tables_of_a_whole_context(family: str, tmp_path: Path) -> None:
    """131 072 rows of 32 pairs, of which 4096 are used: seconds, and all of them may be read."""
    rows = 131_072
    longest = Declared({**LLAMA3.config, "max_position_embeddings": rows}, LLAMA3.inv_freq)
    pack = build(
        family, tmp_path / "pack", longest, tables=longest.right(rows), usable=4096, sparse=True,
        shape=Shape(),
    )  # fmt: skip
    start = time.monotonic()
    found = probed(pack)
    assert time.monotonic() - start < 30
    assert found.verdict == "within"
    for site in found.sites:
        assert {511, 512, 4095, 4096, rows - 1} <= set(site.positions)
        assert len(site.positions) < 100


def test_the_command_needs_no_library_of_the_pack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pack names native code that is not there; nothing asks for it."""
    pack = made("npu 1.6", tmp_path)
    options = json.loads((pack.path / "genai_config.json").read_text("utf-8"))
    named = options["model"]["decoder"]["session_options"]
    assert named["custom_ops_library"] == "onnx_custom_ops.dll"
    assert not (pack.path / named["custom_ops_library"]).exists()
    with pytest.raises(SystemExit) as caught:
        cli.main([str(pack.path), "--probe", "--config", str(pack.source)])
    out, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    assert out.startswith(f"{pack.path}: within\n")
    assert "DynamicDispatch in layers 0-2; bfloat16, pairs taken as declared" in out


def test_a_pack_without_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = made("hybrid 1.7", tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main([str(pack.path), "--probe"])
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (3, "")
    assert err == (
        f"forward-serve: error: {pack.path}: no config declares a RoPE schedule, so there is"
        " nothing to hold the pack to. Name the source model's config.json with --config, or"
        " pass --model ID.\n"
    )
