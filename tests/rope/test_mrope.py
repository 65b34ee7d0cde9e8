"""M-RoPE: text equals the one-dimensional table; pictures equal transformers 5.24.0."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from samples import SAMPLES

from packimport.errors import ScheduleError
from packimport.rope.axes import axes
from packimport.rope.mrope import mrope_table
from packimport.rope.schedule import Rope
from packimport.rope.tables import table

WIDE = Rope(type="default", theta=1000000.0, head_dim=128, rotary_dim=128)
ALPHA = SAMPLES["dynamic with alpha"]
# What each model's config says, and its class in transformers 5.24.0.
MODELS = {
    "chunked": (
        replace(WIDE, mrope_layout="chunked", mrope_section=(16, 24, 24)),
        "qwen2_vl.modeling_qwen2_vl.Qwen2VLRotaryEmbedding",
    ),
    "interleaved": (
        replace(WIDE, theta=5000000.0, mrope_layout="interleaved", mrope_section=(24, 20, 20)),
        "qwen3_vl.modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding",
    ),
    "interleaved, 32 pairs": (
        replace(
            WIDE,
            theta=10000000.0,
            head_dim=256,
            rotary_dim=64,
            partial_rotary_factor=0.25,
            mrope_layout="interleaved",
            mrope_section=(11, 11, 10),
        ),
        "qwen3_5.modeling_qwen3_5.Qwen3_5TextRotaryEmbedding",
    ),
    "chunked, interleaved pairs": (
        replace(
            WIDE,
            theta=10000.0,
            rotary_dim=64,
            partial_rotary_factor=0.5,
            interleaved=True,
            mrope_layout="chunked",
            mrope_section=(8, 12, 12),
        ),
        "glm4v.modeling_glm4v.Glm4vTextRotaryEmbedding",
    ),
    "alternating": (
        replace(
            WIDE,
            theta=500000.0,
            interleaved=True,
            mrope_layout="alternating",
            mrope_section=(22, 22, 20),
        ),
        "ernie4_5_vl_moe.modeling_ernie4_5_vl_moe.Ernie4_5_VLMoeTextRotaryEmbedding",
    ),
    "doubled": (
        replace(ALPHA, mrope_layout="doubled", mrope_section=(16, 16, 16, 16)),
        "hunyuan_vl.modeling_hunyuan_vl.HunYuanVLRotaryEmbedding",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_text_is_the_one_dimensional_table(name: str) -> None:
    rope, _ = MODELS[name]
    assert rope.mrope_section is not None
    positions = np.tile(np.arange(500), (len(rope.mrope_section), 1))
    found, plain = mrope_table(rope, positions), table(rope, 500)
    for ours, expected in ((found.cos, plain.cos), (found.sin, plain.sin)):
        twice = np.hstack([expected, expected]) if rope.mrope_layout == "doubled" else expected
        assert np.array_equal(ours, twice)


def test_text_with_sections_on_another_schedule() -> None:
    # Qwen2.5-VL with its documented yarn block.
    rope = replace(SAMPLES["yarn"], mrope_layout="chunked", mrope_section=(8, 12, 12))
    found = mrope_table(rope, np.tile(np.arange(50), (3, 1)))
    assert np.array_equal(found.cos, table(rope, 50).cos)
    long = replace(SAMPLES["longrope"], mrope_layout="chunked", mrope_section=(16, 16, 16))
    found = mrope_table(long, np.tile(np.arange(50), (3, 1)), seq_len=5000)
    assert np.array_equal(found.cos, table(long, 50, seq_len=5000).cos)


def test_an_axis_turns_its_own_pairs_alone() -> None:
    rope, _ = MODELS["interleaved"]
    # modeling_qwen3_vl: height at slice(1, 60, 3), width at slice(2, 60, 3), time elsewhere.
    height, width = np.arange(64)[1:60:3], np.arange(64)[2:60:3]
    time = np.setdiff1d(np.arange(64), np.concatenate([height, width]))
    for axis, pairs in enumerate((time, height, width)):
        assert np.flatnonzero(axes(rope) == axis).tolist() == pairs.tolist()
        positions = np.zeros((3, 1), np.int64)
        positions[axis] = 1000
        turned = mrope_table(rope, positions).sin[0] != 0
        assert np.flatnonzero(turned).tolist() == pairs.tolist()


def test_axes_of_the_other_layouts() -> None:
    # `recomposition_frequencies` of qwen2_vl, ernie4_5_vl_moe and hunyuan_vl.
    assert axes(MODELS["chunked"][0]).tolist() == [0] * 16 + [1] * 24 + [2] * 24
    assert axes(MODELS["alternating"][0]).tolist() == [1, 2] * 22 + [0] * 20
    quarters = [0] * 32 + [1] * 32 + [2] * 32 + [3] * 32
    assert axes(MODELS["doubled"][0]).tolist() == quarters


def test_no_sections_means_one_axis() -> None:
    assert not axes(WIDE).any()
    with pytest.raises(ScheduleError) as error:
        mrope_table(WIDE, np.zeros((3, 4), np.int64))
    assert error.value.key == "mrope_section"


@pytest.mark.parametrize(
    "positions",
    [
        np.zeros((2, 4), np.int64),
        np.zeros((4, 4), np.int64),
        np.zeros(3, np.int64),
        np.zeros((3, 4)),
        np.full((3, 4), -1),
    ],
)
def test_positions_that_do_not_fit(positions: np.ndarray) -> None:
    with pytest.raises(ScheduleError) as error:
        mrope_table(MODELS["chunked"][0], positions)
    assert error.value.key == "positions"


@pytest.mark.oracle
@pytest.mark.skipif(not find_spec("transformers"), reason="needs the extra `oracle`")
@pytest.mark.filterwarnings("ignore")  # torch and transformers warn of their own ways
@pytest.mark.parametrize("name", MODELS)
def test_pictures_as_transformers_turns_them(name: str) -> None:
    import torch

    rope, path = MODELS[name]
    assert rope.mrope_section is not None
    positions = np.random.default_rng(5).integers(0, 200, (len(rope.mrope_section), 64))
    module, _, cls = path.rpartition(".")
    block = {"rope_type": rope.type, "rope_theta": rope.theta, "mrope_section": rope.mrope_section}
    block["partial_rotary_factor"] = rope.partial_rotary_factor or 1.0
    if rope.alpha is not None:
        block["alpha"] = rope.alpha
    config = SimpleNamespace(
        head_dim=rope.head_dim,
        max_position_embeddings=32768,
        rope_parameters=block,
    )
    model = getattr(import_module(f"transformers.models.{module}"), cls)(config)
    ids = torch.from_numpy(positions)[:, None]
    cos, sin = (x[0].numpy() for x in model(torch.zeros(1, dtype=torch.float32), ids))
    found = mrope_table(rope, positions)
    for ours, theirs in ((found.cos, cos), (found.sin, sin)):
        if rope.mrope_layout == "doubled":
            single = theirs
        elif rope.interleaved:
            single = theirs[:, 0::2]
        else:
            single = theirs[:, : rope.pairs]
        # Two ulps of a frequency at position 200; another axis would be off by up to 2.
        assert np.abs(ours - single).max() < 1e-4
        order = np.roll(np.arange(len(positions)), 1)
        assert np.abs(mrope_table(rope, positions[order]).cos - ours).max() > 1
