"""Config: one config.json as the schedule of every layer. What the pack adds comes from outside."""

from __future__ import annotations

from dataclasses import dataclass, replace

from packimport.pack.documents import Document
from packimport.rope.schedule import Rope
from packimport.semantics.blocks import read_blocks
from packimport.semantics.dimensions import Dimensions, check_foreign, read_dimensions
from packimport.semantics.draft import Context
from packimport.semantics.families import Family, family_of, nested_type
from packimport.semantics.genai import GenaiConfig
from packimport.semantics.keys import check_keys, declared_config, declares, declaring_keys
from packimport.semantics.labels import Label, read_labels, schedule_of
from packimport.semantics.model import Source
from packimport.semantics.ropes import BuiltRope, build_rope, pair_layout

_NESTS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one config says.

    declared: the keys that say it, verbatim; None where it declares nothing,
              and then `layers` is ().
    without_attention: the numbers of the layers that have no attention.
    The other fields are those of Semantics.
    """

    model_type: str | None
    declared: dict[str, object] | None
    dimensions: Dimensions
    layers: tuple[Rope | None, ...] = ()
    layer_sources: tuple[dict[str, Source], ...] = ()
    pair_layout: str | None = None
    family_known: bool = True
    without_attention: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def read_reading(document: Document, genai: GenaiConfig) -> Reading:
    """Read a config.json, whose sizes must be those of the pack.

    Raises DocumentError, by pointer, for a config that is malformed,
    contradicts itself or the pack, or says of position what is not understood.
    """
    config = text_config(document)
    if not config.has("model_type") and not declares(config):
        return _silent(config, None, genai, "it names no model_type and no key of RoPE")
    family = family_of(config)
    _check_is_text(config, family)
    if not family.known and not declares(config):
        why = f"family {family.name} is unknown and it has no key of RoPE"
        return _silent(config, family, genai, why)
    dimensions = read_dimensions(config, family, genai)
    count = dimensions.require("num_hidden_layers", config).value
    labels = read_labels(config, family, count)
    notes: list[str] = []
    built: tuple[BuiltRope | None, ...] = (None,) * count
    if not family.still:
        check_keys(config, family)
        built = _built(config, family, dimensions, labels)
    if nested_note := _beside(document, config):
        notes.append(nested_note)
    if family.flag("scaled_since_5") and any(r and r.rope.type != "default" for r in built):
        notes.append(
            f"transformers before 5 rotates {family.name} plainly, whatever its block says;"
            " 5.24.0 applies the block, and that counts"
        )
    heads = {rope.rope.head_dim for rope in built if rope is not None}
    foreign = check_foreign(config, dimensions, heads | _other_heads(config, dimensions), genai)
    notes += [note for rope in built if rope is not None for note in rope.notes]
    return Reading(
        model_type=family.name,
        declared=declared_config(config, family),
        dimensions=dimensions,
        layers=tuple(None if rope is None else rope.rope for rope in built),
        layer_sources=tuple({} if rope is None else _sources(rope) for rope in built),
        pair_layout=pair_layout(config, family) if heads else None,
        family_known=family.known,
        without_attention=_without_attention(labels, family),
        notes=tuple(dict.fromkeys([*notes, *([] if foreign is None else [foreign])])),
    )


def _check_is_text(config: Document, family: Family) -> None:
    """A family that nests its text model has nothing of its own to say of it."""
    if family.get("text") is not None and family.get("theta") is None:
        raise config.error(
            f"this key is missing, and transformers' class for {family.name} reads its text model"
            " there",
            key="text_config",
            allowed="the config of the text model",
        )


def _sources(built: BuiltRope) -> dict[str, Source]:
    return {field: Source(node.file, node.pointer) for field, node in built.nodes.items()}


def text_config(document: Document) -> Document:
    """The config of the text model: nested in that of a multimodal one, else the whole.

    Raises DocumentError where two nested ones are there.
    """
    nests = [node for key in _NESTS if (node := document.get(key)) is not None]
    if not nests:
        return document
    if len(nests) > 1:
        raise nests[1].error(f"two text models: the other is {nests[0].pointer}", allowed="one")
    nested = nests[0]
    named = nested_type(document)
    if nested.get("model_type") is None and named is not None:
        fields = {key: node.value for key, node in nested.fields().items()}
        return replace(nested, value={**fields, "model_type": named.text()})
    return nested


def _beside(document: Document, nested: Document) -> str:
    """A note on keys of RoPE that stand outside of the nested config of the text model, where
    transformers reads none; "" where there are none, or they say the same.
    """
    if nested.pointer == document.pointer:
        return ""
    said = []
    for key in declaring_keys():
        outer, inner = document.get(key), nested.get(key)
        if outer is None or outer.value == {}:
            continue
        if inner is None or inner.value == {}:
            said.append(outer.pointer)
        elif inner.value != outer.value:
            said.append(f"{outer.pointer}, which contradicts it,")
    if not said:
        return ""
    return f"{nested.place} counts, as in transformers: {', '.join(said)} beside it is not read"


def _silent(config: Document, family: Family | None, genai: GenaiConfig, why: str) -> Reading:
    """A config that declares no schedule, with what it says of sizes."""
    plain = Family("", False, ()) if family is None else replace(family, parts=())
    return Reading(
        model_type=None if family is None else family.name,
        declared=None,
        dimensions=read_dimensions(config, plain, genai),
        notes=(f"{config.place} declares no schedule: {why}",),
    )


def _built(
    config: Document, family: Family, dimensions: Dimensions, labels: tuple[Label, ...]
) -> tuple[BuiltRope | None, ...]:
    """The Rope of each layer; layers of one label and one base share theirs."""
    blocks = read_blocks(config, family, labels)
    if not family.known and not blocks.any_nested():
        _check_alike(labels, family)
    thetas = _per_layer(config, family, "theta", len(labels))
    parts = _per_layer(config, family, "partial", len(labels))
    for entries in (thetas, parts):
        _check_uniform(labels, entries)
    made: dict[tuple[object, ...], BuiltRope | None] = {}
    result = []
    for label, theta, part in zip(labels, thetas, parts, strict=True):
        key = (label.name, theta and repr(theta.value), part and repr(part.value))
        if key not in made:
            schedule = schedule_of(label, family)
            block = blocks.block_for(label, schedule, family) if schedule.rotates else None
            made[key] = (
                None
                if block is None
                else build_rope(Context(config, family, dimensions, block, schedule, theta, part))
            )
        result.append(made[key])
    return tuple(result)


def _without_attention(labels: tuple[Label, ...], family: Family) -> tuple[int, ...]:
    """The layers of another kind, such as convolutions."""
    if family.get("schedules") is None:
        return ()
    return tuple(i for i, label in enumerate(labels) if not schedule_of(label, family).attends)


def _check_alike(labels: tuple[Label, ...], family: Family) -> None:
    """Kinds of layers may differ in their schedule: only a known family says how."""
    for label in labels:
        if label.name != labels[0].name and label.node is not None:
            raise label.node.error(
                f"layers of several kinds, and family {family.name} is unknown",
                allowed=labels[0].name,
            )


def _per_layer(
    config: Document, family: Family, field: str, count: int
) -> tuple[Document | None, ...]:
    """The entries of a list that a family has per layer; None for each where it has none."""
    keys = family.merged("per_layer")
    node = config.get(keys[field].text()) if field in keys else None
    if node is None or not node.is_list:
        return (None,) * count
    items = node.items()
    if len(items) < count:
        raise node.error("a list of the wrong length", allowed=f"{count}, one per layer")
    # What is beyond belongs to layers that predict ahead.
    return items[:count]


def _check_uniform(labels: tuple[Label, ...], entries: tuple[Document | None, ...]) -> None:
    """Layers of one type have one table in transformers: that of the first of them."""
    first: dict[str, Document] = {}
    for label, entry in zip(labels, entries, strict=True):
        if entry is None or first.setdefault(label.name, entry).value == entry.value:
            continue
        one = first[label.name]
        raise entry.error(
            f"contradicts {one.pointer}, another layer of type {label.name}",
            allowed=f"{one.value}, as there",
            fix="transformers has one table for each layer type: keep the right one.",
        )


def _other_heads(config: Document, dimensions: Dimensions) -> set[int]:
    """Head sizes that genai_config may state where a slice of the head rotates."""
    size = dimensions.value("head_dim")
    heads = set() if size is None else {size}
    turning, rest = config.get("qk_rope_head_dim"), config.get("qk_nope_head_dim")
    if turning is not None and rest is not None:
        heads |= {turning.integer(1) + rest.integer(0)}
    for key in ("head_dim", "v_head_dim"):
        node = config.get(key) if turning is not None else None
        heads |= set() if node is None else {node.integer(1)}
    return heads
