"""The probe: a right table passes, each wrong one is seen, and what can't be probed is said.

Tables come from formulas in numpy (builders, llama3, longrope_graphs), never from packimport.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Tables, plain, tiny_pack, write_json
from llama3 import tables_of
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state
from probing import (
    HALF,
    LLAMA3,
    PACKS,
    PAIRS,
    ROWS,
    WRONG,
    YARN_FACTOR,
    half_angles,
    llama3_pack,
    right,
    the_site,
)

import packimport
from forward.probe import _probed, probe
from forward.probe_case import Case
from forward.probe_model import tiny_model
from packimport.audit.audit import find
from packimport.errors import ContainerError
from packimport.pack.archive import opened
from packimport.rope.schedule import Rope
from packimport.semantics.reader import read_semantics

sys.path.insert(0, str(Path(__file__).parent.parent / "graph"))

import longrope_graphs
import plain_graphs

# --- right ones ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_table_passes(form: str, dtype: str, tmp_path: Path) -> None:
    site = the_site(probe(llama3_pack(tmp_path, form=form, dtype=dtype)))
    assert site.verdict == "within"
    assert site.first_wrong_position is None
    assert site.op == "com.microsoft RotaryEmbedding"
    # The first, the last, the edges of the original length, and powers of two.
    assert {0, 1, 63, 64, 65, 127, 128, 255} <= set(site.positions)
    assert site.times_allowed is not None
    assert 0 < site.times_allowed <= 1


def test_what_is_allowed_follows_the_dtype(tmp_path: Path) -> None:
    allowed = []
    for dtype in ("float32", "float16", "bfloat16"):
        pack = tiny_pack(
            tmp_path / dtype, rows=4, tables=plain(4, PAIRS), config={}, dtype=dtype,
            form="rotary_embedding",
        )  # fmt: skip
        site = the_site(probe(pack))
        assert site.max_abs_error is not None
        assert site.allowed is not None
        # q and k stay below 5, cos and sin below 1: an ulp of each, half of it when rounded.
        assert (
            site.max_abs_error < 5 * 2.0 ** {"float32": -22, "float16": -10, "bfloat16": -7}[dtype]
        )
        allowed.append(site.allowed)
    assert allowed[0] < allowed[1] / 100 < allowed[2] / 500


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_interleaved_pairs(form: str, tmp_path: Path) -> None:
    for model_type, verdict in (("cohere", "within"), ("llama", "wrong")):
        config = {"model_type": model_type}
        pack = tiny_pack(
            tmp_path / model_type, config=config, form=form, interleaved=True, rows=ROWS,
        )  # fmt: skip
        site = the_site(probe(pack))
        assert site.verdict == verdict
        assert site.site.interleaved is True


def test_half_of_a_head_rotates(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", form="rotary_embedding", config=HALF, rotary_dim=8)
    site = the_site(probe(pack))
    assert (site.verdict, site.site.rotary_dim) == ("within", 8)


def test_an_attention_factor(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = {"rope_scaling": yarn}

    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=yarn_table(YARN_FACTOR), config=config)
    assert the_site(probe(pack)).verdict == "within"
    lost = tiny_pack(tmp_path / "q", rows=ROWS, tables=yarn_table(1.0), config=config)
    site = the_site(probe(lost))
    assert (site.verdict, site.first_wrong_position) == ("wrong", 0)


def yarn_table(factor: float) -> Tables:
    """YaRN (arXiv 2309.00071, section 3.2) with betas 32 and 1, floored and ceiled."""

    def edge(beta: float) -> float:
        return PAIRS * math.log(64 / (beta * 2 * math.pi)) / math.log(10000.0)

    low, high = max(math.floor(edge(32)), 0), min(math.ceil(edge(1)), 2 * PAIRS - 1)
    ramp = np.clip((np.arange(PAIRS) - low) / (high - low), 0, 1)
    base = 10000.0 ** -(np.arange(PAIRS) / PAIRS)
    cos, sin = tables_of(base / 4 * ramp + base * (1 - ramp), ROWS)
    return factor * cos, factor * sin


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("amd-oga-0.7.0.1-llama3-int4-dml", "wrong"),
        ("oga-0.11.2-llama3", "wrong"),
        ("oga-0.18.0-linear", "wrong"),
        ("oga-0.18.0-llama3-int4", "within"),
        ("oga-0.18.0-longrope-dml", "within"),
        ("oga-0.18.0-longrope-if", "within"),
        ("oga-0.18.0-qwen3", "within"),
        ("optimum-0.1.0-llama3", "within"),
    ],
)
def test_real_packs(name: str, verdict: str) -> None:
    found = probe(PACKS / name)
    assert {site.verdict for site in found.sites} == {verdict}
    assert (found.verdict, found.gaps) == (verdict, ())


def test_only_the_wrong_one_of_two_tables_is_wrong() -> None:
    found = probe(PACKS / "oga-0.11.2-gemma3")
    assert [(site.site.layers, site.verdict) for site in found.sites] == [
        ((0, 1, 2, 3, 4), "within"),
        ((5,), "wrong"),
    ]
    assert found.exit_code == 1


# --- wrong ones ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_seen(name: str, form: str, tmp_path: Path) -> None:
    make, first = WRONG[name]
    found = probe(llama3_pack(tmp_path, make(), form=form))
    site = the_site(found)
    assert (site.verdict, site.first_wrong_position) == ("wrong", first)
    assert found.exit_code == 1


def test_a_right_table_in_half_precision_is_not_taken_for_half_precision_angles(
    tmp_path: Path,
) -> None:
    assert the_site(probe(llama3_pack(tmp_path, dtype="float16"))).verdict == "within"
    wrong = tiny_pack(tmp_path / "w", rows=ROWS, tables=half_angles(), config=LLAMA3,
                      dtype="float16")  # fmt: skip
    assert the_site(probe(wrong)).verdict == "wrong"


def test_a_table_that_ends_too_early(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=ROWS, tables=right(100), config=LLAMA3)
    site = the_site(probe(pack))
    assert site.verdict == "wrong"
    assert site.reason == "the table ends at position 99, the pack is used up to 255"
    assert site.first_wrong_position is None
    assert max(site.positions) == 99


def test_a_table_as_wide_as_its_rotary_dim_is_read_with_the_wrong_stride(tmp_path: Path) -> None:
    """rotary_embedding_dim 8, and a table of 8 columns: what rotates is not what is declared,
    whether or not this onnxruntime takes it."""
    pack = tiny_pack(
        tmp_path / "p", form="rotary_embedding", tables=plain(64, 8), config=HALF, rotary_dim=8,
    )  # fmt: skip
    site = the_site(probe(pack))
    assert (site.site.pairs, site.site.rotary_dim, site.verdict) == (8, 8, "wrong")


def test_more_entries_than_a_head_has(tmp_path: Path) -> None:
    """All 16 entries of two heads of 8, as exporters that lose the partial factor leave it."""

    config = {"hidden_size": 32, "head_dim": 8}
    pack = tiny_pack(
        tmp_path / "p", form="rotary_embedding", head_dim=8, tables=plain(64, 8), config=config,
        rotary_dim=16,
    )  # fmt: skip
    site = the_site(probe(pack))
    assert (site.verdict, site.reason) == ("wrong", "it rotates 16 entries, and a head has 8")


def test_a_node_that_cuts_heads_by_its_table(tmp_path: Path) -> None:
    """Without rotary_embedding_dim it takes two heads of 8 for one of 16."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "RotaryEmbedding":
                kept = [a for a in node.attribute if a.name == "interleaved"]
                del node.attribute[:]
                node.attribute.extend(kept)

    options: dict[str, Any] = {"form": "rotary_embedding", "config": HALF, "rotary_dim": 8}
    pack = tiny_pack(tmp_path / "p", change=change, **options)
    site = the_site(probe(pack))
    assert (site.site.head_dim, site.verdict) == (8, "wrong")


def test_layers_that_should_not_rotate(tmp_path: Path) -> None:
    config = {"model_type": "smollm3", "no_rope_layers": [1, 0]}
    found = probe(tiny_pack(tmp_path / "p", config=config))
    assert [(site.declared, site.verdict) for site in found.sites] == [
        ("default (theta 10000)", "within"),
        ("no rotation", "wrong"),
    ]


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("float16", 2.0**-11)])
@pytest.mark.parametrize(("steps", "verdict"), [(1, "within"), (12, "wrong")])
def test_how_small_an_error_is_seen(
    dtype: str, unit: float, steps: int, verdict: str, tmp_path: Path
) -> None:
    """At position 1, whose angles are small: a cos that is off by some of its last places."""
    cos, sin = right()
    cos[1, 5] -= steps * unit
    pack = llama3_pack(tmp_path, (cos, sin), dtype=dtype)
    assert the_site(probe(pack)).verdict == verdict


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [tokens, heads, 2 * pairs] rotated by numpy's complex product (RoFormer, eq. 13)."""
    pairs = x.shape[-1] // 2
    halves = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :pairs], x[..., pairs:])
    product = (halves[0] + 1j * halves[1]) * (cos + 1j * sin)[:, None]
    parts = [product.real, product.imag]
    if interleaved:
        return np.stack(parts, axis=-1).reshape(x.shape)
    return np.concatenate(parts, axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("trailing", [False, True])
def test_the_tiny_model_rotates_as_the_site_says(
    interleaved: bool, trailing: bool, tmp_path: Path
) -> None:
    """8 of 20 entries, at the start or at the end of a head; the others stay as they are."""
    site = the_site(probe(llama3_pack(tmp_path))).site
    site = replace(site, interleaved=interleaved, trailing=trailing, rotary_dim=8)
    cos, sin = (part.astype(np.float32) for part in plain(32, 4))
    positions = np.array([0, 3, 31])
    x = np.random.default_rng(3).standard_normal((3, 2, 20), np.float32)
    made = tiny_model(site, x, positions, (cos, sin), interleaved=interleaved)
    assert made.op == ("plain ops" if trailing else "com.microsoft RotaryEmbedding")
    found = made.run()
    there = slice(12, 20) if trailing else slice(0, 8)
    wide = turned(x[..., there].astype(np.float64), cos[positions], sin[positions], interleaved)
    assert np.abs(found[..., there] - wide).max() < 1e-6
    still = np.ones(20, bool)
    still[there] = False
    assert np.array_equal(found[..., still], x[..., still])

    rope = Rope(
        type="default", theta=10000.0, head_dim=20, rotary_dim=8, interleaved=interleaved,
        trailing=trailing,
    )  # fmt: skip
    case = Case(site=site, rope=rope, length=32, positions=positions)
    expected, allowed = case.expected(x, np.dtype(np.float32), interleaved)
    assert np.abs(expected[..., there] - wide).max() < 1e-6
    assert (np.abs(found - expected) <= allowed).all()
    assert not allowed[..., still].any()
    assert (allowed[..., there] < 1e-4).all()


def test_a_model_that_reorders_its_entries_may_be_turned_either_way(tmp_path: Path) -> None:
    """DeepSeek V3 reorders neighbours into halves, and then turns halves: the scores are the
    same where neighbours are turned and nothing is reordered."""
    for interleaved in (False, True):
        pack = tiny_pack(
            tmp_path / str(interleaved), config={}, form="rotary_embedding",
            interleaved=interleaved,
        )  # fmt: skip
        semantics = read_semantics(pack)
        assert (semantics.pair_layout, semantics.declaration is None) == ("half-split", False)
        reordered = replace(semantics, pair_layout="de-interleaved")
        with opened(pack) as container:
            (facts,) = find(container, reordered)
            verdicts = {
                one.verdict
                for meant in (semantics, reordered)
                for one in _probed(container, meant, [facts])
            }
            assert verdicts == ({"within", "wrong"} if interleaved else {"within"})


# --- by length -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_a_short_and_a_long_table(form: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        longrope_graphs.one_if(model)

    pack = longrope_graphs.pack_of(tmp_path / "p", form=form, change=change)
    found = probe(pack)
    assert [site.verdict for site in found.sites] == ["within", "within"]
    last = {site.site.length.long: max(site.positions) for site in found.sites if site.site.length}
    assert last == {False: longrope_graphs.LIMIT - 1, True: longrope_graphs.ROWS - 1}


def test_one_table_where_the_schedule_changes_with_the_length(tmp_path: Path) -> None:
    tables = longrope_graphs.table(longrope_graphs.SHORT, longrope_graphs.ROWS)
    pack = longrope_graphs.pack_of(tmp_path / "p", form="gqa", tables=tables)
    site = the_site(probe(pack))
    assert (site.verdict, site.first_wrong_position) == ("wrong", 1)
    assert site.length == longrope_graphs.ROWS

    # Up to the original length it is right.
    genai = json.loads((pack / "genai_config.json").read_text("utf-8"))
    genai["search"]["max_length"] = longrope_graphs.LIMIT
    write_json(pack / "genai_config.json", genai)
    assert the_site(probe(pack)).verdict == "within"


@pytest.mark.parametrize(("usable", "verdict"), [(64, "within"), (65, "wrong")])
def test_dynamic_is_plain_until_it_grows(usable: int, verdict: str, tmp_path: Path) -> None:
    config = {
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 64,
    }
    pack = tiny_pack(tmp_path / "p", rows=usable, config=config)
    assert the_site(probe(pack)).verdict == verdict


# --- computed at every position ------------------------------------------------------------


@pytest.mark.parametrize("repeated", [False, True])
def test_frequencies_in_plain_ops(repeated: bool, tmp_path: Path) -> None:
    angles = plain_graphs.angles_by_mul(repeated=repeated)
    model = plain_graphs.decoder(plain_graphs.waves(angles), repeated=repeated)
    config = {"model_type": "cohere" if repeated else "llama"}
    pack = plain_graphs.write_pack(tmp_path / "p", model, **config)
    found = probe(pack)
    assert {(site.op, site.verdict) for site in found.sites} == {("plain ops", "within")}
    plain_graphs.change_config(pack, rope_theta=20000.0)
    assert {site.verdict for site in probe(pack).sites} == {"wrong"}


@pytest.mark.parametrize(("declared", "verdict"), [(None, "wrong"), (1.5, "within")])
def test_a_factor_behind_cos_and_sin(declared: float | None, verdict: str, tmp_path: Path) -> None:
    yarn = {
        "rope_type": "yarn", "factor": 4.0, "attention_factor": declared or 1.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    ramp = 10000.0 ** -(np.arange(PAIRS) / PAIRS)
    table = yarn_inverse(ramp)
    model = plain_graphs.decoder(plain_graphs.waves(plain_graphs.angles_by_mul(table), 1.5))
    pack = plain_graphs.write_pack(
        tmp_path / "p", model, rope_scaling=yarn, max_position_embeddings=ROWS
    )
    assert {site.verdict for site in probe(pack).sites} == {verdict}


def yarn_inverse(base: np.ndarray) -> np.ndarray:
    """The frequencies of `yarn_table`."""
    angles = np.arctan2(yarn_table(1.0)[1][1], yarn_table(1.0)[0][1])
    assert np.allclose(angles[0], base[0])
    return angles.astype(np.float32)


def test_angles_in_half_precision(tmp_path: Path) -> None:
    """As the fp16 converter leaves them: exact at first, wrong from some hundred on."""

    def angles(g: plain_graphs.Graph) -> str:
        inverse = g.constant(plain_graphs.PLAIN, np.float16, name="inv_freq")
        product = g.node("Mul", plain_graphs.floats(g, TensorProto.FLOAT16), inverse)
        wide = g.node("Cast", product, to=TensorProto.FLOAT)
        return plain_graphs.doubled(g, wide, False)

    model = plain_graphs.decoder(plain_graphs.waves(angles))
    pack = plain_graphs.write_pack(tmp_path / "p", model, max_position_embeddings=4096)
    found = probe(pack)
    assert {(site.site.dtype, site.verdict) for site in found.sites} == {("float16", "wrong")}
    for site in found.sites:
        # 4095 is no float16: the angle of the first pair is off by a radian.
        assert site.max_abs_error is not None
        assert site.max_abs_error > 0.5


@pytest.mark.parametrize("repeated", [False, True])
def test_rows_of_a_doubled_table(repeated: bool, tmp_path: Path) -> None:
    cos, sin = (plain_graphs.twice(part, repeated) for part in plain(64, PAIRS))
    config = {"model_type": "cohere" if repeated else "llama"}
    for name, tables in (("right", (cos, sin)), ("swapped", (sin, cos))):
        model = plain_graphs.decoder(plain_graphs.gathered(*tables), repeated=repeated)
        pack = plain_graphs.write_pack(tmp_path / name, model, **config)
        verdicts = {site.verdict for site in probe(pack).sites}
        assert verdicts == {"within" if name == "right" else "wrong"}


# --- other ops -----------------------------------------------------------------------------


def as_onnx(model: onnx.ModelProto) -> None:
    """RotaryEmbedding of ONNX in place of com.microsoft's."""
    model.opset_import[0].version = 23
    model.ir_version = 11
    for node in model.graph.node:
        if node.op_type == "RotaryEmbedding":
            x, positions, cos, sin = node.input
            heads = 2 if "k_rotary" in node.output[0] else 4
            node.domain = ""
            node.input[:] = [x, cos, sin, positions]
            node.attribute.append(helper.make_attribute("num_heads", heads))


def test_the_op_of_onnx(tmp_path: Path) -> None:
    pack = llama3_pack(tmp_path, form="rotary_embedding", change=as_onnx)
    site = the_site(probe(pack))
    assert (site.op, site.verdict) == ("RotaryEmbedding of ONNX", "within")
    wrong = tiny_pack(
        tmp_path / "w", rows=ROWS, config=LLAMA3, form="rotary_embedding", change=as_onnx
    )
    assert the_site(probe(wrong)).verdict == "wrong"


HAS_MROPE = any(
    schema.name == "MRotaryEmbedding"
    for schema in onnxruntime_pybind11_state.get_all_operator_schema()
)


@pytest.mark.parametrize(
    ("layout", "sections", "verdict"),
    [(0, [2, 3, 3], "within"), (0, [3, 2, 3], "wrong"), (1, [2, 3, 3], "wrong")],
)
def test_positions_in_three_axes(
    layout: int, sections: list[int], verdict: str, tmp_path: Path
) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "RotaryEmbedding":
                node.op_type = "MRotaryEmbedding"
                node.attribute.append(helper.make_attribute("mrope_section", sections))
                node.attribute.append(helper.make_attribute("mrope_layout", layout))

    config = {
        "model_type": "qwen2_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }
    pack = tiny_pack(tmp_path / "p", form="rotary_embedding", config=config, change=change)
    site = the_site(probe(pack))
    assert site.op == "com.microsoft MRotaryEmbedding"
    if HAS_MROPE:
        assert site.verdict == verdict
    else:
        assert site.verdict == "not probed"
        assert site.reason is not None
        assert "has no operator com.microsoft:MRotaryEmbedding" in site.reason


# --- after mending -------------------------------------------------------------------------


def by_changes_of_the_graph(folder: Path) -> dict[str, Path]:
    """Packs whose cure is more than other bytes in a table."""
    dynamic = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    one = longrope_graphs.table(longrope_graphs.SHORT, longrope_graphs.ROWS)
    form = "rotary_embedding"
    return {
        "dynamic": tiny_pack(
            folder / "dynamic", rows=128, form=form,
            config={**dynamic, "max_position_embeddings": 64},
        ),
        "longrope": longrope_graphs.pack_of(folder / "longrope", form=form, tables=one),
        "no rope": tiny_pack(
            folder / "no rope", form=form,
            config={"model_type": "smollm3", "no_rope_layers": [1, 0]},
        ),
        "too wide": tiny_pack(folder / "too wide", form=form, config=HALF),
        "rows": tiny_pack(
            folder / "rows", form=form, rows=128, tables=plain(64, PAIRS), config={}
        ),
        "pairs": tiny_pack(folder / "pairs", form=form, interleaved=True, config={}),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["dynamic", "longrope", "no rope", "too wide", "rows", "pairs"])
def test_what_mending_changes_in_a_graph_passes(name: str, tmp_path: Path) -> None:
    pack = by_changes_of_the_graph(tmp_path)[name]
    assert probe(pack).exit_code == 1
    packimport.patch(pack, tmp_path / "out")
    found = probe(tmp_path / "out")
    assert (found.verdict, found.gaps) == ("within", ()), found.text()


@pytest.mark.parametrize("name", sorted(path.name for path in PACKS.iterdir()))
def test_every_real_pack_passes_when_mended(name: str, tmp_path: Path) -> None:
    packimport.patch(PACKS / name, tmp_path / "out")
    found = probe(tmp_path / "out")
    assert (found.verdict, found.gaps) == ("within", ()), found.text()


# --- what is no site -----------------------------------------------------------------------


def test_a_node_that_is_not_read(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[7] = "computed"
        model.graph.node.insert(0, helper.make_node("Softmax", ["cos"], ["computed"], "odd"))

    found = probe(tiny_pack(tmp_path / "p", config={}, change=change))
    assert (found.verdict, found.exit_code, found.sites) == ("not probed", 3, ())
    assert all(gap.where and gap.where.startswith("GroupQueryAttention") for gap in found.gaps)


def test_layers_that_nothing_rotates(tmp_path: Path) -> None:
    tables = plain(64, PAIRS)
    found = probe(
        tiny_pack(tmp_path / "p", config={}, tables=lambda i: None if i else tables, shared=False)
    )
    assert (found.verdict, found.exit_code) == ("wrong", 1)
    (gap,) = found.gaps
    assert gap.reason == "layer 1 is declared with RoPE and nothing rotates it"


def test_an_unknown_family(tmp_path: Path) -> None:
    found = probe(tiny_pack(tmp_path / "p", config={"model_type": "nobody_knows"}))
    assert (found.verdict, found.exit_code) == ("not probed", 3)
    assert found.gaps[0].where == "config.json#/model_type: nobody_knows"


def test_a_pack_that_declares_nothing(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    with pytest.raises(ContainerError, match=r"no config declares a RoPE schedule.*--config"):
        probe(pack)
    config = tmp_path / "config.json"
    other = tiny_pack(tmp_path / "q", config={})
    config.write_bytes((other / "config.json").read_bytes())
    found = probe(pack, config=config)
    assert (found.verdict, found.declaration.file) == ("within", str(config))


def test_a_table_of_a_whole_context_goes_in_by_the_rows_that_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forward import probe_model

    fed: list[int] = []
    run = probe_model.TinyModel.run

    def watched(made: probe_model.TinyModel) -> Any:
        fed.extend(values.nbytes for values in made.feeds.values())
        return run(made)

    monkeypatch.setattr(probe_model.TinyModel, "run", watched)
    rows = 131_072
    pack = tiny_pack(tmp_path / "p", rows=rows, config={"max_position_embeddings": rows})
    site = the_site(probe(pack))
    assert site.verdict == "within"
    assert site.positions[-1] == rows - 1
    assert sum(fed) < 100_000
