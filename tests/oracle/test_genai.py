"""Logits of real packs against onnxruntime-genai 0.18.0's, perplexity against transformers'.

SmolLM2-135M by onnxruntime-genai 0.18.0's builder in fp32, fp16 and int4, plain and, patched by
packimport, llama3; transformers 5.24.0, torch 2.13.0.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import smollm2
import tokenizers
from genai_logits import genai_logits
from numpy.typing import NDArray
from serving import command, succeed

from forward.genai_config import read_decoder
from forward.reference import open_reference
from forward.runner import open_runner, run_logits
from forward.steps import Block, plan
from packimport.pack.container import open_container

MISSING = [name for name in smollm2.NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; see smollm2.py"),
]
PREFILL, DECODE = 200, 20
LONG = 4096


@pytest.fixture(scope="session")
def int4(made: Path) -> Iterator[Path]:
    yield smollm2.build(made, "int4", "int4")
    shutil.rmtree(made / "int4")


@pytest.fixture(scope="session")
def fp16(made: Path) -> Iterator[Path]:
    yield smollm2.build(made, "fp16", "fp16")
    shutil.rmtree(made / "fp16")


@pytest.fixture(scope="session")
def int4_llama3(made: Path, int4: Path) -> Iterator[Path]:
    yield mended(made, int4)
    shutil.rmtree(made / "int4-llama3")


@pytest.fixture(scope="session")
def fp16_llama3(made: Path, fp16: Path) -> Iterator[Path]:
    yield mended(made, fp16)
    shutil.rmtree(made / "fp16-llama3")


def mended(made: Path, pack: Path) -> Path:
    """The pack with the table of the declared llama3."""
    out = made / f"{pack.name}-llama3"
    succeed("packimport", "patch", pack, "-o", out, "--config", made / "declared")
    return out


@pytest.mark.parametrize("name", ["made", "patched", "int4", "int4_llama3"])
def test_prefill_and_decode(request: pytest.FixtureRequest, made: Path, name: str) -> None:
    """Measured: equal to the last bit, all four."""
    pack = made / "pack" if name == "made" else request.getfixturevalue(name)
    ids = np.load(made / "tokens.npy")[: PREFILL + DECODE]
    expected = genai_logits(pack, ids, PREFILL)
    for chunk in (PREFILL, 64):
        run = run_logits(pack, ids, decode=DECODE, chunk=chunk)
        assert np.abs(run.logits[:] - expected).max() <= 1e-4


@pytest.mark.parametrize("name", ["fp16", "fp16_llama3"])
def test_prefill_in_fp16(request: pytest.FixtureRequest, made: Path, name: str) -> None:
    """Measured: equal. onnxruntime-genai itself can't decode this pack on the CPU; ours does."""
    pack = request.getfixturevalue(name)
    ids = np.load(made / "tokens.npy")[:PREFILL]
    whole = run_logits(pack, ids)
    assert np.abs(whole.logits[:] - genai_logits(pack, ids, PREFILL)).max() <= 1e-4
    np.save(made / "few.npy", ids[:96])
    code, out = command("forward", pack, "--self-check", "--tokens", made / "few.npy")
    assert code == 0, out


@pytest.mark.parametrize("name", ["made", "int4"])
def test_self_check(request: pytest.FixtureRequest, made: Path, name: str) -> None:
    pack = made / "pack" if name == "made" else request.getfixturevalue(name)
    assert "passed" in succeed("forward", pack, "--self-check")


def test_chat_messages_become_transformers_tokens(made: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from forward.prompt import Given
    from forward.tokenizer import TOKENIZER, Tokenizer

    messages = [
        {"role": "user", "content": "What is <b>two</b> plus three?\n\tSay it in French."},
        {"role": "assistant", "content": "Cinq."},
        {"role": "user", "content": "Et é?"},
    ]
    (tmp_path / "m.json").write_text(json.dumps(messages), encoding="utf-8")
    tokenizer = Tokenizer(made / "pack" / TOKENIZER)
    ids = Given(messages=tmp_path / "m.json").read(tokenizer)
    oracle = AutoTokenizer.from_pretrained(made / "hf").apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert ids.tolist() == list(oracle)


def negative_log_likelihood(blocks: Iterator[Block], ids: NDArray[Any]) -> float:
    """The mean over the tokens that follow another one, in float64."""
    total = 0.0
    for block in blocks:
        targets = ids[block.step.start + 1 : block.step.stop + 1]
        rows = block.logits[: len(targets)].astype(np.float64)
        top = rows.max(axis=1)
        sums = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
        total += float((sums - rows[np.arange(len(targets)), targets]).sum())
    return total / (len(ids) - 1)


def test_perplexity_over_4096_tokens(made: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "pack" / "tokenizer.json"))
    text = "".join(
        topics[name] for name in ("execmodel", "import", "specialnames", "formatstrings")
    )
    ids = np.array(tokenizer.encode(text).ids[:LONG])
    assert len(ids) == LONG
    container = open_container(made / "pack")
    runner = open_runner(container, read_decoder(container))
    ours = negative_log_likelihood(runner.blocks(ids, runner.steps(LONG)), ids)
    reference = open_reference(made / "hf", made / "hf" / "config.json")
    theirs = negative_log_likelihood(reference.blocks(ids, plan(LONG, 0, 512)), ids)
    print(f"perplexity {np.exp(ours):.6f}, transformers {np.exp(theirs):.6f}")
    assert abs(np.exp(ours - theirs) - 1) <= 1e-4
