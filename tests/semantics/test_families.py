"""families.yaml: sound, and complete for the configs that we have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from little_configs import FILE, config, only_rope, reading, scaled

from packimport.pack.documents import Document, load_yaml, schema_path, validate
from packimport.semantics.families import family_of, knowledge

TESTS = Path(__file__).parent.parent
FAMILIES = knowledge().require("families").fields()


def test_the_file_obeys_its_schema() -> None:
    validate(load_yaml(schema_path("families.yaml")), "families.schema.json", "families.yaml")


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_names_lead_somewhere(name: str) -> None:
    entry = FAMILIES[name]
    for field in ("like", "text"):
        other = entry.get(field)
        assert other is None or other.text() in FAMILIES


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_label_has_a_schedule(name: str) -> None:
    """Also those of patterns, which no config names and no reader can refuse."""
    parts = [FAMILIES[name]]
    variants = FAMILIES[name].get("variants")
    if variants is not None:
        cases = variants.get("cases")
        parts += [] if cases is None else list(cases.fields().values())
        parts += [case for key in ("absent", "other") if (case := variants.get(key)) is not None]
    for part in parts:
        layers, schedules = part.get("layers"), part.get("schedules")
        if layers is None:
            continue
        assert schedules is not None
        assert labels(layers) <= set(schedules.fields())


def labels(layers: Document) -> set[str]:
    """The labels that a rule itself gives to layers."""
    found = {layers.require(key).text() for key in ("all", "ends") if layers.has(key)}
    every = layers.get("every")
    if every is not None:
        keys = ("first", "last", "others")
        found |= {every.require(key).text() for key in keys if every.has(key)}
    for entry in layers.require("lists").items() if layers.has("lists") else ():
        keys = ("inside", "outside", "set", "unset")
        found |= {entry.require(key).text() for key in keys if entry.has(key)}
        if entry.has("labels"):
            found |= {node.text() for node in entry.require("labels").fields().values()}
    return found


@pytest.mark.parametrize(
    "name", [n for n in sorted(FAMILIES) if not FAMILIES[n].has("unsupported")]
)
def test_every_rotating_family_has_a_base(name: str) -> None:
    # Baichuan needs a size to tell its variants apart.
    family = family_of(Document("x", {"model_type": name, "hidden_size": 4096}))
    schedules = family.get("schedules")
    specs = [] if schedules is None else list(schedules.fields().values())
    rotating = [spec for spec in specs if spec.value != "none"]
    assert (
        family.still
        or FAMILIES[name].has("text")
        or family.get("theta") is not None
        or all(spec.has("theta") for spec in rotating)
    )


def test_every_model_type_of_the_configs_is_known() -> None:
    rows = json.loads((TESTS / "data" / "rope_configs.json").read_text(encoding="utf-8"))
    configs = [row["config"] for row in rows]
    configs += [c["text_config"] for c in configs if "text_config" in c]
    configs += [
        json.loads(path.read_text(encoding="utf-8"))
        for path in (TESTS / "packs").glob("*/config.json")
    ]
    names = {value["model_type"] for value in configs if "model_type" in value}
    assert names <= set(FAMILIES)
    for value in configs:
        if "model_type" in value and "_first8" not in json.dumps(value):
            validate(value, "config.schema.json", str(value["model_type"]))


def test_regular_expressions_compile() -> None:
    for key in ("suspicious", "patterns"):
        assert re.compile(knowledge().require(key).text()).search("hidden_size") is None


# --- what stands beside a nested text config ---------------------------------------------------


def nesting(outer: dict[str, Any], **inner: Any) -> dict[str, Any]:
    """A config of a model of images and text; its text model is nested."""
    return {"model_type": "mistral3", **outer, "text_config": config("mistral", **inner)}


def test_keys_beside_a_nested_config_are_said_not_to_count() -> None:
    found = reading(nesting({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}))
    assert {rope.type for rope in found.layers if rope} == {"default"}
    (note,) = found.notes
    assert note.startswith(f"{FILE}#/text_config counts, as in transformers: /rope_scaling beside")
    # Saying the same is no contradiction; an empty block says nothing.
    same = nesting({"rope_theta": 1e6, "rope_scaling": {}}, rope_theta=1e6)
    assert reading(same).notes == ()


def test_keys_that_contradict_the_nested_config_are_named() -> None:
    found = reading(nesting({"rope_theta": 5e5}, rope_theta=1e6))
    assert {rope.theta for rope in found.layers if rope} == {1e6}
    (note,) = found.notes
    assert "/rope_theta, which contradicts it, beside it is not read" in note


def test_nemotron_that_was_plain_before_transformers_5() -> None:
    """transformers 4.57.1 has rope_type "default" in its code; 5.24.0 applies the block."""
    block = {"type": "linear", "factor": 4.0}
    scaled = reading(config("nemotron", rope_scaling=block))
    assert {rope.type for rope in scaled.layers if rope} == {"linear"}
    (note,) = scaled.notes
    assert note.startswith("transformers before 5 rotates nemotron plainly")
    assert reading(config("nemotron")).notes == ()


@pytest.mark.parametrize("name", ["phi3", "phi4_multimodal"])
def test_the_original_length_that_phi3_implies(name: str) -> None:
    """transformers 5.24.0: the class has the key, 4096, which counts over that of the block."""
    value = scaled("longrope", name, original_max_position_embeddings=...)
    assert only_rope(value).original_max_position_embeddings == 4096
    value = scaled("longrope", name, original_max_position_embeddings=16384)
    assert only_rope(value).original_max_position_embeddings == 4096
    assert any("16384" in note and "4096" in note for note in reading(value).notes)
    value["original_max_position_embeddings"] = 8192
    assert only_rope(value).original_max_position_embeddings == 8192


@pytest.mark.parametrize("name", ["ministral3", "mistral4"])
def test_what_acts_by_position_and_is_no_rotation(name: str) -> None:
    """transformers 5.24.0 multiplies each query by 1 + beta ln(1 + floor(position / original))."""
    sizes = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 64} if name == "mistral4" else {}
    for beta, count in ((0.1, 1), (0, 0), (None, 0)):
        value = {**scaled("yarn", name, llama_4_scaling_beta=beta), **sizes}
        notes = [note for note in reading(value).notes if "llama_4_scaling_beta" in note]
        assert len(notes) == count
        assert all("is no rotation, and is not judged" in note for note in notes)
