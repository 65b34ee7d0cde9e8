"""Running a pack: what is fed, what is carried over, what is refused.

Expected logits come from onnxruntime called directly, or from the formula of counting.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tiny_pack
from counting import VOCAB, counting_pack, expected
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ort_version import ORT

from forward.genai_config import read_decoder
from forward.runner import open_runner, run_logits
from packimport.errors import DumpError, GraphError, UsageError
from packimport.pack.container import open_container

PACKS = Path(__file__).parent.parent / "packs"
TOKENS = np.random.default_rng(2).integers(0, VOCAB, 20)
# Names and the largest difference between two ways to feed the same tokens: float32 packs
# differ in the last bits of sums, float16 ones by one or two steps of their logits (2^-11).
RUNNABLE = {
    "amd-oga-0.7.0.1-llama3-int4-dml": 1e-3,
    "oga-0.11.2-gemma3": 2e-6,
    "oga-0.11.2-llama3": 2e-6,
    "oga-0.18.0-linear": 2e-6,
    "oga-0.18.0-llama3-int4": 2e-6,
    "oga-0.18.0-longrope-dml": 1e-3,
    "oga-0.18.0-longrope-if": 2e-6,
    "oga-0.18.0-qwen3": 2e-6,
}


def bare(folder: Path, tokens: NDArray[Any]) -> NDArray[Any]:
    """onnxruntime alone: the whole text in one run, [tokens, vocab]."""
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    count = len(tokens)
    known = {
        "input_ids": tokens[None],
        "attention_mask": np.ones((1, count), np.int64),
        "position_ids": np.arange(count)[None],
    }
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    feeds = {
        port.name: known[port.name]
        if port.name in known
        else np.zeros((1, port.shape[1], 0, 16), kinds[port.type])
        for port in session.get_inputs()
    }
    return session.run(["logits"], feeds)[0][0]


@pytest.mark.parametrize(("name", "bound"), RUNNABLE.items())
def test_real_packs(name: str, bound: float) -> None:
    tokens = np.random.default_rng(1).integers(0, 512, 150)
    whole = run_logits(PACKS / name, tokens)
    assert whole.logits.shape == (150, 512)
    assert whole.logits[:].dtype == np.float32
    assert np.array_equal(whole.logits[:], bare(PACKS / name, tokens).astype(np.float32))
    stepped = run_logits(PACKS / name, tokens, decode=40, chunk=32)
    assert stepped.prefill == 110
    assert np.abs(stepped.logits[:] - whole.logits[:]).max() <= bound


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_decode_is_prefill(tmp_path: Path, form: str, dtype: str) -> None:
    pack = tiny_pack(tmp_path / "pack", form=form, dtype=dtype)
    tokens = np.random.default_rng(3).integers(0, 64, 60)
    whole, single = run_logits(pack, tokens), run_logits(pack, tokens, decode=60)
    assert np.array_equal(whole.logits[:], bare(pack, tokens).astype(np.float32))
    assert np.abs(whole.logits[:] - single.logits[:]).max() <= (
        1e-5 if dtype == "float32" else 0.02
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("decode", "chunk"), [(0, None), (0, 7), (20, None), (5, 4), (19, 1), (1, 50)]
)
def test_every_plan_gives_the_formula(
    tmp_path: Path, dtype: str, decode: int, chunk: int | None
) -> None:
    run = run_logits(counting_pack(tmp_path / "p", dtype=dtype), TOKENS, decode, chunk)
    assert run.logits[:].dtype == np.float32
    assert np.array_equal(run.logits[:], expected(TOKENS))


@pytest.mark.parametrize("ids", ["int64", "int32"])
def test_position_ids_go_on_in_decode(tmp_path: Path, ids: str) -> None:
    pack = counting_pack(tmp_path / "p", ids=ids, position_ids=True)
    run = run_logits(pack, TOKENS, decode=6, chunk=5)
    assert np.array_equal(run.logits[:], expected(TOKENS) + np.arange(20)[:, None])


def test_last_row_alone_by_its_shape_is_run_token_by_token(tmp_path: Path) -> None:
    run = run_logits(counting_pack(tmp_path / "p", last="static"), TOKENS, decode=3)
    assert np.array_equal(run.logits[:], expected(TOKENS))
    assert run.prefill == 17


def test_last_row_alone_that_no_shape_tells_is_run_token_by_token(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p", last="open")
    for chunk in (None, 1, 5):
        run = run_logits(pack, TOKENS, decode=3, chunk=chunk)
        assert np.array_equal(run.logits[:], expected(TOKENS))
        assert run.prefill == 17


def test_last_row_alone_of_a_graph_that_must_be_fed_at_once(tmp_path: Path) -> None:
    for last in ("open", "static"):
        pack = counting_pack(tmp_path / last, last=last, past=False)
        for chunk in (None, 1):
            with pytest.raises(GraphError, match=r"output logits: .*takes no past, so those of"):
                run_logits(pack, TOKENS, chunk=chunk)
        assert np.array_equal(run_logits(pack, TOKENS[:1]).logits[:], expected(TOKENS[:1]))


def test_a_graph_without_past_runs_at_once_alone(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p", past=False)
    assert np.array_equal(run_logits(pack, TOKENS).logits[:], expected(TOKENS))
    for decode, chunk in ((1, None), (0, 5)):
        with pytest.raises(GraphError, match=r"takes no past.*Leave --decode and --chunk out"):
            run_logits(pack, TOKENS, decode, chunk)


def test_an_unknown_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"model.onnx: input past_sequence_length: .*float32 \[1"):
        run_logits(counting_pack(tmp_path / "p", extra="past_sequence_length"), TOKENS)


def test_a_past_of_fixed_length_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"past_key_values.0.key.*\[\?, 1, 16, 8\]"):
        run_logits(counting_pack(tmp_path / "p", fixed=True), TOKENS)


def test_a_past_without_present_is_named(tmp_path: Path) -> None:
    decoder = {"outputs": {"present_key_names": "now.%d.key"}}
    with pytest.raises(GraphError, match=r"past_key_values.0.key.*now\.0\.key"):
        run_logits(counting_pack(tmp_path / "p", decoder=decoder), TOKENS)


@pytest.mark.parametrize(
    ("decoder", "missing"),
    [({"inputs": {"input_ids": "ids"}}, "ids"), ({"outputs": {"logits": "scores"}}, "scores")],
)
def test_names_that_the_graph_lacks(tmp_path: Path, decoder: Any, missing: str) -> None:
    with pytest.raises(GraphError, match=missing):
        run_logits(counting_pack(tmp_path / "p", decoder=decoder), TOKENS)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "no tokens"),
        ([0, 1, 8], "position 2 .*found 8; allowed: 0 to 7"),
        ([0, -1, 1], "position 1 .*found -1"),
        ([1] * 65, "context_length; found 65; allowed: 64"),
    ],
)
def test_tokens_that_do_not_fit(tmp_path: Path, tokens: list[int], message: str) -> None:
    with pytest.raises(DumpError, match=message):
        run_logits(counting_pack(tmp_path / "p"), tokens)


def test_decode_takes_no_more_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found 21; allowed: 0 to 20"):
        run_logits(counting_pack(tmp_path / "p"), TOKENS, decode=21)


@pytest.fixture(params=["gqa", "rotary_embedding"])
def short(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A pack whose genai_config allows 64 positions while its tables have 32 rows."""
    pack = tiny_pack(tmp_path / "pack", rows=32, form=request.param)
    config = pack / "genai_config.json"
    text = config.read_text(encoding="utf-8")
    assert '"context_length": 32' in text
    config.write_text(text.replace('"context_length": 32', '"context_length": 64'), "utf-8")
    return pack


def test_tables_that_are_too_short_are_seen_before_the_run(short: Path) -> None:
    assert run_logits(short, np.arange(32), decode=4).positions == 32
    with pytest.raises(GraphError, match=r"have rows; found 33; allowed: 32 or fewer"):
        run_logits(short, np.arange(33))


@pytest.mark.skipif(ORT < (1, 27), reason="onnxruntime before 1.27 reads beyond the table")
def test_tables_that_are_too_short_are_named_during_the_run(short: Path) -> None:
    """What a table that could not be followed leads to."""
    container = open_container(short)
    run = open_runner(container, read_decoder(container)).begin()
    run.feed(np.arange(30))
    run.feed(np.arange(2))
    with pytest.raises(GraphError, match=r"RoPE table.*fewer rows.*\(positions 32 to 32\)"):
        run.feed(np.arange(1))


def test_a_graph_that_does_not_load(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p")
    (pack / "model.onnx").write_bytes(b"\x08\x0a\x12\x00nonsense")
    with pytest.raises(GraphError, match=r"^model\.onnx: no ONNX file, or a damaged one"):
        run_logits(pack, TOKENS)


def test_a_graph_for_another_device_says_so() -> None:
    """The smollm3 pack of that release is broken itself: no advice about devices there."""
    with pytest.raises(GraphError, match=r"can't load the graph.*position_ids") as caught:
        run_logits(PACKS / "oga-0.11.2-smollm3", TOKENS)
    assert caught.value.fix is None


@pytest.mark.skipif(os.name == "nt", reason="hub caches of Windows hold copies, not links")
def test_a_hub_snapshot_runs(tmp_path: Path) -> None:
    """Every file is a link to a blob; the data beside the graph is found through the links."""
    pack = tiny_pack(tmp_path / "pack")
    tokens = np.arange(30)
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "rev", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for index, path in enumerate(sorted(pack.iterdir())):
        path.rename(blobs / str(index))
        (snapshot / path.name).symlink_to(f"../../blobs/{index}")
    run = run_logits(snapshot, tokens)
    assert np.array_equal(run.logits[:], bare(snapshot, tokens))


def test_feeding_goes_on_where_it_stopped(tmp_path: Path) -> None:
    container = open_container(counting_pack(tmp_path / "p"))
    run = open_runner(container, read_decoder(container)).begin()
    first, second = run.feed(TOKENS[:3]), run.feed(TOKENS[3:5])
    assert run.length == 5
    assert np.array_equal(np.concatenate([first, second]), expected(TOKENS[:5]))


def mask_of_a_prompt(pack: Path) -> None:
    """As older builders' masks for MultiHeadAttention: of a whole text, or of one token."""
    model = onnx.load(pack / "model.onnx")
    cast = next(node for node in model.graph.node if node.output[0] == "logits")
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["ids", "nought"], ["by_column"], keepdims=0),
        helper.make_node("Shape", ["attention_mask"], ["total"], start=1),
        helper.make_node("Expand", ["by_column", "total"], ["row"]),
        helper.make_node("ReduceMin", ["row"], ["least"], keepdims=0),
        helper.make_node("Sub", ["least", "least"], ["zero"]),
        helper.make_node("Add", [cast.input[0], "zero"], ["masked_logits"]),
    ]
    cast.input[0] = "masked_logits"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "nought"))
    before = [node for node in model.graph.node if node.output[0] != "logits"]
    after = onnx.NodeProto.FromString(cast.SerializeToString())
    del model.graph.node[:]
    model.graph.node.extend([*before, *nodes, after])
    onnx.save(model, pack / "model.onnx")


def test_a_graph_that_takes_no_part_of_a_text_says_which_chunks_it_takes(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p")
    mask_of_a_prompt(pack)
    tokens = [1, 2, 3, 4, 5, 6]
    for chunk in (None, 1):
        assert np.array_equal(run_logits(pack, tokens, chunk=chunk).logits[:], expected(tokens))
    assert np.array_equal(run_logits(pack, tokens, decode=3).logits[:], expected(tokens))
    with pytest.raises(GraphError, match=r"Expand fails.*positions 3 to 5.*pass --chunk 1"):
        run_logits(pack, tokens, chunk=3)
