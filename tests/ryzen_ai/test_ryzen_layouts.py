"""Layouts by name: of real packs, and of built ones with other names and without side files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders import tiny_pack
from ryzen_packs import FAMILIES, Pack, build
from ryzen_tables import LLAMA3

from packimport import check
from packimport.audit.layout import LAYOUTS
from packimport.audit.show import show
from packimport.errors import ContainerError

ROOT = Path(__file__).parents[2]
PACKS = ROOT / "tests" / "packs"
ROWS = 256


def made(family: str, folder: Path) -> Pack:
    return build(family, folder / "p", LLAMA3, tables=LLAMA3.right(ROWS))


@pytest.mark.parametrize("name", sorted(path.name for path in PACKS.iterdir()))
def test_real_packs(name: str) -> None:
    expected = "optimum or torch export" if name.startswith("optimum") else "OGA"
    assert check(PACKS / name).layout == expected
    assert f"layout {expected}" in show(PACKS / name).text()


def test_a_graph_of_nobody_known(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={})
    (pack / "genai_config.json").unlink()
    assert check(pack).layout == "unknown"


def test_the_schema_names_them_all() -> None:
    schema = json.loads((ROOT / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
    container = schema["$defs"]["report"]["properties"]["container"]["properties"]
    assert container["layout"]["enum"] == list(LAYOUTS)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_show_names_them(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    shown = show(pack.path, pack.config)
    layout = check(pack.path, pack.config).layout
    assert layout.startswith("Ryzen AI")
    assert shown.to_dict()["layout"] == layout
    assert f"  layout {layout}" in shown.text().splitlines()


def test_a_bare_config_has_none(tmp_path: Path) -> None:
    source = made("hybrid 1.7", tmp_path).source
    assert show(source).layout is None
    assert "layout" not in show(source).text()


@pytest.mark.parametrize("family", ["hybrid 1.4", "npu 1.6", "hybrid 1.7", "token fusion 1.8"])
def test_a_config_that_is_added_changes_no_layout(family: str, tmp_path: Path) -> None:
    """A patched pack of 1.7 has one, which the original has not."""
    pack = made(family, tmp_path)
    before = check(pack.path, pack.config).layout
    shutil.copy(pack.source / "config.json", pack.path / "config.json")
    assert check(pack.path).layout == before


def test_a_header_out_of_the_pack_is_not_followed(tmp_path: Path) -> None:
    pack = made("hybrid 1.7", tmp_path)
    path = pack.path / "genai_config.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("model_jit.pb.bin", "../model_jit.pb.bin"), encoding="utf-8")
    assert check(pack.path, pack.config).verdict == "ok"


def test_every_pointer_is_counted(tmp_path: Path) -> None:
    pack = made("npu 1.6", tmp_path)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123\n"
    for name in ("prefill.bin", "rai_config.json", "prefill.pb.bin"):
        (pack.path / name).write_text(pointer, encoding="utf-8", newline="\n")
    with pytest.raises(ContainerError, match=r"and of 2 more files.*git lfs pull") as caught:
        check(pack.path, pack.config)
    assert caught.value.place == "prefill.bin"
