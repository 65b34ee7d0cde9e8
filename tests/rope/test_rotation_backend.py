"""The RotaryEmbedding cases of onnx's backend suite: eight, and their expanded forms.

The expected values are the suite's own (onnx's reference implementation). That
one rounds each float32 product and sum once, as we do: bound 0. The expanded
forms also run in onnxruntime, in basic ops: bound 0 as well. Measured with
onnx 1.23.2 and onnxruntime 1.32.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from packimport.rope.rotation import rotate, rows_at

if TYPE_CHECKING:
    from onnx.backend.test.case.test_case import TestCase as Case

NAMES = (
    "test_rotary_embedding",
    "test_rotary_embedding_3d_input",
    "test_rotary_embedding_interleaved",
    "test_rotary_embedding_no_position_ids",
    "test_rotary_embedding_no_position_ids_interleaved",
    "test_rotary_embedding_no_position_ids_rotary_dim",
    "test_rotary_embedding_with_interleaved_rotary_dim",
    "test_rotary_embedding_with_rotary_dim",
)


@functools.cache
def suite() -> dict[str, Case]:
    """name -> case. Collecting runs every case of the suite; other ops' cases warn on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        state = np.random.get_state()  # The suite seeds numpy's global generator.
        found = collect_testcases("RotaryEmbedding")
        np.random.set_state(state)
    return {case.name: case for case in found if case.name.startswith("test_rotary_embedding")}


def by_rotation(
    node: onnx.NodeProto,
    x: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    position_ids: np.ndarray | None = None,
) -> np.ndarray:
    """What a RotaryEmbedding node does, said with rotate and rows_at."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    interleaved = bool(attributes.get("interleaved", 0))
    if position_ids is not None:
        cos, sin = rows_at(cos, sin, position_ids)
    width = attributes.get("rotary_embedding_dim", 0)
    assert width in (0, 2 * cos.shape[-1])
    if x.ndim == 4:
        return rotate(x, cos[:, None], sin[:, None], interleaved=interleaved)
    apart = x.reshape(*x.shape[:2], attributes["num_heads"], -1)
    turned = rotate(apart, cos[:, :, None], sin[:, :, None], interleaved=interleaved)
    return turned.reshape(x.shape)


def test_the_suite_has_these_cases_and_their_expanded_forms() -> None:
    assert set(suite()) == {*NAMES, *(f"{name}_expanded" for name in NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    case = suite()[name]
    (node,) = case.model.graph.node
    assert len(case.data_sets) == 1
    inputs, (expected,) = case.data_sets[0]
    found = by_rotation(node, *inputs)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_expanded_form(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    (node,) = suite()[name].model.graph.node
    expanded = suite()[f"{name}_expanded"]
    assert "RotaryEmbedding" not in {n.op_type for n in expanded.model.graph.node}
    options = ort.SessionOptions()
    options.log_severity_level = 3  # It warns of constants that the expansion leaves unused.
    session = ort.InferenceSession(
        expanded.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs, (expected,) = expanded.data_sets[0]
    feeds = {i.name: values for i, values in zip(session.get_inputs(), inputs, strict=True)}
    found = by_rotation(node, *inputs)
    assert np.array_equal(found, expected)
    assert np.array_equal(found, session.run(None, feeds)[0])
