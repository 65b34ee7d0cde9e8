"""Greedy generation, against the formula of counting.py followed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from counting import EMBEDDING, counting_pack
from onnx import numpy_helper

from forward.genai_config import read_decoder
from forward.generate import generate
from forward.runner import open_runner
from packimport.errors import DumpError, GraphError
from packimport.pack.container import open_container


def run(pack: Path, prompt: list[int], count: int, chunk: int | None = None) -> list[int]:
    container = open_container(pack)
    decoder = read_decoder(container)
    runner = open_runner(container, decoder)
    return list(generate(runner, decoder, np.array(prompt, dtype=np.int64), count, chunk))


def greedy(prompt: list[int], count: int, eos: tuple[int, ...]) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + count:
        token = int(EMBEDDING[ids].sum(axis=0).argmax())
        if token in eos:
            break
        ids.append(token)
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [[0], [3, 1, 4], [5, 2, 6, 6, 1]])
@pytest.mark.parametrize(
    "options", [{}, {"last": "static"}, {"last": "open"}, {"dtype": "float16"}]
)
@pytest.mark.parametrize("chunk", [None, 2])
def test_greedy(tmp_path: Path, prompt: list[int], options: Any, chunk: int | None) -> None:
    pack = counting_pack(tmp_path / "p", genai={"eos_token_id": None}, **options)
    assert run(pack, prompt, 12, chunk) == greedy(prompt, 12, ())


def test_it_stops_at_any_eos(tmp_path: Path) -> None:
    free = greedy([3, 1], 20, ())
    stop = next(token for token in free if token != free[0])
    pack = counting_pack(tmp_path / "p", genai={"eos_token_id": [stop, 7]})
    ids = run(pack, [3, 1], 20)
    assert ids == greedy([3, 1], 20, (stop, 7))
    assert len(ids) == min(free.index(t) for t in {stop, 7} & set(free))


def test_an_empty_or_unknown_prompt(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p")
    for prompt in ([], [8]):
        with pytest.raises(DumpError):
            run(pack, prompt, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_without_a_largest_number_make_no_token(tmp_path: Path, value: float) -> None:
    pack = counting_pack(tmp_path / "p", genai={"eos_token_id": None})
    model = onnx.load(pack / "model.onnx")
    (table,) = [t for t in model.graph.initializer if t.name == "embedding"]
    rows = EMBEDDING.copy()
    rows[1] = value
    table.CopyFrom(numpy_helper.from_array(rows, "embedding"))
    onnx.save(model, pack / "model.onnx")
    with pytest.raises(GraphError, match="after position 2 have no largest number"):
        run(pack, [3, 4, 1], 4)


def test_a_token_that_is_ruled_out_is_never_the_largest(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p", genai={"eos_token_id": None})
    model = onnx.load(pack / "model.onnx")
    (table,) = [t for t in model.graph.initializer if t.name == "embedding"]
    rows = EMBEDDING.copy()
    rows[3, :5] = -np.inf
    table.CopyFrom(numpy_helper.from_array(rows, "embedding"))
    onnx.save(model, pack / "model.onnx")
    assert run(pack, [3], 1) == [5 + int(EMBEDDING[3, 5:].argmax())]


def test_a_graph_without_past_makes_one_token(tmp_path: Path) -> None:
    pack = counting_pack(tmp_path / "p", past=False, genai={"eos_token_id": None})
    assert run(pack, [3, 1, 4], 1) == greedy([3, 1, 4], 1, ())
    with pytest.raises(GraphError, match=r"takes no past, so no token can follow .*--generate 1"):
        run(pack, [3, 1, 4], 2)
