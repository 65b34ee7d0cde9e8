"""The version of onnxruntime, for what older ones lack: Python 3.10 gets 1.23 at most."""

from __future__ import annotations

import onnxruntime

# As (1, 32).
ORT = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
