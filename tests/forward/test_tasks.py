"""forward-serve CONTAINER: generating against others, checking itself, many prompts, providers.

Expected ids and logits come from the formula of counting.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers
from builders import tiny_pack
from counting import EMBEDDING, VOCAB, counting_pack, expected
from in_process import Serve
from onnx import numpy_helper

from forward.dump import read_dump

LONG = [int(token) for token in np.random.default_rng(6).integers(0, VOCAB, 64)]


def made(folder: Path, **options: Any) -> Path:
    """A counting pack with room for 100 tokens, and a word for each of its tokens."""
    pack = counting_pack(folder, genai={"eos_token_id": None, "context_length": 100}, **options)
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(pack / "tokenizer.json"))
    return pack


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    (tmp_path / "long.json").write_text(json.dumps(LONG), encoding="utf-8")
    return made(tmp_path / "pack")


def greedy(prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(expected(ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_an_oracle_s_ids(serve: Serve, pack: Path, tmp_path: Path) -> None:
    ids = greedy(LONG, 20)
    args = (pack, "--tokens", tmp_path / "long.json", "--generate", 20, "--expect")
    (tmp_path / "same.json").write_text(json.dumps(ids), encoding="utf-8")
    code, out, _ = serve(*args, tmp_path / "same.json")
    assert (code, out.splitlines()[1]) == (0, f"same 20 tokens as {tmp_path / 'same.json'}")
    ids[13] = (ids[13] + 1) % VOCAB
    np.save(tmp_path / "other.npy", np.array(ids))
    code, out, _ = serve(*args, tmp_path / "other.npy")
    assert code == 1
    right = (ids[13] - 1) % VOCAB
    line = f"after 13 equal tokens: {right} 'w{right}', there {ids[13]} 'w{ids[13]}'"
    assert out.splitlines()[1].endswith(line)


def test_an_oracle_that_ends_before(serve: Serve, pack: Path, tmp_path: Path) -> None:
    """A shorter list holds what it has; a longer one than was asked for is a mistake."""
    ids = greedy(LONG, 8)
    (tmp_path / "ids.json").write_text(json.dumps(ids), encoding="utf-8")
    args = (pack, "--tokens", tmp_path / "long.json", "--expect", tmp_path / "ids.json")
    assert serve(*args, "--generate", 12)[0] == 0
    code, _, err = serve(*args, "--generate", 7)
    assert code == 2
    assert "found 8; allowed: 7" in err


@pytest.mark.parametrize("name", ["none.json", "none.npy"])
def test_no_ids_hold_nothing(serve: Serve, pack: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "none.json").write_text("[]", encoding="utf-8")
    np.save(tmp_path / "none.npy", np.zeros(0, np.int64))
    args = (pack, "--tokens", tmp_path / "long.json", "--generate", 3)
    code, out, err = serve(*args, "--expect", tmp_path / name)
    assert (code, out) == (2, "")
    assert f"{tmp_path / name}: --expect holds no id" in err


def test_two_packs_that_end_at_once_are_not_the_same(
    serve: Serve, pack: Path, tmp_path: Path
) -> None:
    other = made(tmp_path / "other")
    for folder in (pack, other):
        config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        config["model"]["eos_token_id"] = greedy(LONG, 1)[0]
        (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    args = (pack, "--tokens", tmp_path / "long.json", "--generate", 3, "--beside", other)
    code, out, _ = serve(*args)
    assert code == 1
    assert "nothing was generated" in out.splitlines()[-1]
    assert "same" not in out


def test_side_by_side(serve: Serve, pack: Path, tmp_path: Path) -> None:
    args = (pack, "--tokens", tmp_path / "long.json", "--generate", 12, "--beside")
    same = made(tmp_path / "same", dtype="float16")
    code, out, _ = serve(*args, same)
    text = " ".join(f"w{i}" for i in greedy(LONG, 12))
    assert (code, out) == (0, f"--- {pack}\n{text}\n--- {same}\n{text}\nsame 12 tokens as {same}\n")
    # A pack that ends its text at the first new token.
    first = greedy(LONG, 1)[0]
    config = (same / "genai_config.json").read_text(encoding="utf-8")
    stopped = json.loads(config)
    stopped["model"]["eos_token_id"] = first
    (same / "genai_config.json").write_text(json.dumps(stopped), encoding="utf-8")
    code, out, _ = serve(*args, same)
    assert code == 1
    assert f"after 0 equal tokens: {first} 'w{first}', there the end" in out


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called in the test: a fixture would meet another standard output."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def drawn(out: str) -> list[str]:
    """The lines that stay: what follows the last code that takes one away."""
    kept = out[out.rindex("\x1b[2K") + 4 :]
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d?]*[a-zA-Z]", "", kept).splitlines()]


def test_columns_on_a_terminal(
    serve: Serve, tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    same = made(tmp_path / "same", dtype="float16")
    args = (pack, "--tokens", tmp_path / "long.json", "--generate", 30, "--beside", same)
    code, out, err = serve(*args)
    assert (code, err) == (0, "")
    *lines, last = drawn(out)
    assert last == f"same 30 tokens as {same}"
    columns = [[line[:30].strip(), line[30:].strip()] for line in lines]
    left, right = ("".join(words) for words in zip(*columns, strict=True))
    text = "".join(f"w{i}" for i in greedy(LONG, 30))
    assert left.replace(" ", "") == f"{pack}{text}"
    assert right.replace(" ", "") == f"{same}{text}"


def test_a_text_stays_where_the_other_pack_fails(
    serve: Serve, tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    other = made(tmp_path / "other")
    config = json.loads((other / "genai_config.json").read_text(encoding="utf-8"))
    config["model"]["context_length"] = 64
    (other / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    args = (pack, "--tokens", tmp_path / "long.json", "--generate", 3, "--beside", other)
    code, out, err = serve(*args)
    assert code == 3
    assert "context_length" in err
    assert " ".join(f"w{i}" for i in greedy(LONG, 3)) in "\n".join(drawn(out))


def test_self_check(serve: Serve, tmp_path: Path) -> None:
    code, out, err = serve(tiny_pack(tmp_path / "p"), "--self-check")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [
        "decode = prefill",
        "chunked = whole",
        "batch = single",
        "cache shared = growing",
    ]
    assert lines[4] == "passed over 64 tokens"
    # A padded batch is not its prompts in a graph that adds up the mask.
    code, out, _ = serve(made(tmp_path / "counting"), "--self-check")
    assert code == 1
    assert out.splitlines()[-1] == "FAILED: batch = single"


def test_an_error_within_a_text_begins_a_line(serve: Serve, tmp_path: Path) -> None:
    pack = made(tmp_path / "p")
    model = onnx.load(pack / "model.onnx")
    (table,) = [tensor for tensor in model.graph.initializer if tensor.name == "embedding"]
    rows = EMBEDDING.copy()
    following = int(rows[3].argmax())
    rows[following] = np.nan
    table.CopyFrom(numpy_helper.from_array(rows, "embedding"))
    onnx.save(model, pack / "model.onnx")
    (tmp_path / "three.json").write_text("[3]", encoding="utf-8")
    code, out, err = serve(pack, "--generate", 4, "--tokens", tmp_path / "three.json")
    assert (code, out) == (3, f"w{following}\n")
    assert "after position 1 have no largest number" in err


@pytest.mark.parametrize("last", ["static", "open"])
def test_a_self_check_that_compares_nothing_has_not_passed(
    serve: Serve, tmp_path: Path, last: str
) -> None:
    code, out, err = serve(made(tmp_path / "p", past=False, last=last), "--self-check")
    assert (code, err) == (3, "")
    assert out.count("not run") == 4
    assert out.splitlines()[-1].startswith("nothing was compared")


@pytest.mark.parametrize("batch", [(), ("--batch", 2)])
def test_many_prompts(serve: Serve, tmp_path: Path, batch: tuple[object, ...]) -> None:
    pack = tiny_pack(tmp_path / "pack")
    lists = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
    text = "".join(json.dumps({"tokens": ids}) + "\n" for ids in lists)
    (tmp_path / "prompts.jsonl").write_text(text, encoding="utf-8")
    args = (pack, "--prompts", tmp_path / "prompts.jsonl", "--dump-logits", tmp_path / "all")
    code, out, _ = serve(*args, *batch)
    assert (code, out) == (0, f"{tmp_path / 'all'}: 3 dumps, 14 positions, float32\n")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["00000", "00001", "00002"]
    for index, ids in enumerate(lists):
        (tmp_path / "one.json").write_text(json.dumps(ids), encoding="utf-8")
        alone = tmp_path / f"alone{index}"
        assert serve(pack, "--tokens", tmp_path / "one.json", "--dump-logits", alone)[0] == 0
        single, part = read_dump(alone), read_dump(tmp_path / "all" / f"{index:05d}")
        assert part.tokens.tolist() == ids
        assert np.abs(part.logits[:] - single.logits[:]).max() <= 1e-5
    stated = [
        json.loads((tmp_path / "all" / f"{i:05d}" / "dump.json").read_bytes())["steps"]
        for i in range(3)
    ]
    # The last one is alone.
    assert [steps.get("batch") for steps in stated] == ([2, 2, 1] if batch else [None] * 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"}', "line 2.*one key"),
        ('{"prompt": "x", "tokens": [1]}', "line 2.*one key"),
        ("[1]", "line 2"),
        ('{"tokens": [1.5]}', "line 2.*/tokens/0"),
        ("{", "line 2"),
    ],
)
def test_a_line_that_is_no_prompt(
    serve: Serve, pack: Path, tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"tokens": [1]}\n' + line + "\n", encoding="utf-8")
    code, out, err = serve(pack, "--prompts", path, "--dump-logits", tmp_path / "all")
    assert (code, out) == (3, "")
    assert re.search(message, err), err
    assert not (tmp_path / "all").exists()


def test_chat_messages(serve: Serve, pack: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}w7 {{ m.content }} {% endfor %}w6"
    (pack / "chat_template.jinja").write_text(template, encoding="utf-8")
    messages = [{"role": "user", "content": "w1 w2"}, {"role": "user", "content": "w3"}]
    (tmp_path / "m.json").write_text(json.dumps(messages), encoding="utf-8")
    args = (pack, "--messages", tmp_path / "m.json", "--dump-logits", tmp_path / "d")
    assert serve(*args)[0] == 0
    assert read_dump(tmp_path / "d").tokens.tolist() == [7, 1, 2, 7, 3, 6]


def test_a_provider_that_is_not_there(serve: Serve, pack: Path) -> None:
    code, out, err = serve(pack, "--prompt", "w1", "--generate", 1, "--ep", "quantum")
    assert (code, out) == (2, "")
    assert "--ep: this onnxruntime has no such execution provider; found quantum" in err
    assert "cpu" in err.split("allowed: ")[1]


def test_a_provider_that_would_fall_back(
    serve: Serve, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is listed but does not start: onnxruntime would go on with the CPU alone."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])

    class Fallen:
        def __init__(self, *_args: object, **_others: object) -> None: ...

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Fallen)
    code, out, err = serve(pack, "--prompt", "w1", "--generate", 1, "--ep", "cuda")
    assert (code, out) == (3, "")
    assert "can't start CUDAExecutionProvider here" in err


@pytest.fixture
def with_library(tmp_path: Path) -> tuple[Path, str]:
    """A pack that names a library, which is a real one where there is a C compiler."""
    options = {"session_options": {"custom_ops_library": "ops.so"}}
    pack = made(tmp_path / "native", decoder=options)
    source = tmp_path / "ops.c"
    source.write_text("void *RegisterCustomOps(void *o, void *a) { return 0; }\n", encoding="utf-8")
    compiler = shutil.which("cc")
    if compiler is not None and sys.platform == "linux":
        words = [compiler, "-shared", "-fPIC", "-o", str(pack / "ops.so"), str(source)]
        subprocess.run(words, check=True)
    else:
        (pack / "ops.so").write_bytes(b"no library")
    return pack, hashlib.sha256((pack / "ops.so").read_bytes()).hexdigest()


def test_native_code_needs_its_hash(serve: Serve, with_library: tuple[Path, str]) -> None:
    pack, digest = with_library
    args = (pack, "--prompt", "w1", "--generate", 1)
    code, out, err = serve(*args)
    assert (code, out) == (3, "")
    assert "never loads unasked" in err
    code, _, err = serve(*args, "--allow-custom-ops", "0" * 64)
    assert code == 3
    assert f"found sha256 {digest}" in err
    code, out, err = serve(*args, "--allow-custom-ops", digest)
    if (pack / "ops.so").read_bytes() != b"no library":
        assert (code, out.split()) == (0, [f"w{greedy([1], 1)[0]}"])
    else:
        assert "can't load the graph" in err


def test_a_hash_for_nothing(serve: Serve, pack: Path) -> None:
    code, _, err = serve(pack, "--prompt", "w1", "--generate", 1, "--allow-custom-ops", "0" * 64)
    assert code == 3
    assert "names no library" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--self-check", "--generate", "1"], "one thing at a time"),
        (["--self-check", "--beside", "x"], "--beside belongs to --generate"),
        (["--dump-logits", "d", "--prompt", "x", "--expect", "e"], "--expect belongs to"),
        (["--dump-logits", "d", "--prompt", "x", "--batch", "2"], "--batch belongs to --prompts"),
        (["--generate", "2", "--prompts", "x"], "--prompts belongs to --dump-logits"),
        (["--dump-logits", "d", "--prompts", "x", "--prompt", "y"], "--prompts names all"),
        (["--dump-logits", "d", "--prompts", "x", "--batch", "2", "--chunk", "3"], "whole"),
    ],
)
def test_wrong_usage(serve: Serve, pack: Path, args: list[str], message: str) -> None:
    code, out, err = serve(pack, *args)
    assert (code, out) == (2, "")
    assert message in err
