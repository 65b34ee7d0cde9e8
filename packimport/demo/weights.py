"""The demo model's weights: seeded, and the same bits on every machine and numpy.

The scales are chosen so that attention is sharp enough to depend on position and
flat enough to keep float32 noise below 1e-5 in the logits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from packimport.demo import model

SEED = 7000

Array = npt.NDArray[np.float32]

# Standard deviations of what each matrix makes of an input of unit variance.
QUERY_KEY = 1.4
VALUE = 1.0
ATTENTION_OUT = 1.0
GATE_UP = 1.0
MLP_OUT = 0.5
LOGITS = 2.0
NORM_SPREAD = 0.1


def state_dict() -> Mapping[str, Array]:
    """Every weight under its name in transformers' Llama: float32, [out, in] for a matrix."""
    seeds = iter(range(SEED + 1, SEED + 1000))

    def matrix(rows: int, columns: int, gain: float) -> Array:
        return uniform(next(seeds), (rows, columns), gain / columns**0.5)

    def norm() -> Array:
        return np.float32(1.0) + uniform(next(seeds), (model.HIDDEN,), NORM_SPREAD)

    width, kv_width = model.HEADS * model.HEAD_DIM, model.KV_HEADS * model.HEAD_DIM
    weights = {"model.embed_tokens.weight": uniform(next(seeds), (model.VOCAB, model.HIDDEN), 1.0)}
    for layer in range(model.LAYERS):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": norm(),
            f"{name}.self_attn.q_proj.weight": matrix(width, model.HIDDEN, QUERY_KEY),
            f"{name}.self_attn.k_proj.weight": matrix(kv_width, model.HIDDEN, QUERY_KEY),
            f"{name}.self_attn.v_proj.weight": matrix(kv_width, model.HIDDEN, VALUE),
            f"{name}.self_attn.o_proj.weight": matrix(model.HIDDEN, width, ATTENTION_OUT),
            f"{name}.post_attention_layernorm.weight": norm(),
            f"{name}.mlp.gate_proj.weight": matrix(model.INTERMEDIATE, model.HIDDEN, GATE_UP),
            f"{name}.mlp.up_proj.weight": matrix(model.INTERMEDIATE, model.HIDDEN, GATE_UP),
            f"{name}.mlp.down_proj.weight": matrix(model.HIDDEN, model.INTERMEDIATE, MLP_OUT),
        }
    weights["model.norm.weight"] = norm()
    weights["lm_head.weight"] = matrix(model.VOCAB, model.HIDDEN, LOGITS)
    return weights


def uniform(seed: int, shape: tuple[int, ...], deviation: float) -> Array:
    """float32 values, uniform about 0, with the standard deviation `deviation`.

    The upper 24 bits of a raw word of PCG64 are an exact float32 in [-1, 1), so
    one rounding, that of the product, is all that arithmetic adds.
    """
    words = np.random.PCG64(seed).random_raw(int(np.prod(shape))) >> np.uint64(40)
    unit = (words.astype(np.float64) * 2.0**-23 - 1.0).astype(np.float32)
    scaled: Array = unit * np.float32(deviation * 3.0**0.5)
    return scaled.reshape(shape)
