"""The commands compare, import and export, from their arguments to their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from counting import VOCAB, counting_pack, expected
from in_process import Serve

from forward.comparison import SCHEMA
from forward.dump import read_dump
from packimport.pack.documents import validate

COUNT = 40
TOKENS = np.random.default_rng(4).integers(0, VOCAB, COUNT)


@pytest.fixture
def dumps(serve: Serve, tmp_path: Path) -> dict[str, Path]:
    """reference, before (far from it) and after (near it), imported from .npy files."""
    np.save(tmp_path / "tokens.npy", TOKENS)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (COUNT, VOCAB)).astype(np.float32)
    logits[np.arange(COUNT - 1), TOKENS[1:]] += 3  # a model that knows the text
    noise = rng.normal(0, 1, logits.shape).astype(np.float32)
    made = {}
    for name, times in (("reference", 0.0), ("before", 8.0), ("after", 0.01), ("floor", 0.02)):
        np.save(tmp_path / f"{name}.npy", (logits + np.float32(times) * noise))
        made[name] = tmp_path / name
        args = ("import", tmp_path / f"{name}.npy", "--tokens", tmp_path / "tokens.npy")
        code, out, err = serve(*args, "-o", made[name])
        assert (code, err) == (0, "")
        assert out == f"{made[name]}: logits of {COUNT} positions x {VOCAB}, float32\n"
    return made


def parsed(text: str) -> Any:
    value = json.loads(text)
    validate(value, SCHEMA, "out")
    return value


def test_three(serve: Serve, dumps: dict[str, Path]) -> None:
    three = ("compare", dumps["reference"], dumps["before"], dumps["after"])
    code, out, _ = serve(*three, "--max-kl", "0.01", "--by-bucket", "--edge", 20)
    assert code == 0
    assert "passed: mean KL" in out
    assert "from 20" in out
    code, out, _ = serve(*three, "--max-kl", "0.01", "--format", "json")
    assert (code, parsed(out)["passed"]) == (0, True)
    swapped = ("compare", dumps["reference"], dumps["after"], dumps["before"])
    code, out, _ = serve(*swapped, "--max-kl", "0.01", "--format", "json")
    assert (code, parsed(out)["after"]["gates"][0]["passed"]) == (1, False)


def test_a_floor(serve: Serve, dumps: dict[str, Path]) -> None:
    floor = ("--floor", dumps["floor"], "--max-floor", "1", "--format", "json")
    assert serve("compare", dumps["reference"], dumps["after"], *floor)[0] == 0
    code, out, _ = serve("compare", dumps["reference"], dumps["before"], *floor)
    assert code == 1
    assert parsed(out)["gates"][0]["name"] == "max_floor"
    floor = ("--floor", dumps["floor"], "--max-floor-p999", "1", "--max-floor-top1", "1")
    code, out, _ = serve("compare", dumps["reference"], dumps["before"], *floor, "--by-bucket")
    assert code == 1
    assert "FAILED: 99.9 % KL against the floor" in out
    assert "other top-1 against the floor" in out


def test_nll(serve: Serve, dumps: dict[str, Path]) -> None:
    code, out, _ = serve("compare", "--nll", dumps["reference"], dumps["before"])
    assert code == 1
    assert "the patch: harms" in out
    code, out, _ = serve(
        "compare", "--nll", dumps["before"], dumps["reference"], "--format", "json"
    )
    assert (code, parsed(out)["verdict"]) == (0, "helps")
    code, out, _ = serve("compare", "--nll", dumps["after"], dumps["after"])
    assert code == 0
    assert "the patch: cannot be told" in out


def test_worst_with_a_tokenizer(serve: Serve, dumps: dict[str, Path], tmp_path: Path) -> None:
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pair = ("compare", dumps["reference"], dumps["before"], "--worst", 2, "--format", "json")
    value = parsed(serve(*pair, "--tokenizer", tmp_path / "tokenizer.json")[1])
    first = value["worst"][0]
    assert first["position"] == value["overall"]["kl_max_position"]
    assert first["context"].split() == [f"w{i}" for i in first["tokens"]]
    assert first["run_text"] == f"w{first['run_top']}"
    assert parsed(serve(*pair)[1])["worst"][1]["context"] is None


def test_forms_of_a_run(serve: Serve, tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "pack")
    np.save(tmp_path / "tokens.npy", TOKENS)
    run = (pack, "--tokens", tmp_path / "tokens.npy", "--dump-logits")
    assert serve(*run, tmp_path / "all")[0] == 0
    form = ("--dtype", "float16", "--positions", "3-5,30", "--top-k", 3)
    code, out, _ = serve(*run, tmp_path / "some", *form)
    assert (code, out) == (0, f"{tmp_path / 'some'}: logits of 4 positions x 3, float16\n")
    wanted = -np.sort(-expected(TOKENS)[[3, 4, 5, 30]], axis=1)[:, :3]
    assert np.array_equal(np.load(tmp_path / "some" / "logits.npy"), wanted)
    pair = ("compare", tmp_path / "all", tmp_path / "some")
    code, out, _ = serve(*pair, "--format", "json")
    assert (code, parsed(out)["kl"]) == (0, "lower bound")
    code, out, err = serve(*pair, "--max-kl", "1", "--format", "json")
    assert code == 3
    assert "the least that KL can be" in err
    assert "error" in parsed(out)


def test_bases_there_and_back(serve: Serve, dumps: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base.kld"
    code, out, _ = serve("export", dumps["reference"], dumps["after"], "-o", base)
    assert (code, out) == (0, f"{base}: 2 chunks of {COUNT} tokens\n")
    code, out, _ = serve("import", base, "-o", tmp_path / "chunks")
    assert (code, out) == (0, f"{tmp_path / 'chunks'}: 2 dumps of 19 rows, chunk-0000 and on\n")
    assert read_dump(tmp_path / "chunks" / "chunk-0001").where().tolist() == list(range(20, 39))
    pair = (dumps["reference"], tmp_path / "chunks" / "chunk-0000")
    assert serve("compare", *pair, "--max-kl", "1e-6")[0] == 0


def test_a_base_of_one_chunk(serve: Serve, dumps: dict[str, Path], tmp_path: Path) -> None:
    base, chunks = tmp_path / "base.kld", tmp_path / "chunks"
    assert (
        serve("export", dumps["reference"], "-o", base)[1] == f"{base}: 1 chunk of {COUNT} tokens\n"
    )
    assert serve("import", base, "-o", chunks)[1] == f"{chunks}: 1 dump of 19 rows, chunk-0000\n"


def test_what_import_refuses(serve: Serve, dumps: dict[str, Path], tmp_path: Path) -> None:
    file, out = tmp_path / "reference.npy", tmp_path / "out"
    assert serve("import", file, "-o", out)[0] == 2
    assert serve("import", tmp_path / "none.npy", "-o", out)[0] == 3
    serve("export", dumps["reference"], "-o", tmp_path / "base.kld")
    code, _, err = serve("import", tmp_path / "base.kld", "-o", out, "--dtype", "float16")
    assert code == 2
    assert "its own tokens" in err
    assert not out.exists()


def some(serve: Serve, tmp_path: Path, name: str, positions: str) -> Path:
    """Some rows of a dump."""
    out = tmp_path / f"{name}-{positions}"
    given = ("--tokens", tmp_path / "tokens.npy", "--positions", positions, "-o", out)
    assert serve("import", tmp_path / f"{name}.npy", *given)[0] == 0
    return out


def test_positions_that_are_not_compared_are_said(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path
) -> None:
    pair = ("compare", dumps["reference"], some(serve, tmp_path, "after", "0-3,30"))
    code, out, _ = serve(*pair, "--max-kl", "0.01")
    assert code == 0
    assert f"not compared {COUNT - 5} of the reference's {COUNT} positions\n" in out
    assert parsed(serve(*pair, "--format", "json")[1])["left_out"] == COUNT - 5
    # Of three dumps, too; and nothing is said where nothing is missing.
    before = some(serve, tmp_path, "before", "0-3,30")
    assert "not compared 35 of" in serve("compare", dumps["reference"], before, pair[2])[1]
    whole = ("compare", dumps["reference"], dumps["after"])
    assert "not compared" not in serve(*whole)[1]
    assert parsed(serve(*whole, "--format", "json")[1])["left_out"] == 0
    # More positions than the reference has are none of its own.
    assert "not compared" not in serve("compare", pair[2], dumps["reference"])[1]


def test_as_many_other_positions_are_not_the_same(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path
) -> None:
    """0-9 and 1,3,5 …: as many, and up to the same one."""
    one = some(serve, tmp_path, "before", "0-8,19")
    other = some(serve, tmp_path, "after", "1,3,5,7,9,11,13,15,17,19")
    words = "the dump has other positions than", "found 10 positions up to 19; allowed: the same 10"
    code, out, err = serve("compare", dumps["reference"], one, other)
    assert (code, out) == (3, "")
    assert all(word in err for word in words)
    code, out, err = serve("compare", dumps["reference"], one, "--floor", other)
    assert (code, out) == (3, "")
    assert all(word in err for word in words)
    assert serve("compare", dumps["reference"], one, "--floor", one)[0] == 0


def ruled_out(serve: Serve, tmp_path: Path, value: float) -> Path:
    """The dump `after` with another logit of one token."""
    logits = np.load(tmp_path / "after.npy")
    logits[7, int(logits[7].argmin())] = value
    logits[8, int(TOKENS[9])] = value
    np.save(tmp_path / "ruled.npy", logits)
    out = tmp_path / "ruled"
    given = ("--tokens", tmp_path / "tokens.npy", "-o", out)
    assert serve("import", tmp_path / "ruled.npy", *given)[0] == 0
    return out


@pytest.mark.parametrize("limit", ["0", "3"])
def test_an_infinite_floor_holds_nothing(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path, limit: str
) -> None:
    ruled = ruled_out(serve, tmp_path, -np.inf)
    floor = ("--floor", ruled, "--max-floor", limit, "--format", "json")
    code, out, err = serve("compare", dumps["reference"], ruled, *floor)
    assert code == 3
    assert "the floor's KL is infinite" in err
    assert parsed(out)["error"]["place"] == str(ruled)


def test_a_perplexity_beyond_float64_is_json(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path
) -> None:
    ruled = ruled_out(serve, tmp_path, -1e30)
    code, out, err = serve("compare", dumps["reference"], ruled, "--format", "json")
    assert (code, err) == (0, "")
    whole = parsed(out)["overall"]
    assert (whole["ppl_run"], whole["errors"]["ppl_run"]) == ("Infinity", None)
    assert whole["errors"]["ppl_reference"] > 0


def test_equal_dumps_differ_by_no_negative_zero(serve: Serve, dumps: dict[str, Path]) -> None:
    pair = ("compare", dumps["after"], dumps["after"])
    assert "largest difference of a logit  0 at position 0, token 0\n" in serve(*pair)[1]
    assert "-0.0" not in serve(*pair, "--format", "json")[1]


def test_three_say_whose_kl_is_a_bound(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path
) -> None:
    given = ("--tokens", tmp_path / "tokens.npy", "--top-k", 5, "-o", tmp_path / "top")
    assert serve("import", tmp_path / "before.npy", *given)[0] == 0
    one, top, other = dumps["reference"], tmp_path / "top", dumps["after"]
    assert (
        "before keeps the largest logits alone: its KL is a" in serve("compare", one, top, other)[1]
    )
    assert "after keeps the largest logits alone: its KL" in serve("compare", one, other, top)[1]
    for three in ((one, top, top), (top, one, other)):
        assert "alone: each KL is the least" in serve("compare", *three)[1]
    assert "alone" not in serve("compare", one, dumps["before"], other)[1]


def test_a_floor_of_the_largest_logits_says_so(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path
) -> None:
    given = ("--tokens", tmp_path / "tokens.npy", "--top-k", 5, "-o", tmp_path / "top")
    assert serve("import", tmp_path / "floor.npy", *given)[0] == 0
    pair = (dumps["reference"], dumps["after"])
    for runs in (pair, (*pair, dumps["after"])):
        out = serve("compare", *runs, "--floor", tmp_path / "top")[1]
        assert "each KL is the least it can be" in out.split("\nfloor ")[1]
        assert "the least" not in serve("compare", *runs, "--floor", dumps["floor"])[1]


@pytest.mark.parametrize("limit", [("--max-kl", 1), ("--min-top1", 0), ("--max-kl-p999", 9)])
def test_no_limit_over_position_0_alone(
    serve: Serve, dumps: dict[str, Path], tmp_path: Path, limit: tuple[str, float]
) -> None:
    pair = ("compare", dumps["reference"], some(serve, tmp_path, "before", "0"))
    code, out, err = serve(*pair, *limit)
    assert (code, out) == (3, "")
    assert "position 0 alone is compared" in err
    assert f"found 1 of {COUNT} positions" in err
    assert serve(*pair)[0] == 0


@pytest.mark.parametrize("edge", [COUNT + 16, 4096])
def test_an_edge_without_positions_is_refused(
    serve: Serve, dumps: dict[str, Path], edge: int
) -> None:
    pair = ("compare", dumps["reference"], dumps["after"])
    code, out, err = serve(*pair, "--edge", 20, "--edge", edge)
    assert (code, out) == (2, "")
    assert f"--edge: no position near this edge was compared; found {edge}" in err
    assert "beyond 39" in err
    assert serve(*pair, "--edge", COUNT + 15)[0] == 0


@pytest.mark.parametrize("name", ["--min-top1", "--max-kl", "--max-kl-p999"])
def test_nan_is_no_limit(serve: Serve, dumps: dict[str, Path], name: str) -> None:
    code, out, err = serve("compare", dumps["reference"], dumps["before"], name, "nan")
    assert (code, out) == (2, "")
    assert name in err
    assert "found nan" in err
