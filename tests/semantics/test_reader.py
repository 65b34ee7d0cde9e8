"""A pack's configs as Semantics: which declaration counts, lengths, graphs, foreign configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from little_configs import config, scaled

from packimport.errors import DocumentError, UsageError
from packimport.pack.documents import validate
from packimport.semantics.model import Semantics
from packimport.semantics.reader import read_config, read_semantics, source_config

TESTS = Path(__file__).parent.parent
PACKS = TESTS / "packs"


class FakeContainer:
    """The files of a pack, in memory."""

    def __init__(self, **files: object) -> None:
        self._files = {f"{name}.json": json.dumps(value).encode() for name, value in files.items()}

    def has(self, name: str, /) -> bool:
        return name in self._files

    def read_bytes(self, name: str, /, limit: int) -> bytes:
        assert len(self._files[name]) <= limit
        return self._files[name]


def genai(**decoder: object) -> dict[str, object]:
    """A genai_config.json for `little_configs.config`."""
    sizes = {
        "filename": "model.onnx",
        "head_size": 64,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
    }
    return {
        "model": {"type": "llama", "context_length": 32768, "decoder": {**sizes, **decoder}},
        "search": {"max_length": 32768},
    }


def declared(semantics: Semantics) -> tuple[str, str] | None:
    """Origin and type of the declaration that counts."""
    if semantics.declaration is None:
        return None
    (rope,) = set(semantics.layers)
    assert rope is not None
    return semantics.declaration.origin, rope.type


def manifest(value: dict[str, object]) -> dict[str, object]:
    declaration = {"file": "elsewhere.json", "origin": "--config", "config": value}
    return {"schema_version": 1, "declaration": declaration}


def write(folder: Path, value: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_the_packs_config_counts_last(tmp_path: Path) -> None:
    own = FakeContainer(config=scaled("linear"), genai_config=genai())
    assert declared(read_semantics(own)) == ("config.json", "linear")
    both = FakeContainer(config=scaled("linear"), packimport=manifest(scaled("llama3")))
    assert declared(read_semantics(both)) == ("packimport.json", "llama3")
    path = write(tmp_path, scaled("yarn"))
    assert declared(read_semantics(both, path)) == ("--config", "yarn")
    assert declared(read_semantics(both, tmp_path)) == ("--config", "yarn")
    assert declared(read_semantics(both, str(path))) == ("--config", "yarn")


def test_a_loser_that_says_otherwise_is_named(tmp_path: Path) -> None:
    both = FakeContainer(config=scaled("linear"), packimport=manifest(scaled("llama3")))
    (note,) = read_semantics(both).notes
    assert "config.json declares linear" in note
    assert "packimport.json declares llama3" in note
    notes = read_semantics(both, write(tmp_path, scaled("yarn"))).notes
    assert len(notes) == 2
    same = FakeContainer(config=scaled("linear"), packimport=manifest(scaled("linear")))
    assert read_semantics(same).notes == ()


@pytest.mark.parametrize("value", [{}, {"name": "another tool"}])
def test_a_manifest_of_something_else_is_refused(value: dict[str, object]) -> None:
    pack = FakeContainer(config=scaled("linear"), packimport=value)
    with pytest.raises(DocumentError, match="a file that packimport wrote") as caught:
        read_semantics(pack)
    assert caught.value.place == "packimport.json#/schema_version"


def test_a_longer_context_alone_is_no_contradiction() -> None:
    longer = scaled("llama3") | {"max_position_embeddings": 65536}
    both = FakeContainer(config=longer, packimport=manifest(scaled("llama3")))
    assert read_semantics(both).notes == ()


def test_a_loser_that_is_not_understood_is_named_and_does_not_count(tmp_path: Path) -> None:
    pack = FakeContainer(config=config(rope_scaling={"rope_type": "spiral"}))
    semantics = read_semantics(pack, write(tmp_path, scaled("yarn")))
    assert declared(semantics) == ("--config", "yarn")
    assert "spiral" in semantics.notes[0]
    with pytest.raises(DocumentError, match="spiral"):
        read_semantics(pack)


UNDECLARED = {"packimport": {"schema_version": 1, "declaration": None}}


@pytest.mark.parametrize("files", [{}, {"config": {}}, UNDECLARED])
def test_nothing_declared(files: dict[str, object]) -> None:
    semantics = read_semantics(FakeContainer(genai_config=genai(), **files))
    assert semantics.declaration is None
    assert semantics.layers == ()
    assert (semantics.head_dim, semantics.num_hidden_layers) == (64, 2)
    assert str(semantics.sources["head_dim"]) == "genai_config.json#/model/decoder/head_size"


def test_config_and_model_at_once_is_wrong_usage(tmp_path: Path) -> None:
    path = write(tmp_path, config())
    with pytest.raises(UsageError, match="both"):
        read_semantics(FakeContainer(), path, "Qwen/Qwen3-0.6B")


def test_a_config_that_the_user_names_must_not_be_empty(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="empty"):
        read_semantics(FakeContainer(config=config()), write(tmp_path, {}))


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="can't be read"):
        read_semantics(FakeContainer(), tmp_path / "none.json")


def test_a_known_model_declares() -> None:
    semantics = read_semantics(FakeContainer(), None, "qwen/qwen3-0.6b")
    assert declared(semantics) == ("--model", "default")
    assert str(semantics.layer_sources[0]["theta"]) == (
        "models.yaml#/models/Qwen~1Qwen3-0.6B/rope_theta"
    )


def test_the_source_config_as_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, scaled("yarn"))
    assert source_config(path, None) == path.read_bytes()
    assert source_config(tmp_path, None) == path.read_bytes()
    assert source_config(None, None) is None
    written = source_config(None, "Qwen/Qwen3-0.6B")
    assert written is not None
    assert read_config(write(tmp_path, json.loads(written))).model_type == "qwen3"


def test_a_bare_config_by_its_path(tmp_path: Path) -> None:
    path = write(tmp_path, scaled("llama3"))
    for semantics in (read_config(path), read_semantics(path), read_semantics(str(path))):
        assert declared(semantics) == ("config.json", "llama3")
        assert semantics.declaration is not None
        assert semantics.declaration.file == str(path)


def test_a_bare_config_takes_no_other_declaration(tmp_path: Path) -> None:
    path = write(tmp_path, scaled("llama3"))
    for config_, model in ((path, None), (None, "Qwen/Qwen3-0.6B")):
        with pytest.raises(UsageError, match="for itself"):
            read_semantics(path, config_, model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("head_size", 128),
        ("num_hidden_layers", 3),
        ("num_attention_heads", 8),
        ("hidden_size", 512),
    ],
)
def test_a_foreign_config_is_refused(key: str, value: int) -> None:
    pack = FakeContainer(config=config(), genai_config=genai(**{key: value}))
    with pytest.raises(DocumentError, match="another model") as caught:
        read_semantics(pack)
    assert caught.value.place == f"genai_config.json#/model/decoder/{key}"
    assert caught.value.fix is not None
    assert "--config" in caught.value.fix


def test_another_number_of_kv_heads_is_a_note() -> None:
    pack = FakeContainer(config=config(), genai_config=genai(num_key_value_heads=4))
    (note,) = read_semantics(pack).notes
    assert "num_key_value_heads says 4" in note


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_kv_heads_that_are_no_repetition_are_another_models(heads: int) -> None:
    """Of 4 heads the config has 2 for the key: 4 may be those, each twice; no other number."""
    pack = FakeContainer(config=config(), genai_config=genai(num_key_value_heads=heads))
    with pytest.raises(DocumentError, match="another model") as caught:
        read_semantics(pack)
    assert caught.value.place == "genai_config.json#/model/decoder/num_key_value_heads"


def test_genai_config_gives_sizes_that_the_config_leaves_out() -> None:
    short = config(num_hidden_layers=..., head_dim=..., hidden_size=...)
    semantics = read_semantics(FakeContainer(config=short, genai_config=genai()))
    assert len(semantics.layers) == 2
    assert semantics.head_dim == 64


def test_either_head_size_of_gemma4_fits() -> None:
    value = config("gemma4_text", num_hidden_layers=6, head_dim=256, rope_theta=...)
    for size in (256, 512):
        pack = FakeContainer(config=value, genai_config=genai(head_size=size, num_hidden_layers=6))
        assert len(read_semantics(pack).layers) == 6


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 32768),
        ({"session_options": {"config_entries": {"max_length_for_kv_cache": "4096"}}}, 4096),
        (
            {
                "session_options": {
                    "provider_options": [{"RyzenAI": {"hybrid_opt_max_seq_length": "2048"}}],
                    "config_entries": {"max_length_for_kv_cache": 4096},
                }
            },
            2048,
        ),
        (
            {
                "pipeline": [
                    {
                        "prefill": {
                            "filename": "prefill.onnx",
                            "session_options": {
                                "config_entries": {"hybrid_opt_max_seq_length": "1024"}
                            },
                        }
                    }
                ]
            },
            1024,
        ),
    ],
)
def test_usable_length(keys: dict[str, object], expected: int) -> None:
    semantics = read_semantics(FakeContainer(genai_config=genai(**keys)))
    assert (semantics.context_length, semantics.usable_length) == (32768, expected)


def test_search_limits_the_length_unless_it_is_zero() -> None:
    value = genai()
    value["search"] = {"max_length": 512}
    semantics = read_semantics(FakeContainer(genai_config=value))
    assert semantics.usable_length == 512
    assert str(semantics.sources["usable_length"]) == "genai_config.json#/search/max_length"
    value["search"] = {"max_length": 0}
    assert read_semantics(FakeContainer(genai_config=value)).usable_length == 32768


@pytest.mark.parametrize(
    "value",
    ["", "4k", "-1", "0", "000", "4096.0", 0, -1, 1.5, True, "٤", "9" * 5000, "9" * 17, 10**17],
)
def test_a_length_that_is_none(value: object) -> None:
    options = {"config_entries": {"hybrid_opt_max_seq_length": value}}
    with pytest.raises(DocumentError, match="config_entries/hybrid_opt_max_seq_length"):
        read_semantics(FakeContainer(genai_config=genai(session_options=options)))


def test_graphs_of_a_pipeline() -> None:
    stages = [{"embed": {"filename": "a.onnx"}}, {"body": {"filename": "sub/b.onnx"}}, {"x": {}}]
    pack = FakeContainer(genai_config=genai(filename=None, pipeline=stages))
    assert read_semantics(pack).graphs == ("a.onnx", "sub/b.onnx")


@pytest.mark.parametrize(
    "name",
    ["/model.onnx", "../model.onnx", "a/../b.onnx", "a//b.onnx", "", ".", "C:/x.onnx", "C:x.onnx",
     "a\\b.onnx", "a\0.onnx", "con"],
)  # fmt: skip
def test_a_graph_outside_the_pack(name: str) -> None:
    with pytest.raises(DocumentError, match="decoder/filename: not a plain path"):
        read_semantics(FakeContainer(genai_config=genai(filename=name)))


# What each pack's config.json declares, by eye.
LLAMA3 = ("llama3", 500000.0, 32.0)
EXPECTED = {
    "amd-oga-0.7.0.1-llama3-int4-dml": [LLAMA3] * 2,
    "oga-0.11.2-gemma3": [("default", 1e4, None)] * 5 + [("linear", 1e6, 8.0)],
    "oga-0.11.2-llama3": [LLAMA3] * 2,
    "oga-0.11.2-smollm3": [("default", 2e6, None)] * 3 + [None],
    "oga-0.18.0-linear": [("linear", 1e4, 4.0)] * 2,
    "oga-0.18.0-llama3-int4": [LLAMA3] * 2,
    "oga-0.18.0-longrope-dml": [("longrope", 1e4, None)] * 2,
    "oga-0.18.0-longrope-if": [("longrope", 1e4, None)] * 2,
    "oga-0.18.0-qwen3": [("default", 1e6, None)] * 2,
    "optimum-0.1.0-llama3": [LLAMA3] * 2,
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_real_packs(name: str) -> None:
    semantics = read_semantics(PACKS / name)
    found = [rope and (rope.type, rope.theta, rope.factor) for rope in semantics.layers]
    assert found == EXPECTED[name]
    assert {rope.rotary_dim for rope in semantics.layers if rope is not None} == {16}
    assert semantics.notes == ()
    if name == "optimum-0.1.0-llama3":
        assert (semantics.usable_length, semantics.graphs) == (None, ())
    else:
        length = 2048 if found[0] == LLAMA3 else 1024
        assert (semantics.usable_length, semantics.graphs) == (length, ("model.onnx",))


def test_packs_are_all_expected() -> None:
    assert {path.name for path in PACKS.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize(
    ("name", "usable", "context", "graph", "head"),
    [
        ("ryzenai-1.6-npu", 4096, 32768, "fusion.onnx", 128),
        ("ryzenai-1.7-hybrid", 4096, 8192, "model_jit.onnx", 64),
    ],
)
def test_real_genai_configs(name: str, usable: int, context: int, graph: str, head: int) -> None:
    path = TESTS / "data" / "genai" / f"{name}.genai_config.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    validate(value, "genai_config.schema.json", path.name)
    semantics = read_semantics(FakeContainer(genai_config=value, config={}))
    assert (semantics.usable_length, semantics.context_length) == (usable, context)
    assert (semantics.graphs, semantics.head_dim) == ((graph,), head)


def test_hostile_json_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"rope_theta": 1, "rope_theta": 2}', encoding="utf-8")
    with pytest.raises(DocumentError, match="stands twice") as caught:
        read_config(path)
    assert caught.value.place == f"{path}#/rope_theta"


def test_as_json() -> None:
    value = read_semantics(PACKS / "oga-0.11.2-gemma3").to_dict()
    assert json.loads(json.dumps(value)) == value
    ropes = value["ropes"]
    assert isinstance(ropes, list)
    assert [rope["layers"] for rope in ropes] == [[0, 1, 2, 3, 4], [5]]
    assert ropes[1]["rope"] == {
        "type": "linear",
        "theta": 1000000.0,
        "head_dim": 16,
        "rotary_dim": 16,
        "interleaved": False,
        "trailing": False,
        "max_position_embeddings": 1024,
        "factor": 8.0,
    }
    assert ropes[0]["sources"]["theta"] == "config.json#/rope_local_base_freq"
    assert value["declaration"] == {"file": "config.json", "origin": "config.json"}
    assert value["usable_length"] == 1024
    smol = read_semantics(PACKS / "oga-0.11.2-smollm3").to_dict()["ropes"]
    assert isinstance(smol, list)
    assert (smol[1]["layers"], smol[1]["rope"]) == ([3], None)
