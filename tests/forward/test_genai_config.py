"""What genai_config.json says about running, and what in it is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from counting import counting_pack

from forward.genai_config import Decoder, read_decoder
from packimport.errors import ContainerError, DocumentError
from packimport.pack.container import open_container

TESTS = Path(__file__).parent.parent


def read(folder: Path) -> Decoder:
    return read_decoder(open_container(folder))


def test_a_real_one() -> None:
    assert read(TESTS / "packs" / "oga-0.18.0-llama3-int4") == Decoder(
        graph="model.onnx",
        layers=2,
        head_size=16,
        kv_heads=2,
        vocab_size=512,
        context_length=2048,
        eos=(2,),
        share_buffer=True,
        library=None,
        input_ids="input_ids",
        attention_mask="attention_mask",
        position_ids="position_ids",
        past_key="past_key_values.%d.key",
        past_value="past_key_values.%d.value",
        logits="logits",
        present_key="present.%d.key",
        present_value="present.%d.value",
        past_conv="past_key_values.%d.conv_state",
        past_recurrent="past_key_values.%d.recurrent_state",
        present_conv="present.%d.conv_state",
        present_recurrent="present.%d.recurrent_state",
    )


def test_names_and_eos_lists_are_taken(tmp_path: Path) -> None:
    names = {"inputs": {"input_ids": "ids", "past_key_names": "k%d"}, "outputs": {"logits": "l"}}
    pack = counting_pack(tmp_path / "p", decoder=names, genai={"eos_token_id": [7, 5]})
    decoder = read(pack)
    assert (decoder.input_ids, decoder.past_key, decoder.logits) == ("ids", "k%d", "l")
    assert decoder.eos == (7, 5)


def test_no_eos(tmp_path: Path) -> None:
    assert read(counting_pack(tmp_path / "p", genai={"eos_token_id": None})).eos == ()


@pytest.mark.parametrize("option", ["custom_ops_library", "external_data_file"])
def test_native_code_is_never_loaded(tmp_path: Path, option: str) -> None:
    options = {"session_options": {option: "onnx_custom_ops.dll"}}
    with pytest.raises(ContainerError, match="never loads") as caught:
        read(counting_pack(tmp_path / "p", decoder=options))
    assert caught.value.exit_code == 3
    assert caught.value.place == f"genai_config.json#/model/decoder/session_options/{option}"


def test_the_npu_pack_of_ryzen_ai_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fusion.onnx").write_bytes(b"")
    source = TESTS / "data" / "genai" / "ryzenai-1.6-npu.genai_config.json"
    shutil.copy(source, tmp_path / "genai_config.json")
    with pytest.raises(ContainerError, match=r"asks for custom_allocator.*--probe"):
        read(tmp_path)


@pytest.mark.parametrize("allowed", [None, "0" * 64])
def test_native_code_of_a_stage_of_a_pipeline(tmp_path: Path, allowed: str | None) -> None:
    stage = {"filename": "model.onnx", "session_options": {"custom_ops_library": "ops.dll"}}
    pack = counting_pack(tmp_path / "p", decoder={"pipeline": [{"prefill": stage}]})
    (pack / "ops.dll").write_bytes(b"x")
    message = "never loads unasked" if allowed is None else "not the one that was allowed"
    with pytest.raises(ContainerError, match=message):
        read_decoder(open_container(pack), allowed)
    digest = hashlib.sha256(b"x").hexdigest()
    with pytest.raises(ContainerError, match=r"several graphs.*--probe"):
        read_decoder(open_container(pack), digest)


def test_a_pipeline_is_refused(tmp_path: Path) -> None:
    pipeline = {"pipeline": [{"prefill": {"filename": "model.onnx"}}]}
    with pytest.raises(ContainerError, match="several graphs"):
        read(counting_pack(tmp_path / "p", decoder=pipeline))


def test_a_folder_without_one(tmp_path: Path) -> None:
    (counting_pack(tmp_path / "p") / "genai_config.json").unlink()
    with pytest.raises(ContainerError, match=r"no genai_config\.json"):
        read(tmp_path / "p")


@pytest.mark.parametrize(
    ("genai", "decoder", "pointer"),
    [
        ({"vocab_size": None}, {}, "/model/vocab_size"),
        ({"vocab_size": "8"}, {}, "/model/vocab_size"),
        ({"context_length": 0}, {}, "/model/context_length"),
        ({}, {"filename": None}, "/model/decoder/filename"),
        ({}, {"num_hidden_layers": 0}, "/model/decoder/num_hidden_layers"),
        ({"eos_token_id": -1}, {}, "/model/eos_token_id"),
        ({}, {"inputs": {"past_key_names": "k"}}, "/model/decoder/inputs/past_key_names"),
        ({}, {"inputs": {"past_key_names": "%d%s"}}, "/model/decoder/inputs/past_key_names"),
    ],
)
def test_faults_are_named_by_pointer(
    tmp_path: Path, genai: dict[str, Any], decoder: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(DocumentError) as caught:
        read(counting_pack(tmp_path / "p", genai=genai, decoder=decoder))
    assert caught.value.place == f"genai_config.json#{pointer}"


@pytest.mark.parametrize("filename", ["../model.onnx", "/model.onnx", "C:\\model.onnx", "no.onnx"])
def test_a_graph_outside_the_pack_is_refused(tmp_path: Path, filename: str) -> None:
    with pytest.raises(ContainerError):
        read(counting_pack(tmp_path / "p", decoder={"filename": filename}))


def test_strict_json(tmp_path: Path) -> None:
    path = counting_pack(tmp_path / "p") / "genai_config.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"vocab_size": 8', '"vocab_size": 8, "vocab_size": 9'), "utf-8")
    with pytest.raises(DocumentError, match="vocab_size"):
        read(tmp_path / "p")
    assert json.loads(text)["model"]["vocab_size"] == 8
