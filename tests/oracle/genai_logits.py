"""The logits of onnxruntime-genai, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def genai_steps(pack: Path, ids: NDArray[Any], prefill: int) -> list[NDArray[np.float32]]:
    """[rows, vocab] of each step: `prefill` tokens at once, then the others one by one."""
    import onnxruntime_genai as og

    model = og.Model(str(pack))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + 1)
    generator = og.Generator(model, parameters)
    steps = []
    for part in (ids[:prefill], *ids[prefill:, None]):
        generator.append_tokens(part[None].astype(np.int32))
        steps.append(np.array(generator.get_output("logits"))[0].astype(np.float32))
    return steps


def genai_logits(pack: Path, ids: NDArray[Any], prefill: int) -> NDArray[np.float32]:
    """The same as one array, of a graph that returns a row for each token."""
    return np.concatenate(genai_steps(pack, ids, prefill))
