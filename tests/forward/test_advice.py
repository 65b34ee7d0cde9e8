"""A pack that onnxruntime refuses: the error says what `packimport` knows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders import tiny_pack

from forward import cli
from forward.advice import advised
from packimport.errors import GraphError

PACKS = Path(__file__).parent.parent / "packs"


def error_of(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(arg) for arg in args])
    assert caught.value.code == 3
    return capsys.readouterr().err


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps([3] * 70), encoding="utf-8")
    return path


@pytest.mark.parametrize("task", ["--self-check", "--generate", "--dump-logits"])
def test_a_graph_that_does_not_load_for_a_known_fault(
    task: str, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"--generate": ["2"], "--dump-logits": [tmp_path / "d"]}.get(task, [])
    pack = PACKS / "oga-0.11.2-smollm3"
    err = error_of(capsys, pack, task, *value, "--tokens", tokens)
    # onnxruntime's own words, without its dots and paths, and then the cure.
    assert "on the CPU: Node input 'position_ids' is not a graph input" in err
    assert "previous node. A known fault, RPE016: layer 3 is declared without RoPE" in err
    assert err.endswith("packimport patch CONTAINER -o OUT takes the nodes out of the graph.\n")


def test_a_table_that_is_too_short(
    tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = tiny_pack(tmp_path / "p", rows=64, config={"max_position_embeddings": 4096})
    file = pack / "genai_config.json"
    genai = json.loads(file.read_text(encoding="utf-8"))
    genai["model"]["context_length"] = genai["search"]["max_length"] = 4096
    file.write_text(json.dumps(genai), encoding="utf-8")
    err = error_of(capsys, pack, "--dump-logits", tmp_path / "d", "--tokens", tokens)
    assert "allowed: 64 or fewer. A known fault, RPE009: " in err


@pytest.mark.parametrize("name", ["oga-0.18.0-qwen3", "oga-0.11.2-llama3", "no config"])
def test_a_pack_without_such_a_fault_is_refused_as_before(name: str, tmp_path: Path) -> None:
    """Right; wrong in a way that keeps no graph from running; and one that can't be checked."""
    pack = tmp_path / "p"
    if (PACKS / name).exists():
        shutil.copytree(PACKS / name, pack)
    error = GraphError("it fails", place="model.onnx")
    with pytest.raises(GraphError) as caught, advised(pack):
        raise error
    assert caught.value is error


def test_an_error_that_names_a_cure_keeps_it() -> None:
    error = GraphError("it fails", fix="Buy an NPU.")
    with pytest.raises(GraphError) as caught, advised(PACKS / "oga-0.11.2-smollm3"):
        raise error
    assert caught.value is error
