"""Graphs that choose a table by the length of a call: what is fed together is what counts.

Expected logits come from onnxruntime called directly, with one text and all of it at once.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_runner import bare

from forward import cli
from forward.genai_config import read_decoder
from forward.generate import generate
from forward.runner import Runner, open_runner
from forward.self_check import self_check
from packimport.pack.container import open_container

PACKS = Path(__file__).parent.parent / "packs"
# Both go over to the longer table beyond 256 tokens: one by an If, one by shifted positions.
NAMES = ("oga-0.18.0-longrope-if", "oga-0.18.0-longrope-dml")
SHORT, LONG = (np.random.default_rng(7).integers(3, 512, count) for count in (100, 300))


def opened(name: str) -> Runner:
    container = open_container(PACKS / name)
    return open_runner(container, read_decoder(container))


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_fed_at_once(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", LONG)
    run = [str(PACKS / name), "--tokens", str(tmp_path / "long.npy")]
    with pytest.raises(SystemExit) as caught:
        cli.main([*run, "--dump-logits", str(tmp_path / "dump")])
    assert caught.value.code == 0
    logits = np.load(tmp_path / "dump/logits.npy")
    # A float16 graph differs by the order of its sums; the other table by 5e-3.
    assert np.abs(logits - bare(PACKS / name, LONG)).max() <= 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_text_begins_as_at_once(name: str) -> None:
    decoder = read_decoder(open_container(PACKS / name))
    (first,) = generate(opened(name), decoder, LONG, 1)
    assert first == int(bare(PACKS / name, LONG)[-1].argmax())


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_across_the_limit_is_refused_before_it_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"tokens": tokens.tolist()}) for tokens in (SHORT, SHORT[:9], SHORT, LONG)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    run = [str(PACKS / name), "--prompts", str(tmp_path / "prompts.jsonl"), "--batch", "2"]
    with pytest.raises(SystemExit) as caught:
        cli.main([*run, "--dump-logits", str(tmp_path / "dump")])
    assert caught.value.code == 3
    error = capsys.readouterr().err
    assert "model.onnx: the graph looks at the length of a call, so a prompt of 100" in error
    assert "Run the prompts one by one." in error
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_on_one_side_of_the_limit_runs(name: str) -> None:
    prompts = (SHORT, SHORT[:9], LONG[:256])
    for tokens, rows in zip(prompts, opened(name).batch(prompts), strict=True):
        assert np.abs(rows - bare(PACKS / name, tokens)).max() <= 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_self_check_across_the_limit_says_so(name: str) -> None:
    decoder = read_decoder(open_container(PACKS / name))
    checks = {check.name: check for check in self_check(opened(name), decoder, LONG)}
    for way in ("decode = prefill", "chunked = whole"):
        assert "more than 256 tokens get another table" in (checks[way].why_not or "")
    assert "looks at the length" in (checks["batch = single"].why_not or "")
    assert all(check.passed for check in checks.values())
