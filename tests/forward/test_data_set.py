"""Dumps of many prompts, compared as one: the figures are those of all their rows.

Expected values are float64 softmaxes over the rows of all prompts, written out here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import VOCAB, counting_pack
from in_process import Serve
from numpy.typing import NDArray

from forward.comparison import SCHEMA
from forward.kld_base import read_base
from packimport.pack.documents import validate

LENGTHS = (200, 7, 130)
KLD = Path(__file__).parent.parent / "data" / "smollm2-q4.kld"


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


class Sides:
    """Two runs over three prompts: logits and tokens, and the folders of their dumps."""

    def __init__(self, folder: Path, serve: Serve) -> None:
        rng = np.random.default_rng(0)
        self.tokens = [rng.integers(0, VOCAB, n) for n in LENGTHS]
        self.logits: dict[str, list[NDArray[Any]]] = {"one": [], "other": []}
        self.folders = {name: folder / name for name in self.logits}
        for index, tokens in enumerate(self.tokens):
            np.save(folder / "tokens.npy", tokens)
            base = rng.normal(0, 2, (len(tokens), VOCAB)).astype(np.float32)
            # The error grows with the position, as a wrong table's does.
            growth = np.arange(len(tokens))[:, None] / 50
            noise = (rng.normal(0, 1, base.shape) * growth).astype(np.float32)
            for name, logits in (("one", base), ("other", base + noise)):
                self.logits[name].append(logits)
                np.save(folder / "logits.npy", logits)
                out = self.folders[name] / f"{index:05d}"
                out.parent.mkdir(exist_ok=True)
                given = ("--tokens", folder / "tokens.npy", "-o", out)
                assert serve("import", folder / "logits.npy", *given)[0] == 0

    @property
    def at(self) -> NDArray[np.int64]:
        return np.concatenate([np.arange(n) for n in LENGTHS])

    @property
    def kl(self) -> NDArray[np.float64]:
        p, q = (log_softmax(np.concatenate(side)) for side in self.logits.values())
        return np.asarray((np.exp(p) * (p - q)).sum(axis=1))

    def nll(self, name: str) -> NDArray[np.float64]:
        """Of the next tokens; the last of each prompt has none."""
        parts = [
            -log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]]
            for logits, tokens in zip(self.logits[name], self.tokens, strict=True)
        ]
        return np.concatenate(parts)


@pytest.fixture
def sides(serve: Serve, tmp_path: Path) -> Sides:
    return Sides(tmp_path, serve)


def parsed(text: str) -> Any:
    value = json.loads(text)
    validate(value, SCHEMA, "out")
    return value


def test_the_rows_of_all_prompts_count(serve: Serve, sides: Sides) -> None:
    one, other = sides.folders.values()
    code, out, _ = serve("compare", one, other, "--worst", 3, "--format", "json")
    value = parsed(out)
    assert (code, value["dumps"], value["positions"]) == (0, 3, sum(LENGTHS))
    assert value["overall"]["kl_mean"] == pytest.approx(sides.kl.mean(), rel=1e-6)
    assert value["overall"]["scored"] == sum(LENGTHS) - 3
    ratio = np.exp((sides.nll("other") - sides.nll("one")).mean())
    assert value["overall"]["ppl_ratio"] == pytest.approx(ratio, rel=1e-6)
    late = value["buckets"][1]
    assert (late["name"], late["count"]) == ("128-511", 74)
    assert late["kl_mean"] == pytest.approx(sides.kl[sides.at >= 128].mean(), rel=1e-6)
    assert late["kl_mean"] > 2 * value["buckets"][0]["kl_mean"]
    x, y = (np.concatenate(side).astype(np.float64).ravel() for side in sides.logits.values())
    assert value["correlation"] == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)


def test_the_worst_name_their_dump(serve: Serve, sides: Sides) -> None:
    one, other = sides.folders.values()
    found = parsed(serve("compare", one, other, "--worst", 150, "--format", "json")[1])["worst"]
    for place, row in zip(found, np.argsort(-sides.kl)[:150], strict=True):
        index = int(np.searchsorted(np.cumsum(LENGTHS), row, side="right"))
        assert place["dump"] == str(other / f"{index:05d}")
        assert place["position"] == sides.at[row]
        assert place["tokens"][-1] == sides.tokens[index][place["position"]]
    assert len({place["dump"] for place in found}) > 1
    text = serve("compare", one, other, "--worst", 1)[1]
    assert f"of {found[0]['dump']}  KL" in text
    value = parsed(serve("compare", one, other, "--format", "json")[1])
    assert (value["farthest"], value["worst"]) == (found[0]["dump"], [])
    line = next(line for line in text.splitlines() if line.startswith("largest KL"))
    assert line.endswith(f"at position {found[0]['position']} of {found[0]['dump']}")
    alone = parsed(serve("compare", one / "00000", other / "00000", "--format", "json")[1])
    assert alone["farthest"] is None
    assert "of 3 dumps" in text


def test_three_and_nll(serve: Serve, sides: Sides) -> None:
    one, other = sides.folders.values()
    code, out, _ = serve("compare", one, other, one, "--max-kl", "1e-9")
    assert code == 0
    assert "of 3 dumps" in out
    value = parsed(serve("compare", "--nll", one, other, "--format", "json")[1])
    assert value["overall"]["count"] == sum(LENGTHS) - 3
    assert value["overall"]["before"] == pytest.approx(sides.nll("one").mean(), rel=1e-6)
    assert value["overall"]["after"] == pytest.approx(sides.nll("other").mean(), rel=1e-6)


def test_a_set_of_another_size_is_refused(serve: Serve, sides: Sides) -> None:
    one, other = sides.folders.values()
    code, _, err = serve("compare", one, other / "00000")
    assert code == 3
    assert "different numbers of dumps; found 1; allowed: 3" in err.replace(str(one), "")


def test_prompts_with_decode(serve: Serve, tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "pack")
    prompts = [{"tokens": list(range(n))} for n in (7, 5, 8)]
    lines = "".join(json.dumps(line) + "\n" for line in prompts)
    (tmp_path / "prompts.jsonl").write_text(lines, encoding="utf-8")
    given = (pack, "--prompts", tmp_path / "prompts.jsonl", "--dump-logits")
    assert serve(*given, tmp_path / "whole")[0] == 0
    assert serve(*given, tmp_path / "decode", "--decode", 3)[0] == 0
    pair = ("compare", tmp_path / "whole", tmp_path / "decode", "--format", "json")
    value = parsed(serve(*pair, "--max-kl", "0")[1])
    assert [(p["name"], p["count"]) for p in value["phases"]] == [("prefill", 11), ("decode", 9)]
    assert value["passed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--decode", 5), "prompt 00001: --decode takes its tokens from the given ones; found 5"),
        (("--positions", "2-4"), "prompt 00001: --positions asks for more than there are; found 4"),
    ],
)
def test_a_prompt_that_is_too_short_is_named_before_any_runs(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
    message: str,
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"tokens": [1, 2, 3, 4, 5]}\n{"tokens": [1, 2]}\n', encoding="utf-8")
    pack = counting_pack(tmp_path / "pack")
    monkeypatch.setattr("forward.dump_pack.open_runner", None)  # a call of it would fail
    code, _, err = serve(pack, "--prompts", prompts, "--dump-logits", tmp_path / "d", *options)
    assert code in (2, 3)
    assert message in err


def test_the_prompt_with_an_unknown_token_is_named(serve: Serve, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"tokens": [1, 2]}\n{"tokens": [1, 99]}\n', encoding="utf-8")
    pack = counting_pack(tmp_path / "pack")
    code, _, err = serve(pack, "--prompts", prompts, "--dump-logits", tmp_path / "d")
    assert code == 3
    assert "prompt 00001: the token at position 1 is not in the vocabulary" in err


def test_a_base_of_llama_cpp_is_a_set(serve: Serve, tmp_path: Path) -> None:
    """The chunks of a real base against themselves: nothing differs, and each row counts."""
    assert serve("import", KLD, "-o", tmp_path / "base")[0] == 0
    value = parsed(serve("compare", tmp_path / "base", tmp_path / "base", "--format", "json")[1])
    base = read_base(KLD)
    chunks, n_ctx = base.tokens.shape
    assert value["dumps"] == chunks
    assert value["positions"] == chunks * (n_ctx - 1 - n_ctx // 2)
    assert value["overall"]["kl_max"] == 0.0


def test_log_p_and_logits_are_compared_as_softmaxes(serve: Serve, tmp_path: Path) -> None:
    """The same distributions, once as llama.cpp's log p and once moved by a constant."""
    assert serve("import", KLD, "-o", tmp_path / "base")[0] == 0
    base = read_base(KLD)
    for chunk, tokens in enumerate(base.tokens):
        np.save(tmp_path / "tokens.npy", tokens)
        np.save(tmp_path / "logits.npy", base.log_probs(chunk) + np.float32(20.0))
        out = tmp_path / "moved" / f"{chunk:05d}"
        out.parent.mkdir(exist_ok=True)
        at = base.tokens.shape[1] // 2
        given = ("--tokens", tmp_path / "tokens.npy", "--positions", at, "-o", out)
        assert serve("import", tmp_path / "logits.npy", *given)[0] == 0
    pair = ("compare", tmp_path / "base", tmp_path / "moved")
    value = parsed(serve(*pair, "--format", "json")[1])
    assert 0 <= value["overall"]["kl_max"] < 1e-9
    entries = ("nmse", "max_difference", "max_difference_token")
    assert [value["overall"][key] for key in entries] == [None] * 3
    assert value["correlation"] is None
    assert "one side holds log p, the other logits" in serve(*pair)[1]
