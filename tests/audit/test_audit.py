"""Each check fires where it should, and nowhere else. Packs are built by tests/builders.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Tables, plain, tiny_pack
from llama3 import llama3, tables_of

from packimport import check
from packimport.audit.report import Report
from packimport.errors import DocumentError
from packimport.pack.documents import Document

BLOCK = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIG = {"rope_theta": 500000.0, "rope_scaling": BLOCK, "max_position_embeddings": 256}


def right(rows: int = 256, original: int = 64, theta: float = 500000.0) -> Tables:
    cos, sin = tables_of(llama3(8, theta, 32.0, 1.0, 4.0, original), rows)
    return cos, sin


def codes(report: Report) -> list[str]:
    return [f.code for f in report.findings]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("inline", [False, True], ids=["external", "inline"])
def test_a_right_pack_is_ok(tmp_path: Path, dtype: str, form: str, inline: bool) -> None:
    pack = tiny_pack(
        tmp_path / "p", rows=256, tables=right(), config=CONFIG, dtype=dtype, form=form,
        inline=inline,
    )  # fmt: skip
    report = check(pack)
    assert (report.verdict, report.exit_code, codes(report)) == ("ok", 0, [])
    (judged,) = report.sites
    assert judged.site.layers == (0, 1)
    assert judged.measurement.baked_as == "llama3"
    assert judged.measurement.wrong_pairs == 0
    assert judged.measurement.max_ratio == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_plain_table_is_a_mismatch(tmp_path: Path, dtype: str) -> None:
    pack = tiny_pack(
        tmp_path / "p", rows=256, tables=plain(256, 8, 500000.0), config=CONFIG, dtype=dtype
    )
    report = check(pack)
    assert (report.verdict, report.exit_code, codes(report)) == ("mismatch", 1, ["RPE001"])
    m = report.sites[0].measurement
    assert m.baked_as == "default"
    assert m.mistake == "llama3-lost"
    expected = llama3(8, 500000.0, 32.0, 1.0, 4.0, 64)
    gap = 500000.0 ** -(np.arange(8) / 8) - expected
    wrong = int(np.sum(gap > 1e-9))
    assert 0 < wrong < 8
    assert m.wrong_pairs == wrong
    assert m.max_ratio == pytest.approx(32.0, rel=1e-5)
    assert dict(m.angle_error) == pytest.approx({p: p * gap.max() for p in (128, 255)}, rel=1e-5)
    assert m.first_bad_position == int(np.argmax(np.arange(256) * gap.max() > 0.1))


def test_the_original_length_of_another_field(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=256, tables=right(original=256), config=CONFIG)
    m = check(pack).sites[0].measurement
    assert m.baked_as == "llama3 with original_max_position_embeddings 256"
    assert m.mistake == "llama3-original-max"


def test_a_single_damaged_entry_is_seen_and_never_called_right(tmp_path: Path) -> None:
    cos, sin = right(4096)
    cos = cos.copy()
    cos[2741, 3] += 1e-4  # a row that naming by samples need not look at
    pack = tiny_pack(tmp_path / "p", rows=4096, tables=(cos, sin), config=CONFIG)
    report = check(pack)
    m = report.sites[0].measurement
    assert report.verdict == "mismatch"
    assert m.wrong_pairs == 1
    assert m.baked_as != "llama3"
    assert m.max_abs_cos_error == pytest.approx(1e-4, rel=1e-2)


def test_nothing_declared(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=256, tables=right())
    report = check(pack)
    assert (report.verdict, report.exit_code, codes(report)) == ("undeclared", 1, ["RPE002"])
    m = report.sites[0].measurement
    assert m.baked_as.startswith("llama3 with ")
    # Nothing says which of the many parameters that make this table are meant.
    assert m.baked_as.endswith(", among others that fit")
    assert m.equivalents[-1] == (
        "llama3 with low_freq_factor 2, high_freq_factor 8, original_max_position_embeddings 128"
    )
    for line in ("among others that fit", f"    same as     {'; '.join(m.equivalents)}"):
        assert line in report.text()
    assert m.wrong_pairs is None


def test_known_models_that_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"head_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    known = {
        "some/twin": {"model_type": "llama", **sizes},
        "some/deeper": {"model_type": "llama", **sizes, "num_hidden_layers": 3},
    }
    monkeypatch.setattr(
        "packimport.semantics.models._models",
        lambda: {name: Document("models.yaml", config) for name, config in known.items()},
    )
    (found,) = check(tiny_pack(tmp_path / "p", rows=256, tables=right())).findings
    assert found.fix is not None
    assert "--model" in found.fix
    assert "some/twin" in found.fix
    assert "some/deeper" not in found.fix


def test_an_empty_config_declares_nothing(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    (pack / "config.json").write_text("{}", encoding="utf-8")
    assert check(pack).verdict == "undeclared"


def test_config_names_the_declaration(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=256, tables=right())
    source = tiny_pack(tmp_path / "source", rows=256, config=CONFIG)
    for given in (source, source / "config.json"):
        report = check(pack, config=given)
        assert report.verdict == "ok"
        assert report.to_dict()["container"]["config"] == str(source / "config.json")  # type: ignore[index]  # JSON


def test_another_config_than_the_packs_own_wins_and_the_report_says_so(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=256, tables=right(), config={"rope_theta": 1e4})
    source = tiny_pack(tmp_path / "source", rows=256, config=CONFIG)
    report = check(pack, config=source)
    assert report.verdict == "ok"
    assert codes(report) == ["RPE014"]
    assert "config.json" in report.findings[0].message


def test_a_foreign_config_is_refused(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=256, tables=right())
    other = tiny_pack(tmp_path / "other", rows=256, layers=3, config=CONFIG)
    with pytest.raises(DocumentError, match="num_hidden_layers"):
        check(pack, config=other)


def test_tables_of_different_layers_are_sites_of_their_own(tmp_path: Path) -> None:
    def tables(layer: int) -> Tables:
        return right() if layer == 0 else plain(256, 8, 500000.0)

    pack = tiny_pack(tmp_path / "p", rows=256, tables=tables, shared=False, config=CONFIG)
    report = check(pack)
    assert [s.measurement.wrong_pairs == 0 for s in report.sites] == [True, False]
    assert codes(report) == ["RPE001"]
    assert report.findings[0].where is not None
    assert "cos_1" in report.findings[0].where


def test_a_layer_that_nothing_rotates(tmp_path: Path) -> None:
    pack = tiny_pack(
        tmp_path / "p", rows=256, tables=lambda layer: right() if layer else None, config=CONFIG
    )
    report = check(pack)
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE006"])


def test_a_layer_that_should_not_rotate(tmp_path: Path) -> None:
    # SmolLM3 leaves layers without RoPE; 1 means RoPE, 0 means none.
    config = {
        "model_type": "smollm3",
        "rope_theta": 10000.0,
        "no_rope_layers": [1, 0],
        "no_rope_layer_interval": 2,
    }
    report = check(tiny_pack(tmp_path / "p", config=config))
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE005"])
    assert "layer 1 " in report.findings[0].message


def test_pairs_that_lie_otherwise(tmp_path: Path) -> None:
    report = check(tiny_pack(tmp_path / "p", config={}, interleaved=True))
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE007"])


# DeepSeek V3's class sorts each head's pairs apart and then turns halves, unless `rope_interleave`
# is false (transformers 5.24.0, `apply_rotary_pos_emb_interleave`): the scores are those of turned
# neighbours.
SORTED = {"model_type": "deepseek_v3", "qk_rope_head_dim": 16, "qk_nope_head_dim": 0}


@pytest.mark.parametrize("interleaved", [True, False])
def test_pairs_that_the_model_sorts_apart_lie_either_way(tmp_path: Path, interleaved: bool) -> None:
    report = check(tiny_pack(tmp_path / "p", config=SORTED, interleaved=interleaved))
    assert (report.verdict, codes(report)) == ("ok", [])
    left = {**SORTED, "rope_interleave": False}
    report = check(tiny_pack(tmp_path / "left", config=left, interleaved=interleaved))
    assert codes(report) == (["RPE007"] if interleaved else [])


def test_a_table_of_another_width(tmp_path: Path) -> None:
    report = check(tiny_pack(tmp_path / "p", config={}, form="rotary_embedding", rotary_dim=8))
    assert report.verdict == "mismatch"
    assert set(codes(report)) == {"RPE008"}
    assert report.sites[0].measurement.wrong_pairs is None


def test_too_few_rows(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=64, config={"max_position_embeddings": 128})
    text = (pack / "genai_config.json").read_text(encoding="utf-8")
    (pack / "genai_config.json").write_text(
        text.replace('"context_length": 64', '"context_length": 128'), encoding="utf-8"
    )
    report = check(pack)  # max_length is 64: the usable length is within the table
    assert (report.verdict, codes(report)) == ("ok", ["RPE010"])
    text = (pack / "genai_config.json").read_text(encoding="utf-8")
    (pack / "genai_config.json").write_text(
        text.replace('"max_length": 64', '"max_length": 100'), encoding="utf-8"
    )
    report = check(pack)
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE009"])


def test_one_table_for_two_schedules(tmp_path: Path) -> None:
    # Gemma 3: sliding layers are plain with rope_local_base_freq.
    config = {
        "model_type": "gemma3_text",
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 16,
    }
    report = check(tiny_pack(tmp_path / "p", config=config))
    assert report.verdict == "mismatch"
    assert "RPE011" in codes(report)


def test_dynamic_is_one_table_up_to_its_length(tmp_path: Path) -> None:
    block = {"rope_type": "dynamic", "factor": 4.0}
    short = tiny_pack(tmp_path / "short", config={"rope_scaling": block})
    assert check(short).verdict == "ok"
    long = tiny_pack(
        tmp_path / "long", config={"rope_scaling": block, "max_position_embeddings": 32}
    )
    report = check(long)
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE012"])


def test_a_form_that_is_not_understood_is_refused_once_per_reason(tmp_path: Path) -> None:
    def behind_a_cast(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[7] = "shifted"
        node = onnx.helper.make_node("Neg", ["cos"], ["shifted"], "/neg")
        model.graph.node.insert(0, node)

    report = check(tiny_pack(tmp_path / "p", config={}, change=behind_a_cast))
    assert (report.verdict, report.exit_code, codes(report)) == ("unsupported", 3, ["RPE003"])
    assert "Neg" in report.findings[0].message
    assert report.findings[0].where is not None
    assert report.findings[0].where.endswith("and 1 more")


def test_a_graph_with_another_number_of_layers(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", layers=3, config={"num_hidden_layers": 2})
    text = (pack / "genai_config.json").read_text(encoding="utf-8")
    (pack / "genai_config.json").write_text(
        text.replace('"num_hidden_layers": 3', '"num_hidden_layers": 2'), encoding="utf-8"
    )
    report = check(pack)
    assert report.verdict == "unsupported"
    assert "RPE013" in codes(report)


def test_a_graph_without_attention(tmp_path: Path) -> None:
    def cut(model: onnx.ModelProto) -> None:
        del model.graph.node[:]
        model.graph.node.append(onnx.helper.make_node("Identity", ["input_ids"], ["logits"]))

    report = check(tiny_pack(tmp_path / "p", config={}, change=cut))
    assert (report.verdict, codes(report)[-1]) == ("unsupported", "RPE004")


def mutations() -> dict[str, Any]:
    return {"sin negated": lambda c, s: (c, -s), "swapped": lambda c, s: (s, c)}


@pytest.mark.parametrize("name", sorted(mutations()))
def test_no_false_ok(tmp_path: Path, name: str) -> None:
    tables = mutations()[name](*right())
    report = check(tiny_pack(tmp_path / "p", rows=256, tables=tables, config=CONFIG))
    assert report.verdict == "mismatch"
    assert report.sites[0].measurement.baked_as != "llama3"


def test_an_unknown_family_is_never_ok(tmp_path: Path) -> None:
    # transformers 5.24.0's cohere2_moe pairs neighbours: a half-split graph is wrong for it.
    pack = tiny_pack(tmp_path / "p", rows=256, tables=right(), config=CONFIG)
    text = (pack / "config.json").read_text(encoding="utf-8")
    (pack / "config.json").write_text(
        text.replace('"model_type": "llama"', '"model_type": "cohere2_moe"'), encoding="utf-8"
    )
    report = check(pack)
    assert (report.verdict, report.exit_code, codes(report)) == ("unsupported", 3, ["RPE027"])
    assert report.sites[0].measurement.wrong_pairs == 0
