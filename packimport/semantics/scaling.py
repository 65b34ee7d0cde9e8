"""Scaling: the type of a schedule and the keys that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from packimport.pack.documents import Document
from packimport.rope.fields import FIELDS
from packimport.semantics.blocks import ALIASES, TYPE_KEYS, Block, check_types
from packimport.semantics.draft import Draft, Value
from packimport.semantics.families import Family, spellings

_KINDS: Mapping[str, Callable[[Document], Value]] = {
    "original_max_position_embeddings": Document.integer,
    "truncate": Document.boolean,
    "short_factor": Document.numbers,
    "long_factor": Document.numbers,
}
# Fields of a type that a config may state only where its family's code reads them.
_OWN = frozenset({"alpha", "short_mscale", "long_mscale"})
_NOT_KEYS = frozenset({"freq_factors", "max_position_embeddings", "partial_rotary_factor"})
_WITH_ORIGINAL = ("llama3", "yarn", "longrope")


def set_type(draft: Draft) -> str:
    """Set the type, by its usual name, and return it."""
    context = draft.context
    stated = check_types(context.block)
    if stated is None:
        _check_no_scaling(context.block)
    node = context.schedule.get("type") if stated is None else stated
    kind = "default" if node is None else ALIASES.get(node.text(), node.text())
    if node is not None and kind not in FIELDS:
        raise node.error("an unknown type of RoPE", allowed=", ".join((*FIELDS, *ALIASES)))
    types = context.family.texts("types")
    if node is not None and types and kind not in types:
        raise node.error(f"family {context.family.name} has no such type", allowed=", ".join(types))
    if node is not None and node.value == "mrope" and context.block.get("mrope_section") is None:
        raise context.block.scaling[0].error(
            "type mrope needs this key, and it is missing", key="mrope_section", allowed="a list"
        )
    if stated is not None and stated.pointer == f"{context.config.pointer}/rope_scaling/type":
        _note_older_key(draft, stated, kind)
    draft.set("type", kind, node)
    return kind


def _note_older_key(draft: Draft, node: Document, kind: str) -> None:
    """Families with blocks per layer type fill `rope_type` in before they look at `type`."""
    if kind != "default" and not draft.context.family.flag("flat_parameters", True):
        draft.notes.append(
            f"{node.place} counts: transformers 5.24.0 reads rope_type alone for family"
            f" {draft.context.family.name} and would take default, 4.57.1 reads both"
        )


def _check_no_scaling(block: Block) -> None:
    """Without a type a factor would silently do nothing."""
    known = {key for fields in FIELDS.values() for key in fields.required | fields.optional}
    for key, node in block.fields().items():
        if node.value is not None and key in known - {"partial_rotary_factor"}:
            raise node.error(
                "a scaling without a type, so nothing says how to scale",
                allowed=f"{TYPE_KEYS[0]} beside it, one of: {', '.join((*FIELDS, *ALIASES))}",
                fix="State the type that the model was trained with.",
            )


def _keys_of(kind: str, family: Family) -> frozenset[str]:
    """The keys of a block that a type reads in a family."""
    fields = FIELDS[kind].required | FIELDS[kind].optional
    return (fields - _NOT_KEYS - _OWN) | (fields & frozenset(family.texts("fields")))


def set_scaling(draft: Draft, kind: str) -> None:
    """Set the fields that the type has, and refuse a key that it does not have."""
    context = draft.context
    keys = _keys_of(kind, context.family)
    for key, node in context.block.fields().items():
        if node.value is not None and key not in keys:
            _check_other_key(node, key, kind, context.family)
    for key in sorted(keys - {"original_max_position_embeddings"}):
        found = context.block.get(key)
        if found is not None:
            draft.set(key, _KINDS.get(key, Document.number)(found), found)
    _check_factor(draft, kind)
    for key, effect in context.family.merged("unjudged").items():
        found = context.block.get(key)
        if found is not None and found.value != 0:
            draft.notes.append(
                f"{found.place} {effect.text()}: that is no rotation, and is not judged"
            )
    forced = context.schedule.get("attention_factor")
    if forced is not None and kind == "yarn" and "attention_factor" not in draft.values:
        draft.set("attention_factor", forced.number(), forced)


def _check_factor(draft: Draft, kind: str) -> None:
    """Yarn's factor may be null, then the two lengths stand for it; but it must be there."""
    fields = draft.context.block.fields()
    if kind == "yarn" and "factor" not in fields:
        raise draft.context.block.scaling[0].error(
            "this key is missing, and type yarn needs it", key="factor", allowed="a number or null"
        )
    node = fields.get("factor")
    needed = "factor" in FIELDS[kind].required and "alpha" not in draft.values
    if node is not None and node.value is None and needed:
        raise node.error(f"type {kind} needs a factor", allowed="a number, 1 or above")


def _check_other_key(node: Document, key: str, kind: str, family: Family) -> None:
    """A key of a block that is no field of its type."""
    if key in (*TYPE_KEYS, *spellings("theta"), *spellings("partial")):
        return
    if key == "finetuned" and kind == "yarn":
        node.boolean()  # of the first yarn configs: says how the weights were made
        return
    if key in ("mrope_section", "mrope_interleaved") and family.get("mrope") is not None:
        return
    ignored = family.merged("ignored")
    if key in ignored:
        if ignored[key].value == "any" or node.value in (v.value for v in ignored[key].items()):
            return
        raise node.error("a value that is not understood", allowed=str(ignored[key].value))
    known = ", ".join(sorted(_keys_of(kind, family))) or "none"
    raise node.error(
        f"a key that type {kind} does not have in family {family.name}",
        allowed=f"rope_type, rope_theta, partial_rotary_factor; of this type: {known}",
    )


def set_original(draft: Draft, kind: str) -> None:
    """Set original_max_position_embeddings: beside a flat block, else what the family has for
    that key, else within the block, else the maximum.

    Source: transformers 5.24.0, `standardize_rope_params`.
    """
    if kind not in _WITH_ORIGINAL:
        return
    context, key = draft.context, "original_max_position_embeddings"
    inner = context.block.get(key)
    beside = context.config.get(key) or context.family.get("original")
    outer = beside if context.block.flat else None
    if inner is not None and outer is not None:
        draft.note_contradiction(inner, outer, "the second counts, as in transformers")
    node = outer or inner
    if node is not None:
        draft.set(key, node.integer(), node)
        return
    longest = context.dimensions.sizes.get("max_position_embeddings")
    if longest is None:
        raise context.block.scaling[0].error(
            f"this key is missing, and type {kind} needs it", key=key, allowed="a positive integer"
        )
    draft.set(key, longest.value, longest.node)
    draft.notes.append(
        f"{key} is missing: max_position_embeddings, {longest.value}, stands for it, as in"
        " transformers"
    )
