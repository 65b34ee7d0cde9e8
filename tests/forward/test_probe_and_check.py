"""A probe never says `within` of a pack that the check calls wrong, or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import plain, tiny_pack
from onnx import helper
from ryzen_packs import build
from ryzen_tables import Declared, default, tables

from forward import cli
from forward.probe import probe
from forward.probe_report import SCHEMA, Probe
from packimport import check
from packimport.pack.documents import validate


def probed(pack: Path, config: Path | None = None) -> Probe:
    found = probe(pack, config)
    validate(found.to_dict(), SCHEMA, "out")
    return found


def codes(found: Probe) -> set[str | None]:
    return {gap.code for gap in found.gaps}


def agrees(pack: Path, config: Path | None = None) -> Probe:
    """The probe, which must come to the exit code of the check."""
    found = probed(pack, config)
    assert found.exit_code == check(pack, config).exit_code, found.text()
    return found


def silent(pack: Path, key: str) -> Path:
    file = pack / "genai_config.json"
    genai = json.loads(file.read_text(encoding="utf-8"))
    genai["model"]["decoder"].pop(key)
    file.write_text(json.dumps(genai), encoding="utf-8")
    return pack


def test_a_right_pack_has_no_gaps(tmp_path: Path) -> None:
    found = agrees(tiny_pack(tmp_path / "p", rows=64, config={}))
    assert (found.verdict, found.gaps) == ("within", ())


def test_another_number_of_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = tiny_pack(tmp_path / "p", rows=64, config={"num_hidden_layers": 1})
    found = agrees(silent(pack, "num_hidden_layers"))
    assert {site.verdict for site in found.sites} == {"within"}
    assert (found.verdict, found.exit_code) == ("not probed", 3)
    assert codes(found) == {"RPE013"}
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(pack), "--probe"])
    assert stopped.value.code == 3
    said = capsys.readouterr().out
    assert "RPE013" in said
    assert "not settled by the probe" in said


def test_the_first_table_for_all_layers(tmp_path: Path) -> None:
    gemma = Declared(
        {
            "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
            "max_position_embeddings": 4096, "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0, "sliding_window": 512,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
        default(32, 1000000.0),
    )  # fmt: skip
    local, full = tables(default(32, 1e4), 1024), gemma.right(1024)
    pack = build(
        "hybrid 1.7", tmp_path / "p", gemma, tables=lambda layer: full if layer == 2 else local
    )
    found = agrees(pack.path, pack.config)
    assert {site.verdict for site in found.sites} == {"within"}
    assert (found.verdict, found.exit_code, codes(found)) == ("wrong", 1, {"RPE028"})


def test_a_width_that_no_kernel_takes(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", head_dim=24, rows=64, config={"head_dim": 24})
    found = agrees(pack)
    assert {site.verdict for site in found.sites} == {"within"}
    assert (found.verdict, found.exit_code, codes(found)) == ("wrong", 1, {"RPE040"})


def test_other_heads(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                for kept in [a for a in node.attribute if a.name == "num_heads"]:
                    node.attribute.remove(kept)
                node.attribute.append(helper.make_attribute("num_heads", 2))

    found = agrees(tiny_pack(tmp_path / "p", rows=64, config={}, change=change))
    assert (found.verdict, found.exit_code, codes(found)) == ("not probed", 3, {"RPE041"})


def test_an_entry_between_the_positions_that_are_rotated(tmp_path: Path) -> None:
    """The probe takes some positions of a table, and the check takes all."""
    cos, sin = plain(256, 8)
    right = probed(tiny_pack(tmp_path / "right", rows=256, tables=(cos, sin), config={}))
    (site,) = right.sites
    missed = next(at for at in range(100, 256) if at not in site.positions)
    cos[missed, 3] += 0.5
    found = agrees(tiny_pack(tmp_path / "p", rows=256, tables=(cos, sin), config={}))
    assert {site.verdict for site in found.sites} == {"within"}
    assert (found.verdict, codes(found)) == ("wrong", {"RPE001"})
    (gap,) = found.gaps
    assert gap.where is not None


@pytest.mark.parametrize("config", [{}, {"rope_theta": 20000.0}])
def test_what_a_rotation_shows_is_said_once(config: dict[str, Any], tmp_path: Path) -> None:
    found = agrees(tiny_pack(tmp_path / "p", rows=64, tables=plain(64, 8), config=config))
    assert found.gaps == ()
    assert np.all([site.verdict == ("wrong" if config else "within") for site in found.sites])
