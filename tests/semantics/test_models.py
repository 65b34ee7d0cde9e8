"""Known models, by id and by the sizes of a pack."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from little_configs import reading

from packimport.errors import UsageError
from packimport.pack.documents import load_yaml, schema_path, validate
from packimport.semantics.describe import describe
from packimport.semantics.model import Semantics
from packimport.semantics.models import fitting_models, known_models, model_config
from packimport.semantics.reader import read_model

ROWS = {
    row["model"]: row["config"]
    for row in json.loads(
        (Path(__file__).parent.parent / "data" / "rope_configs.json").read_text(encoding="utf-8")
    )
}


def semantics(**sizes: int) -> Semantics:
    """A pack that declares nothing and states these sizes."""
    return Semantics(
        model_type=None, declaration=None, layers=(), layer_sources=(), sources={}, **sizes
    )


def test_the_file_obeys_its_schemas() -> None:
    value = load_yaml(schema_path("models.yaml"))
    validate(value, "models.schema.json", "models.yaml")
    assert isinstance(value, dict)
    for name, config in value["models"].items():
        validate(config, "config.schema.json", name)


@pytest.mark.parametrize("name", known_models())
def test_every_known_model_is_read(name: str) -> None:
    found = reading(model_config(name).value)
    assert found.declared is not None
    assert [note for note in found.notes if "llama_4_scaling_beta" not in note] == []


@pytest.mark.parametrize("name", sorted(set(ROWS) & set(known_models())))
def test_known_models_say_what_their_configs_say(name: str) -> None:
    known, published = reading(model_config(name).value), reading(ROWS[name])
    assert [describe(rope) for rope in known.layers] == [
        describe(rope) for rope in published.layers
    ]
    # These two rows leave the length of the context out.
    if name not in ("THUDM/chatglm3-6b", "EleutherAI/gpt-j-6b"):
        assert known.layers == published.layers


def test_most_rows_are_known_models() -> None:
    assert len(set(ROWS) & set(known_models())) >= 47


def test_ids_are_found_whatever_their_case() -> None:
    assert model_config("QWEN/qwen3-0.6B") == model_config("Qwen/Qwen3-0.6B")


def test_an_unknown_id_names_near_ones() -> None:
    with pytest.raises(UsageError) as caught:
        model_config("qwen/qwen3-9b")
    # Any known id is allowed: those that are near are no list of what may stand there.
    assert caught.value.allowed is None
    assert re.search("The nearest of [0-9]+ ids: .*Qwen/Qwen3-8B", str(caught.value))
    assert "`packimport show --models` prints all ids" in str(caught.value)
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="packimport show --models") as caught:
        model_config("foo")
    some = f"None of {len(known_models())} ids is near; some: {known_models()[0]}, "
    assert some in str(caught.value)


def test_models_that_fit_a_pack() -> None:
    # The sizes of data/genai/ryzenai-1.6-npu.genai_config.json.
    found = fitting_models(
        semantics(
            head_dim=128,
            hidden_size=1536,
            num_attention_heads=12,
            num_key_value_heads=2,
            num_hidden_layers=28,
        )
    )
    assert found == (
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "Qwen/Qwen2.5-1.5B-Instruct",
    )


def test_a_family_default_fits_too() -> None:
    # google/gemma-3-4b-it's published config states neither heads nor their size.
    found = fitting_models(
        semantics(head_dim=256, hidden_size=2560, num_attention_heads=8, num_hidden_layers=34)
    )
    assert found == ("google/gemma-3-4b-it",)


def test_nothing_fits_a_pack_without_sizes() -> None:
    assert fitting_models(semantics(hidden_size=1536)) == ()
    assert fitting_models(semantics(head_dim=7, num_hidden_layers=28)) == ()


def test_a_known_model_that_declares_is_named_as_it_is_written() -> None:
    declaration = read_model("QWEN/qwen3-0.6B").declaration
    assert declaration is not None
    assert declaration.named == "the known model Qwen/Qwen3-0.6B"
    assert declaration.file == "models.yaml"
