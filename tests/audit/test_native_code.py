"""What is advised of a pack that names a library: only what forward-serve then does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from builders import plain, tiny_pack

from forward.genai_config import read_decoder
from packimport import check
from packimport.errors import ContainerError
from packimport.pack.container import open_container

LIBRARY = b"\x7fELF"


def pack_with(folder: Path, options: dict[str, str], *, provider: bool = False) -> Path:
    pack = tiny_pack(folder, config={}, tables=plain(64, 8))
    path = pack / "genai_config.json"
    genai = json.loads(path.read_text(encoding="utf-8"))
    session = genai["model"]["decoder"].setdefault("session_options", {})
    session["custom_ops_library"] = "ops.so"
    if provider:
        session["provider_options"] = [{"some": options}]
    else:
        session.update(options)
    path.write_text(json.dumps(genai), encoding="utf-8")
    return pack


def advice(pack: Path) -> str:
    (found,) = (item for item in check(pack).findings if item.code == "RPE017")
    assert found.fix is not None
    return found.fix


def decoder_of(pack: Path) -> object:
    sha256 = hashlib.sha256(LIBRARY).hexdigest()
    return read_decoder(open_container(pack), sha256)


def test_a_library_in_the_pack_may_be_allowed(tmp_path: Path) -> None:
    pack = pack_with(tmp_path / "p", {})
    (pack / "ops.so").write_bytes(LIBRARY)
    decoder_of(pack)
    assert advice(pack) == "run it only if you trust it: forward-serve --allow-custom-ops SHA256"


def test_a_library_elsewhere_can_not_be_allowed(tmp_path: Path) -> None:
    pack = pack_with(tmp_path / "p", {})
    with pytest.raises(ContainerError):
        decoder_of(pack)
    assert advice(pack).startswith("forward-serve can't run this pack: it loads no library but")


@pytest.mark.parametrize("option", ["custom_allocator", "external_data_file"])
def test_a_pack_that_is_refused_anyway(option: str, tmp_path: Path) -> None:
    pack = pack_with(tmp_path / "p", {option: "ops.so"})
    (pack / "ops.so").write_bytes(LIBRARY)
    with pytest.raises(ContainerError, match=option):
        decoder_of(pack)
    place = f"genai_config.json#/model/decoder/session_options/{option}"
    assert advice(pack).startswith(f"forward-serve never runs this pack: it refuses {place}")


def test_the_option_of_a_provider_is_none_of_the_session(tmp_path: Path) -> None:
    pack = pack_with(tmp_path / "p", {"custom_allocator": "x"}, provider=True)
    (pack / "ops.so").write_bytes(LIBRARY)
    decoder_of(pack)
    assert "--allow-custom-ops" in advice(pack)
