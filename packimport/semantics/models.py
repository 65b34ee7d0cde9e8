"""Known models: the RoPE config of well-known checkpoints, from schemas/models.yaml."""

from __future__ import annotations

import difflib
from functools import cache

from packimport.errors import UsageError
from packimport.pack.documents import Document, load_yaml, schema_path
from packimport.semantics.dimensions import read_dimensions
from packimport.semantics.families import family_of
from packimport.semantics.genai import EMPTY
from packimport.semantics.model import Semantics

FILE = "models.yaml"
_COMPARED = (
    "head_dim",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
)


@cache
def _models() -> dict[str, Document]:
    return Document(FILE, load_yaml(schema_path(FILE), FILE)).require("models").fields()


def known_models() -> tuple[str, ...]:
    """The ids of the known models, in the order of the file."""
    return tuple(_models())


def model_config(model: str) -> Document:
    """The config of the known model of that id. Raises UsageError as `known_id` does."""
    return _models()[known_id(model)]


def known_id(model: str) -> str:
    """The id of a known model as it is written; case counts for nothing.

    Raises UsageError, naming the nearest ids, where there is none.
    """
    ids = {name.lower(): name for name in known_models()}
    found = ids.get(model.lower())
    if found is not None:
        return found
    near = difflib.get_close_matches(model.lower(), ids, n=5, cutoff=0.5)
    raise UsageError(
        "no known model has this id",
        place="--model",
        found=model,
        fix=f"{_nearest([ids[name] for name in near])} `packimport show --models` prints all ids."
        " Or pass the source model's config.json.",
    )


def _nearest(near: list[str]) -> str:
    """The ids that are near, or what an id looks like."""
    ids = known_models()
    if near:
        return f"The nearest of {len(ids)} ids: {', '.join(near)}."
    return f"None of {len(ids)} ids is near; some: {', '.join(ids[:: len(ids) // 5 or 1][:5])}."


def fitting_models(semantics: Semantics) -> tuple[str, ...]:
    """The known models whose sizes are those of a pack, as far as both state them.

    Empty where the pack does not state its head size and its number of layers.
    """
    if semantics.head_dim is None or semantics.num_hidden_layers is None:
        return ()
    return tuple(name for name, config in _models().items() if _fits(config, semantics))


def _fits(config: Document, semantics: Semantics) -> bool:
    dimensions = read_dimensions(config, family_of(config), EMPTY)
    pairs = [(dimensions.value(name), getattr(semantics, name)) for name in _COMPARED]
    return all(one is None or other is None or one == other for one, other in pairs)
