"""Short convolutions of both forms that onnxruntime-genai writes for LFM2, against a sum of numpy:
after tokens t0 … ti the logits are w0·E[ti-2] + w1·E[ti-1] + w2·E[ti], entry by entry.

0.16 and later write CausalConvWithState, 0.14 and 0.15 a Concat, a Conv and Slices. Entries are
small integers, so every order of the sums gives the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ort_version import OPS

from forward.dump import read_dump
from forward.dump_pack import dump_pack
from forward.genai_config import read_decoder
from forward.runner import Runner, open_runner
from forward.self_check import self_check
from forward.wiring import read_wiring
from packimport.errors import GraphError
from packimport.pack.container import open_container

VOCAB, TAPS = 16, 3
RNG = np.random.default_rng(6)
EMBEDDING = RNG.integers(-3, 4, (VOCAB, VOCAB)).astype(np.float32)
WEIGHT = RNG.integers(1, 4, (VOCAB, 1, TAPS)).astype(np.float32)
TOKENS = RNG.integers(0, VOCAB, 40)
SPLITS = ([40], [1, 3, 20, 40], [13, 26, 39, 40], [20, *range(21, 41)], list(range(1, 41)))
END = 2**63 - 1
has_op = pytest.mark.skipif(
    "CausalConvWithState" not in OPS, reason="this onnxruntime has no CausalConvWithState"
)
OP = pytest.param("op", marks=has_op)
FORMS = (OP, "nodes")
Change = Callable[[dict[str, onnx.NodeProto], onnx.GraphProto], None]


def expected(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """[tokens, VOCAB] by the formula."""
    padded = np.concatenate([np.zeros((TAPS - 1, VOCAB), np.float32), EMBEDDING[tokens]])
    return sum(WEIGHT[:, 0, tap] * padded[tap : tap + len(tokens)] for tap in range(TAPS))


def nodes_of(form: str) -> list[onnx.NodeProto]:
    """From `rows` [batch, VOCAB, length] to `mixed`, with the state between."""
    if form == "op":
        inputs, outputs = ["rows", "weight", "", "past.0.conv"], ["mixed", "present.0.conv"]
        node = helper.make_node("CausalConvWithState", inputs, outputs, "carrier", ndim=1)
        node.domain = "com.microsoft"
        return [node]
    last = ["minus_length", "end", "axis"]
    return [
        helper.make_node("Concat", ["past.0.conv", "rows"], ["both"], "behind", axis=2),
        helper.make_node("Conv", ["both", "weight"], ["more"], "conv", pads=[0, 0], group=VOCAB),
        helper.make_node("Shape", ["rows"], ["length"], "measure", start=2),
        helper.make_node("Neg", ["length"], ["minus_length"], "minus"),
        helper.make_node("Slice", ["more", *last], ["mixed"], "newest"),
        helper.make_node("Slice", ["both", "first", "end", "axis"], ["present.0.conv"], "kept"),
    ]


def conv_pack(folder: Path, form: str, change: Change | None = None) -> Path:
    """A graph of one short convolution; `folder`. change: edits nodes by name, and the graph."""
    # The older form keeps as many entries as the kernel has taps, one more than it needs.
    kept = TAPS - 1 if form == "op" else TAPS
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"], "embed"),
        helper.make_node("Transpose", ["embedded"], ["rows"], "turn", perm=[0, 2, 1]),
        *nodes_of(form),
        helper.make_node("Transpose", ["mixed"], ["logits"], "back", perm=[0, 2, 1]),
    ]
    constants: dict[str, NDArray[Any]] = {
        "embedding": EMBEDDING,
        "weight": WEIGHT,
        "first": np.array([-kept]),
        "end": np.array([END]),
        "axis": np.array([2]),
    }

    def port(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "conv",
        [
            port("input_ids", ["batch", "length"], TensorProto.INT64),
            port("past.0.conv", ["batch", VOCAB, kept]),
        ],
        [
            port("logits", ["batch", "length", VOCAB]),
            port("present.0.conv", ["batch", VOCAB, kept]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    if change is not None:
        change({node.name: node for node in graph.node}, graph)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    folder.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    decoder = {
        "filename": "model.onnx",
        "head_size": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "inputs": {"past_conv_names": "past.%d.conv"},
        "outputs": {"present_conv_names": "present.%d.conv"},
    }
    model = {"type": "lfm2", "context_length": 64, "vocab_size": VOCAB, "decoder": decoder}
    search = {"past_present_share_buffer": True}
    text = json.dumps({"model": model, "search": search})
    (folder / "genai_config.json").write_text(text, encoding="utf-8")
    return folder


def runner_of(pack: Path) -> Runner:
    container = open_container(pack)
    return open_runner(container, read_decoder(container))


@pytest.mark.parametrize("stops", SPLITS)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_split_is_the_sum(tmp_path: Path, form: str, share: bool, stops: list[int]) -> None:
    run = runner_of(conv_pack(tmp_path / "p", form)).begin(len(TOKENS), share)
    parts = zip([0, *stops[:-1]], stops, strict=True)
    rows = np.concatenate([run.feed(TOKENS[a:b]).copy() for a, b in parts])
    assert np.array_equal(rows, expected(TOKENS))


@pytest.mark.parametrize("form", FORMS)
def test_it_is_fed_in_chunks_and_in_batches(tmp_path: Path, form: str) -> None:
    runner = runner_of(conv_pack(tmp_path / "p", form))
    assert (runner.cached, runner.chunk, runner.no_parts) == (True, 256, None)
    prompts = [TOKENS[:1], TOKENS[3:30], TOKENS[30:32]]
    for prompt, rows in zip(prompts, runner.batch(prompts), strict=True):
        assert np.array_equal(rows, expected(prompt))


@pytest.mark.parametrize("form", FORMS)
def test_the_self_check_runs_every_way(tmp_path: Path, form: str) -> None:
    container = open_container(conv_pack(tmp_path / "p", form))
    decoder = read_decoder(container)
    checks = self_check(open_runner(container, decoder), decoder, TOKENS)
    assert [check.difference for check in checks] == [0.0] * 4


@pytest.mark.parametrize("form", FORMS)
def test_two_texts_begin_with_zeros(tmp_path: Path, form: str) -> None:
    runner = runner_of(conv_pack(tmp_path / "p", form))
    for share in (True, True, False):
        assert np.array_equal(runner.begin(9, share).feed(TOKENS[:9]), expected(TOKENS[:9]))


@pytest.mark.parametrize("form", FORMS)
def test_a_dump_that_was_cut_goes_on(tmp_path: Path, form: str) -> None:
    """What was kept is fed again without its logits: the state must be where it was."""
    container = open_container(conv_pack(tmp_path / "p", form))
    out = tmp_path / "out"

    def cut(_: object, blocks: Any) -> Any:
        for count, block in enumerate(blocks):
            if count == 11:
                raise KeyboardInterrupt
            yield block

    options: dict[str, Any] = {"decode": 25, "chunk": 4}
    decoder = read_decoder(container)
    with pytest.raises(KeyboardInterrupt):
        dump_pack(container, decoder, out, TOKENS, watch=cut, **options)
    assert not out.exists()
    starts = []

    def watch(_: object, blocks: Any) -> Any:
        for block in blocks:
            starts.append(block.step.start)
            yield block

    dump_pack(container, decoder, out, TOKENS, watch=watch, **options)
    assert starts[0] > 15
    assert np.array_equal(read_dump(out).logits[:], expected(TOKENS))


def pads(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    next(each for each in nodes["conv"].attribute if each.name == "pads").ints[:] = [1, 1]


def oldest(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    """The state is the first entries, not the last."""
    graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
    graph.initializer.append(numpy_helper.from_array(np.array([TAPS]), "taps"))
    nodes["kept"].input[1:3] = ["zero", "taps"]


def not_the_newest(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(np.array([-TAPS - 1]), "before"))
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    nodes["kept"].input[1:3] = ["before", "last"]


def from_the_front(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    """As many as are kept after one token, and more after others."""
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "second"))
    nodes["kept"].input[1] = "second"


def in_front(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    nodes["behind"].input[:] = ["rows", "past.0.conv"]


def another_reader(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Neg", ["past.0.conv"], ["unused"]))


def changed_on_its_way(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
    """What the op writes is negated before it is handed out."""
    nodes["carrier"].output[1] = "after"
    graph.node.append(helper.make_node("Neg", ["after"], ["present.0.conv"]))


@pytest.mark.parametrize(
    ("form", "change", "found"),
    [
        ("nodes", pads, "Concat"),
        ("nodes", oldest, "Concat"),
        ("nodes", not_the_newest, "Concat"),
        ("nodes", from_the_front, "Concat"),
        ("nodes", in_front, "Concat"),
        ("nodes", another_reader, "Concat, Neg"),
        pytest.param("op", another_reader, "CausalConvWithState, Neg", marks=has_op),
        pytest.param("op", changed_on_its_way, "CausalConvWithState", marks=has_op),
    ],
)
def test_nodes_that_are_not_known_to_carry_it_are_refused(
    tmp_path: Path, form: str, change: Change, found: str
) -> None:
    with pytest.raises(GraphError, match=f"input past.0.conv.*does not know.*found {found}; allo"):
        runner_of(conv_pack(tmp_path / "p", form, change))


@pytest.mark.parametrize("window", [0, 1])
def test_a_state_of_several_positions_is_not_carried(tmp_path: Path, window: int) -> None:
    """It has an axis more; onnxruntime's CPU refuses it, others have not been run."""

    def widen(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
        nodes["carrier"].attribute.append(helper.make_attribute("state_window", window))

    container = open_container(conv_pack(tmp_path / "p", "op", widen))
    carried = read_wiring(container, read_decoder(container)).carried
    assert carried == ({} if window else {"past.0.conv": "present.0.conv"})


def test_an_op_that_this_release_lacks(tmp_path: Path) -> None:
    def rename(nodes: dict[str, onnx.NodeProto], graph: onnx.GraphProto) -> None:
        nodes["carrier"].op_type = "CausalConvOfTomorrow"

    later = "CausalConvOfTomorrow on the CPU.*A later release of onnxruntime may have it"
    with pytest.raises(GraphError, match=later):
        runner_of(conv_pack(tmp_path / "p", "op", rename))
