"""`packimport table`: the files read back by numpy, safetensors and json alone."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from builders import tiny_pack
from test_cli import packimport

from packimport.semantics.models import model_config

PACKS = Path(__file__).parent / "packs"
REFERENCE = Path(__file__).parent / "data" / "rope_reference.json"


def reference(model: str, table: str = "all") -> np.ndarray:
    """transformers 5.24.0's inv_freq of a known model, float32."""
    rows = json.loads(REFERENCE.read_text(encoding="utf-8"))["results"]
    row = next(row for row in rows if row["model"] == model)
    values = [float.fromhex(x) for x in row["tables"][table]["inv_freq_hex"]]
    return np.array(values, np.float32)


def angles(inv_freq: np.ndarray, rows: int) -> np.ndarray:
    return np.outer(np.arange(rows, dtype=np.float32), inv_freq).astype(np.float64)


def test_npz_of_a_known_model(tmp_path: Path) -> None:
    model = "meta-llama/Meta-Llama-3.1-8B"
    done = packimport("table", "--model", model, "--rows", 300, "-o", tmp_path / "t.npz")
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(tmp_path / "t.npz") as file:
        inv_freq = reference(model)
        assert np.array_equal(file["inv_freq"], inv_freq)
        assert np.array_equal(file["cos"], np.cos(angles(inv_freq, 300)).astype(np.float32))
        assert np.array_equal(file["sin"], np.sin(angles(inv_freq, 300)).astype(np.float32))
        (schedule,) = json.loads(str(file["schedules"]))
    assert schedule["layers"] == list(range(32))
    assert schedule["rope"]["factor"] == 8.0


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """A .safetensors file by its format alone: the library's numpy side does not read bfloat16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    dtypes = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "BF16": ml_dtypes.bfloat16}
    return {
        name: np.frombuffer(
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
            dtypes[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_safetensors_carry_every_dtype(tmp_path: Path, dtype: str) -> None:
    from safetensors import safe_open

    out = tmp_path / "t.safetensors"
    pack = PACKS / "oga-0.18.0-qwen3"
    done = packimport("table", pack, "--rows", 64, "--dtype", dtype, "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    tensors = tensors_of(out)
    exact = np.cos(angles(tensors["inv_freq"], 64))
    assert tensors["cos"].dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    half_ulp = float(ml_dtypes.finfo(tensors["cos"].dtype).eps) / 2
    assert np.abs(tensors["cos"].astype(np.float64) - exact).max() <= half_ulp
    with safe_open(out, framework="numpy") as file:
        (schedule,) = json.loads(file.metadata()["schedules"])
        assert np.array_equal(file.get_tensor("inv_freq"), tensors["inv_freq"])
    assert schedule["dtype"] == dtype
    assert schedule["rope"]["theta"] == 1e6


def test_json_reads_back_exactly(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    packimport("table", PACKS / "oga-0.18.0-qwen3" / "config.json", "--rows", 5, "-o", out)
    value = json.loads(out.read_text(encoding="utf-8"))
    inv_freq = np.array(value["inv_freq"], np.float32)
    expected = 1e6 ** -(np.arange(8) / 8)
    assert np.allclose(inv_freq, expected, rtol=1e-6)
    assert np.array_equal(
        np.array(value["sin"], np.float32), np.sin(angles(inv_freq, 5)).astype(np.float32)
    )


def test_several_schedules_are_numbered(tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    done = packimport("table", PACKS / "oga-0.11.2-gemma3", "--rows", 16, "-o", out)
    assert done.returncode == 0
    with np.load(out) as file:
        local, globally = json.loads(str(file["schedules"]))
        assert (local["layers"], globally["layers"]) == ([0, 1, 2, 3, 4], [5])
        assert globally["rope"]["type"] == "linear"
        assert np.allclose(file["inv_freq.0"], 1e4 ** -(np.arange(8) / 8), rtol=1e-6)
        assert np.allclose(file["inv_freq.1"], 1e6 ** -(np.arange(8) / 8) / 8, rtol=1e-6)
        assert set(file) >= {"cos.0", "sin.0", "cos.1", "sin.1"}


@pytest.mark.parametrize("layout", ["duplicated", "repeated", "row", "complex"])
def test_layouts(tmp_path: Path, layout: str) -> None:
    out = tmp_path / "t.npz"
    packimport("table", PACKS / "oga-0.18.0-qwen3", "--rows", 9, "--layout", layout, "-o", out)
    with np.load(out) as file:
        cos, sin = (f(angles(file["inv_freq"], 9)).astype(np.float32) for f in (np.cos, np.sin))
        made = {name: file[name] for name in file if name not in ("schedules", "inv_freq")}
    expected = {
        "duplicated": {"cos": np.hstack([cos, cos]), "sin": np.hstack([sin, sin])},
        "repeated": {"cos": np.repeat(cos, 2, 1), "sin": np.repeat(sin, 2, 1)},
        "row": {"cos_sin": np.hstack([cos, sin])},
        "complex": {"cis": cos + 1j * sin},
    }[layout]
    assert made.keys() == expected.keys()
    for name, array in made.items():
        assert np.array_equal(array, expected[name])


@pytest.mark.parametrize(
    "model", ["microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-4-mini-instruct"]
)
def test_length_chooses_the_list(tmp_path: Path, model: str) -> None:
    lists = model_config(model).require("rope_scaling")
    found = {}
    for length in (4096, 4097):
        out = tmp_path / f"{length}.npz"
        done = packimport("table", "--model", model, "--rows", 2, "--seq-len", length, "-o", out)
        assert (done.returncode, done.stderr) == (0, "")
        with np.load(out) as file:
            found[length] = file["inv_freq"].astype(np.float64)
            (schedule,) = json.loads(str(file["schedules"]))
        # sqrt(1 + ln 32 / ln 4096), as transformers 5.24.0 has it for both lists.
        assert schedule["attention_factor"] == pytest.approx(1.190238071423808, abs=1e-12)
    ratio = (
        np.array(lists.require("long_factor").numbers()) / lists.require("short_factor").numbers()
    )
    assert found[4096] / found[4097] == pytest.approx(ratio, rel=3e-7)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("microsoft/Phi-4-mini-instruct", "the short list, for calls of up to 4096 positions;"),
        ("Qwen/Qwen3-0.6B", None),
    ],
)
def test_without_a_length_the_text_says_which_calls_it_is_for(
    tmp_path: Path, model: str, said: str | None
) -> None:
    done = packimport("table", "--model", model, "--rows", 2, "-o", tmp_path / "t.npz")
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]
    args = ("--seq-len", 5000, "-o", tmp_path / "long.npz")
    done = packimport("table", "--model", model, "--rows", 2, *args)
    assert "note: " not in done.stdout


def test_a_pack_that_declares_nothing(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config=None)
    done = packimport("table", pack, "-o", tmp_path / "t.npz")
    assert done.returncode == 2
    assert "nothing declares a RoPE schedule, so there is no table to write" in done.stderr
    assert "Pass the source model's config.json" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (["-o", "t.txt"], 2, ".safetensors"),
        (["-o", "t.npz", "--dtype", "bfloat16"], 2, ".safetensors"),
        (["-o", "t.json", "--layout", "complex"], 2, "complex"),
        (["-o", "exists.npz"], 3, "exists"),
        (["-o", "new/t.npz"], 3, "no such folder"),
        (["-o", "t.npz", "--layout", "complex", "--dtype", "float16"], 3, "float64"),
        (["-o", "t.safetensors", "--layout", "complex", "--dtype", "float64"], 2, ".npz"),
        (["-o", "t.npz", "--model", "x/y"], 2, "--model"),
        (["-o", "t.npz", "--rows", "99999999999"], 2, "up to 16777216, of 8 pairs each"),
    ],
)
def test_refusals(tmp_path: Path, args: list[str], code: int, word: str) -> None:
    (tmp_path / "exists.npz").write_bytes(b"mine")
    args = [str(tmp_path / a) if "." in a else a for a in args]
    done = packimport("table", PACKS / "oga-0.18.0-qwen3", *args)
    assert done.returncode == code, done.stderr
    assert word in done.stderr
    assert (tmp_path / "exists.npz").read_bytes() == b"mine"
    assert [p.name for p in tmp_path.iterdir()] == ["exists.npz"]
