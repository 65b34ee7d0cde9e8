"""The command forward-serve, from its arguments to its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from counting import VOCAB, counting_pack, expected
from in_process import Serve

from forward import cli
from forward.cli_run import run_command
from forward.comparison import SCHEMA
from forward.dump import read_dump
from forward.steps import Block, plan
from forward.terminal import progress, safe
from packimport.pack.documents import validate

ROOT = Path(__file__).parent.parent.parent
TOKENS = [3, 1, 4, 1, 5]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A counting pack whose tokenizer has one word for each token."""
    pack = counting_pack(tmp_path / "pack", genai={"eos_token_id": None})
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(pack / "tokenizer.json"))
    (tmp_path / "tokens.json").write_text(json.dumps(TOKENS), "utf-8")
    return pack


def test_dump_and_compare(serve: Serve, pack: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    args = (pack, "--tokens", tokens, "--threads", 1)
    code, out, err = serve(*args, "--dump-logits", tmp_path / "a", "--decode", 2)
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'a'}: logits of 5 positions x {VOCAB}, float32\n"
    dump = read_dump(tmp_path / "a")
    assert np.array_equal(dump.logits[:], expected(TOKENS))
    assert (dump.tokens.tolist(), dump.prefill) == (TOKENS, 3)
    stated: Any = json.loads((tmp_path / "a" / "dump.json").read_text(encoding="utf-8"))
    assert [f["name"] for f in stated["source"]["files"]] == ["genai_config.json", "model.onnx"]
    assert stated["engine"]["threads"] == 1
    assert serve(*args, "--dump-logits", tmp_path / "b", "--chunk", 2)[0] == 0

    code, out, err = serve("compare", tmp_path / "b", tmp_path / "a", "--max-kl", 0)
    assert (code, err) == (0, "")
    assert "passed: mean KL 0, wanted <= 0" in out
    code, out, err = serve("compare", tmp_path / "a", tmp_path / "b", "--format", "json")
    validate(json.loads(out), SCHEMA, "out")
    assert json.loads(out)["overall"]["kl_mean"] == 0


def test_gates_exit_1(serve: Serve, pack: Path, tmp_path: Path) -> None:
    other = counting_pack(tmp_path / "other", position_ids=True, decoder={"head_size": VOCAB})
    for name, source in (("a", pack), ("b", other)):
        args = ("--tokens", tmp_path / "tokens.json", "--dump-logits", tmp_path / name)
        assert serve(source, *args)[0] == 0
    # Adding one number to a whole row leaves its softmax as it is.
    pair = (tmp_path / "a", tmp_path / "b")
    assert serve("compare", *pair, "--max-kl", "1e-9", "--min-top1", "1")[0] == 0
    changed = np.load(tmp_path / "b" / "logits.npy")
    changed[4] = -changed[4]
    np.save(tmp_path / "b" / "logits.npy", changed)
    code, out, err = serve("compare", *pair, "--max-kl", "1e-9")
    assert (code, err) == (1, "")
    assert "FAILED: mean KL" in out
    assert serve("compare", *pair)[0] == 0
    code, out, _ = serve("compare", *pair, "--min-top1", "0.9", "--format", "json")
    assert code == 1
    assert json.loads(out)["passed"] is False
    validate(json.loads(out), SCHEMA, "out")


def test_a_comparison_that_is_refused(serve: Serve, tmp_path: Path) -> None:
    code, out, err = serve("compare", tmp_path / "no", tmp_path / "nor", "--format", "json")
    assert code == 3
    assert err.startswith(f"forward-serve: error: {tmp_path / 'no'}: no such dump")
    validate(json.loads(out), SCHEMA, "out")
    assert serve("compare", tmp_path / "no", tmp_path / "nor")[:2] == (3, "")


def test_prompts(serve: Serve, pack: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"w3 w1\r\nw4")
    assert serve(pack, "--prompt", "w3 w1 w4", "--dump-logits", tmp_path / "a")[0] == 0
    assert (
        serve(pack, "--prompt-file", tmp_path / "prompt.txt", "--dump-logits", tmp_path / "b")[0]
        == 0
    )
    for name in "ab":
        assert read_dump(tmp_path / name).tokens.tolist() == [3, 1, 4]


def test_generate(serve: Serve, pack: Path) -> None:
    ids, count = list(TOKENS), 6
    for _ in range(count):
        ids.append(int(expected(ids)[-1].argmax()))
    text = " ".join(f"w{i}" for i in ids[len(TOKENS) :])
    prompt = " ".join(f"w{i}" for i in TOKENS)
    assert serve(pack, "--prompt", prompt, "--generate", count) == (0, f"{text}\n", "")


def test_prompt_and_new_tokens_share_the_context(serve: Serve, pack: Path) -> None:
    assert len(serve(pack, "--prompt", "w1 w2", "--generate", 62)[1].split()) == 62
    code, out, err = serve(pack, "--prompt", "w1 w2", "--generate", 63)
    assert (code, out) == (3, "")
    assert "found 65; allowed: 64 or fewer" in err


def test_generate_without_a_tokenizer_prints_ids(serve: Serve, pack: Path, tmp_path: Path) -> None:
    (pack / "tokenizer.json").unlink()
    token = int(expected(TOKENS)[-1].argmax())
    code, out, _ = serve(pack, "--tokens", tmp_path / "tokens.json", "--generate", 1)
    assert (code, out.split()) == (0, [str(token)])


def test_help_names_each_option_of_a_run_under_one_heading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    options, commands = (
        capsys.readouterr().out.split("\nWhat to do with", 1)[1].split("\nCommands:")
    )
    shown = [line.split()[0] for line in options.splitlines() if line.startswith("  -")]
    known = {parameter.opts[-1] for parameter in run_command.params if parameter.opts[0][0] == "-"}
    assert sorted(shown) == sorted({*known, "-h,"})
    # What belongs to one of the four stands under its name.
    probe = options.split("\nOf --probe:\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in probe.splitlines() if line.startswith("  -")] == [
        "--config",
        "--model",
        "--format",
    ]
    # A line of help is not cut off.
    assert "..." not in commands


def test_text_for_a_terminal() -> None:
    assert safe("a\tb\n\x1b[31m\r\x9b é 👩‍🔬") == "a\tb\n\\x1b[31m\\x0d\\x9b é 👩‍🔬"


def test_a_bar_is_drawn_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = plan(6, 2, 2)
    blocks = [Block(step, np.zeros((step.stop - step.start, 3))) for step in steps]
    with progress() as watch:
        assert list(watch(steps, blocks)) == blocks
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress() as watch:
        assert list(watch(steps, blocks)) == blocks
    out, err = capsys.readouterr()
    assert out == ""
    assert "tokens" in err


def test_a_bar_is_gone_before_an_error_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    steps = plan(6, 2, 2)
    held = []

    def fails_to_write() -> None:
        with progress() as watch:
            # As an error's traceback does, something goes on holding the blocks.
            held.append(watch(steps, (Block(step, np.zeros((1, 3))) for step in steps)))
            next(held[0])
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fails_to_write()
    err = capsys.readouterr().err
    show_cursor, erase_line = "\x1b[?25h", "\x1b[2K"
    assert "tokens" in err
    assert show_cursor in err
    assert err.endswith(erase_line)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing argument 'CONTAINER'"),
        (
            ["PACK"],
            "allowed: --dump-logits DIR or --generate N or --self-check or --probe. Or compare two",
        ),
        (["PACK", "--dump-logits", "d", "--generate", "3"], "one thing at a time"),
        (["PACK", "--dump-logits", "d"], "--tokens FILE, --prompt TEXT or --prompt-file F"),
        (["PACK", "--dump-logits", "d", "--prompt", "x", "--tokens", "y"], "say what to run, once"),
        (["PACK", "--generate", "3", "--prompt", "x", "--decode", "1"], "--decode belongs to"),
        (["PACK", "--self-check", "--chunk", "5"], "--chunk belongs to --dump-logits or"),
        (["PACK", "--generate", "0", "--prompt", "x"], "--generate"),
        (["compare", "a", "b", "--min-top1", "99.9"], "--min-top1"),
        (["compare", "a", "b", "--max-kl", "nan"], "--max-kl"),
        (["compare", "a", "b", "--max-kl", "inf"], "--max-kl"),
        (["compare", "a"], "found 1 folders; allowed: REFERENCE RUN, or REFERENCE BEFORE AFTER"),
        (["compare", "a", "b", "c", "d"], "found 4 folders"),
        (["compare", "--nll", "a", "b", "c"], "allowed: BEFORE AFTER"),
        (["compare", "--nll", "a", "b", "--max-kl", "1"], "--nll has no reference"),
        (["compare", "a", "b", "--max-kl-p999", "inf"], "--max-kl-p999"),
        (["compare", "a", "b", "--max-floor", "2"], "Pass --floor DUMP"),
        (["compare", "a", "b", "--max-floor-top1", "2"], "--max-floor-top1 needs a noise floor"),
        (["compare", "a", "b", "--by-bucket"], "--by-bucket needs a limit"),
        (["compare", "a", "b", "--tokenizer", "t"], "--tokenizer belongs to --worst N"),
        (["PACK", "--generate", "3", "--prompt", "x", "--top-k", "2"], "belongs to --dump-logits"),
        (["PACK", "--dump-logits", "d", "--prompt", "x", "--positions", "3-1"], "ascending"),
        (["PACK", "--dump-logits", "d", "--prompt", "x", "--dtype", "bfloat16"], "--dtype"),
        (["reference", "m", "--prompt", "x"], "--dump-logits"),
    ],
)
def test_wrong_usage(serve: Serve, pack: Path, args: list[str], message: str) -> None:
    code, out, err = serve(*[pack if arg == "PACK" else arg for arg in args])
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("forward-serve: error: ")
    assert err.count("\n") == 1


def test_refusals_write_nothing(serve: Serve, pack: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "dump"
    for args in (
        (tmp_path / "nowhere", "--prompt", "w1"),
        (pack, "--prompt", ""),
        (pack, "--tokens", tmp_path / "missing.npy"),
        (pack, "--prompt", "w1", "--dump-logits", pack),
        (pack, "--prompt", "w1 " * 65),
    ):
        code, printed, err = serve("--dump-logits", out, *args)
        assert (code, printed) == (3, "")
        assert err.startswith("forward-serve: error: ")
    assert sorted(tmp_path.iterdir()) == before


def test_a_taken_place_is_refused_before_the_model_loads(
    serve: Serve, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    args = (pack, "--prompt", "w1", "--dump-logits")
    assert "is taken" in serve(*args, pack)[2]
    assert "pip install onnxruntime" in serve(*args, tmp_path / "d")[2]


def test_it_runs_as_a_module(pack: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forward", str(pack), "--prompt", "w1", "--generate", "2"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, check=True)
    assert done.stdout.split()[0].startswith(b"w")
    assert done.stderr == b""
