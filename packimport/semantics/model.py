"""Semantics: what the model is, as far as position goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from packimport.rope.schedule import Rope


@dataclass(frozen=True, slots=True)
class Source:
    """Where a field was read: a file and a JSON pointer (RFC 6901) into it.

    pointer "" is the whole document. A default that a family implies has the
    file "families.yaml" and a pointer into that.
    """

    file: str
    pointer: str

    def __str__(self) -> str:
        return f"{self.file}#{self.pointer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """The RoPE block as the source config states it, and where it came from.

    file:   path of the config, as the user gave it or relative to the container.
    origin: "--config", "--model", "packimport.json" or "config.json".
    config: every key of the (text) config that bears on position or on the
            dimensions, verbatim; reading it again gives the same Semantics.
    model:  the id of the known model that it is; None for a config of the user's or the pack's.
    """

    file: str
    origin: str
    config: Mapping[str, object]
    model: str | None = None

    @property
    def named(self) -> str:
        """What declares, for a person: a known model, or a file."""
        return self.file if self.model is None else f"the known model {self.model}"

    def to_dict(self) -> dict[str, object]:
        """The declaration as packimport.json keeps it."""
        return {"file": self.file, "origin": self.origin, "config": dict(self.config)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Semantics:
    """What a container declares.

    declaration: None where nothing says which schedule is meant; `layers` is then ().
    layers:      one Rope per layer, None for a layer without RoPE.
    layer_sources: for each layer, the Source of every field of its Rope that was read.
    sources:     the Source of every other field.
    pair_layout: how pairs lie: "half-split", "interleaved", or "de-interleaved": the
                 checkpoint's are interleaved, and the model reorders them and then turns
                 them half-split. None where no layer rotates.
    without_attention: the layers that are of another kind, such as convolutions: a graph
                 has no attention for them. Each is None in `layers`.
    family_known: whether families.yaml has the model_type. What it lacks is read as Llama
                 is, and a check does not vouch for such a pack.
    context_length: genai_config's model.context_length.
    usable_length:  the least of the lengths that genai_config states; None without one.
    graphs:      the decoder's ONNX files, relative to the container.
    inputs:      names of the graphs' inputs by the keys that genai_config has for them,
                 such as position_ids and past_key_names.
    notes:       what the reader saw and a user should know, one line each.
    """

    model_type: str | None
    declaration: Declaration | None
    layers: tuple[Rope | None, ...]
    layer_sources: tuple[Mapping[str, Source], ...]
    sources: Mapping[str, Source]
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    num_hidden_layers: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    context_length: int | None = None
    usable_length: int | None = None
    pair_layout: str | None = None
    family_known: bool = True
    without_attention: tuple[int, ...] = ()
    graphs: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The semantics as JSON: layers of one schedule stand together."""
        grouped: dict[Rope | None, list[int]] = {}
        for index, rope in enumerate(self.layers):
            grouped.setdefault(rope, []).append(index)
        declaration = self.declaration
        return {
            "model_type": self.model_type,
            "declaration": None
            if declaration is None
            else {"file": declaration.file, "origin": declaration.origin},
            **{name: getattr(self, name) for name in _SIZES},
            "pair_layout": self.pair_layout,
            "graphs": list(self.graphs),
            "sources": {field: str(source) for field, source in self.sources.items()},
            "ropes": [
                {
                    "layers": layers,
                    "rope": None if rope is None else rope_to_dict(rope),
                    "sources": {
                        field: str(source)
                        for field, source in self.layer_sources[layers[0]].items()
                    },
                }
                for rope, layers in grouped.items()
            ],
            "notes": list(self.notes),
        }


_SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "head_dim",
    "max_position_embeddings",
    "context_length",
    "usable_length",
)


def rope_to_dict(rope: Rope) -> dict[str, object]:
    """The fields of a Rope that say something, JSON-ready: tuples are lists."""
    values = {field.name: getattr(rope, field.name) for field in fields(rope)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None
    }
