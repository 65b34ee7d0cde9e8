"""The version and the ops of onnxruntime: Python 3.10 gets 1.23 at most, which lacks some."""

from __future__ import annotations

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

# As (1, 32).
ORT = tuple(map(int, onnxruntime.__version__.split(".")[:2]))

# Op types that it knows, of any domain.
OPS = {schema.name for schema in onnxruntime_pybind11_state.get_all_operator_schema()}
