"""What the tests of rope/ share: onnxruntime running a small graph on its CPU provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
import pytest

Array = npt.NDArray[np.generic]
RunGraph = Callable[[Sequence[onnx.NodeProto], Mapping[str, Array]], Array]


@pytest.fixture(scope="session")
def run_graph() -> RunGraph:
    """nodes, {input: array} -> output `y`, of the first input's dtype; opset 23 and contrib."""
    ort = pytest.importorskip("onnxruntime")

    def run(nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array]) -> Array:
        types = {name: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
        graph = onnx.helper.make_graph(
            nodes,
            "graph",
            [onnx.helper.make_tensor_value_info(n, types[n], a.shape) for n, a in feeds.items()],
            [onnx.helper.make_tensor_value_info("y", next(iter(types.values())), None)],
        )
        opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.log_severity_level = 4  # Errors come as exceptions; the log says them again.
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, dict(feeds))[0]

    return run
