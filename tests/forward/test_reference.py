"""Reference logits, against a plain forward pass of transformers 5.24.0 with torch 2.13.0."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forward import cli
from forward.dump import SCHEMA, read_dump
from forward.form import Form
from forward.reference import Torch, dump_reference, dump_references, open_reference
from forward.steps import plan
from packimport.errors import DependencyError, DumpError
from packimport.pack.documents import load_json, validate

ROOT = Path(__file__).parent.parent.parent
TOKENS = np.random.default_rng(9).integers(0, 100, 70)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0] * 4,
    "long_factor": [3.0] * 4,
    "original_max_position_embeddings": 32,
}


def save(folder: Path, rope: dict[str, Any]) -> Path:
    """A seeded two-layer Llama, stored in bfloat16, with this RoPE block."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.5,
        rope_parameters=rope,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def plain(folder: Path, precision: str = "float32") -> Any:
    """The whole text in one pass without a cache, float32 [70, 100]."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision))
    with torch.inference_mode():
        return model(torch.from_numpy(TOKENS[None]), use_cache=False).logits[0].float().numpy()


def dump(folder: Path, out: Path, **options: Any) -> Any:
    shape = dump_reference(folder, out, TOKENS, **options)
    validate(load_json(out / "dump.json"), SCHEMA, "dump.json")
    logits = read_dump(out).logits[:]
    assert logits.shape == shape == (70, 100)
    return logits


@pytest.mark.oracle
@pytest.mark.parametrize("chunk", [None, 16])
def test_logits_are_transformers(tmp_path: Path, chunk: int | None) -> None:
    model = save(tmp_path / "m", LLAMA3)
    logits = dump(model, tmp_path / "d", chunk=chunk, torch_settings=Torch(threads=1))
    assert np.abs(logits - plain(model)).max() <= 1e-4
    stated: Any = load_json(tmp_path / "d" / "dump.json")
    assert stated["source"]["kind"] == "checkpoint"
    assert [f["name"] for f in stated["source"]["files"]] == ["config.json", "model.safetensors"]
    assert stated["steps"]["chunk"] == (chunk or 512)


@pytest.mark.oracle
def test_many_prompts_by_the_tokens_of_other_dumps(tmp_path: Path) -> None:
    """As after `import` of a base, or a run of a pack: the same tokens, prompt by prompt."""
    model = save(tmp_path / "m", LLAMA3)
    prompts = [TOKENS[:30], TOKENS]
    dump_references(model, tmp_path / "set", prompts)
    given = ["reference", str(model), "--prompts", str(tmp_path / "set")]
    with pytest.raises(SystemExit) as caught:
        cli.main([*given, "--dump-logits", str(tmp_path / "again")])
    assert caught.value.code == 0
    for index, tokens in enumerate(prompts):
        made = read_dump(tmp_path / "again" / f"{index:05d}")
        assert np.array_equal(made.tokens, tokens)
        assert np.abs(made.logits[:] - plain(model)[: len(tokens)]).max() <= 1e-4


@pytest.mark.oracle
def test_another_config_declares_another_schedule(tmp_path: Path) -> None:
    model = save(tmp_path / "m", {"rope_type": "default", "rope_theta": 10000.0})
    declared = tmp_path / "config.json"
    value: Any = load_json(model / "config.json")
    declared.write_text(json.dumps({**value, "rope_parameters": LLAMA3}), encoding="utf-8")
    logits = dump(model, tmp_path / "d", config=declared)
    assert np.abs(logits - plain(model)).max() > 0.1
    shutil.copy(declared, model / "config.json")
    assert np.abs(logits - plain(model)).max() <= 1e-4


@pytest.mark.oracle
def test_a_schedule_that_looks_at_the_length_is_fed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 32 tokens transformers takes the long factors for every position of a pass."""
    monkeypatch.setattr("forward.reference.CHUNK", 16)
    model = save(tmp_path / "m", LONGROPE)
    assert np.abs(dump(model, tmp_path / "whole") - plain(model)).max() <= 1e-4
    parts = dump(model, tmp_path / "parts", chunk=16)
    assert np.abs(parts - plain(model)).max() > 0.1


@pytest.mark.oracle
def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    model = save(tmp_path / "m", LLAMA3)
    value: Any = load_json(model / "config.json")
    for name, change in (
        ("deeper", {"num_hidden_layers": 3}),
        ("wider", {"intermediate_size": 64}),
        ("untied", {"tie_word_embeddings": False}),
    ):
        config = tmp_path / f"{name}.json"
        config.write_text(json.dumps({**value, **change}), encoding="utf-8")
        with pytest.raises(DumpError, match=r"lacks weights|can't load it"):
            dump_reference(model, tmp_path / name, TOKENS, config=config)
        assert not (tmp_path / name).exists()


@pytest.mark.oracle
def test_code_of_the_model_is_not_run(tmp_path: Path) -> None:
    model = save(tmp_path / "m", LLAMA3)
    value: Any = load_json(model / "config.json")
    value["model_type"] = "mine"
    value["auto_map"] = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    (model / "config.json").write_text(json.dumps(value), encoding="utf-8")
    (model / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    with pytest.raises(DumpError, match="can't load it"):
        dump_reference(model, tmp_path / "d", TOKENS)
    assert not (tmp_path / "ran").exists()


@pytest.mark.oracle
def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    model = save(tmp_path / "m", LLAMA3)
    data = (model / "model.safetensors").read_bytes()
    for damaged in (b"", data[:100], data[:-100]):
        (model / "model.safetensors").write_bytes(damaged)
        with pytest.raises(DumpError, match="can't load it"):
            dump_reference(model, tmp_path / "d", TOKENS)


@pytest.mark.oracle
def test_unknown_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"position 0 .*the checkpoint; found 100"):
        dump_reference(save(tmp_path / "m", LLAMA3), tmp_path / "d", TOKENS * 0 + 100)


def test_without_torch_or_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    for name in ("torch", "transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(DependencyError, match=r"pip install torch transformers"):
                dump_reference(tmp_path, tmp_path / "d", TOKENS)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="holds no weights"):
        dump_reference(tmp_path, tmp_path / "d", TOKENS)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DumpError, match=r"config\.json: there is no config\.json"):
        dump_reference(tmp_path, tmp_path / "d", TOKENS)


@pytest.mark.oracle
def test_bfloat16(tmp_path: Path) -> None:
    model = save(tmp_path / "m", LLAMA3)
    logits = dump(model, tmp_path / "d", torch_settings=Torch(precision="bfloat16"))
    assert np.array_equal(logits, plain(model, "bfloat16"))
    assert not np.array_equal(logits, plain(model))
    stated: Any = load_json(tmp_path / "d" / "dump.json")
    assert (stated["engine"]["dtype"], stated["engine"]["device"]) == ("bfloat16", "cpu")


@pytest.mark.oracle
@pytest.mark.parametrize("device", ["cuda:7", "warp"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    model = save(tmp_path / "m", LLAMA3)
    with pytest.raises(DumpError, match=f"--device.*found {device}"):
        dump(model, tmp_path / "d", torch_settings=Torch(device=device))
    assert not (tmp_path / "d").exists()


SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from forward.form import Form
from forward.reference import Reference, Torch, dump_reference, dump_references

model, out, tokens, at, form, many = sys.argv[1:]
blocks = Reference.blocks
seen = 0

def watched(*args):
    global seen
    for block in blocks(*args):
        if seen == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        yield block

Reference.blocks = watched
ids = np.load(tokens)
dump, ids = (dump_references, [ids[:30], ids[30:]]) if many == "many" else (dump_reference, ids)
options = {"chunk": 16, "torch_settings": Torch(threads=1), "form": eval(form)}
dump(Path(model), Path(out), ids, **options)
"""


@pytest.mark.oracle
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
@pytest.mark.parametrize(
    ("form", "many"),
    [(Form(), "one"), (Form(top_k=9), "one"), (Form(positions=((3, 20),)), "many")],
)
def test_a_kill_changes_no_byte(tmp_path: Path, form: Form, many: str) -> None:
    model = save(tmp_path / "m", LLAMA3)
    np.save(tmp_path / "tokens.npy", TOKENS)

    def made(name: str, at: int) -> int:
        words = [str(model), str(tmp_path / name), str(tmp_path / "tokens.npy"), str(at)]
        words += [repr(form), many]
        done = subprocess.run([sys.executable, "-c", SCRIPT, *words], cwd=ROOT, check=False)
        return done.returncode

    def files(name: str) -> dict[str, bytes]:
        found = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in found}

    assert made("whole", 99) == 0
    assert made("killed", 3) == -signal.SIGKILL
    assert not (tmp_path / "killed").exists()
    left = sorted(path.name for path in (tmp_path / ".killed.partial").iterdir())
    assert ("00000" in left) if many == "many" else ("logits.npy" in left)
    assert made("killed", 99) == 0
    assert files("killed") == files("whole")


@pytest.mark.oracle
def test_what_is_done_is_not_computed_again(tmp_path: Path) -> None:
    reference = open_reference(model := save(tmp_path / "m", LLAMA3), model / "config.json")
    steps = plan(len(TOKENS), 0, 16)
    whole = [block.logits for block in reference.blocks(TOKENS, steps)]
    rest = [block.logits for block in reference.blocks(TOKENS, steps, 3)]
    assert len(rest) == 2
    assert all(np.array_equal(a, b) for a, b in zip(rest, whole[3:], strict=True))
    assert not list(reference.blocks(TOKENS, steps, len(steps)))
