"""Ropes: one block, one family and the model's sizes as a Rope, with the source of each field."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.errors import DocumentError, ScheduleError
from packimport.pack.documents import Document
from packimport.rope.fields import FIELDS
from packimport.rope.schedule import Rope
from packimport.rope.validation import validate
from packimport.semantics.dimensions import stated
from packimport.semantics.draft import Context, Draft
from packimport.semantics.families import FILE as FAMILIES
from packimport.semantics.families import Family
from packimport.semantics.scaling import set_original, set_scaling, set_type
from packimport.semantics.width import check_list, set_width


@dataclass(frozen=True, slots=True)
class BuiltRope:
    """A Rope, the value that each of its fields was read from, and what a user should know."""

    rope: Rope
    nodes: dict[str, Document]
    notes: tuple[str, ...]


def build_rope(context: Context) -> BuiltRope:
    """The Rope of one kind of layer.

    Raises DocumentError, by pointer, for whatever no formula accepts: see
    `packimport.rope.validation`.
    """
    draft = Draft(context)
    kind = set_type(draft)
    set_scaling(draft, kind)
    _set_theta(draft)
    set_width(draft, kind)
    set_original(draft, kind)
    _set_layout(draft)
    longest = context.dimensions.sizes.get("max_position_embeddings")
    if longest is not None:
        draft.set("max_position_embeddings", longest.value, longest.node)
    if any(part.file == FAMILIES for part in context.block.scaling):
        draft.notes.append(
            f"the config has no block of RoPE: that of family {context.family.name} stands"
        )
    rope = Rope(**draft.values)  # type: ignore[arg-type]  # `validate` checks each field
    try:
        validate(rope)
    except ScheduleError as error:
        raise _placed(error, draft) from None
    return BuiltRope(rope, draft.nodes, tuple(draft.notes))


def _placed(error: ScheduleError, draft: Draft) -> DocumentError:
    """The error of a formula, at the key of the config that it is about."""
    context = draft.context
    node = draft.nodes.get(error.key)
    if node is not None:
        named = node.pointer.endswith(f"/{error.key}")
        message = error.message if named else f"{error.key}: {error.message}"
        return node.error(message, allowed=error.allowed)
    fields = FIELDS[str(draft.values["type"])]
    own = error.key in (fields.required | fields.optional) - {"max_position_embeddings"}
    holder = context.block.scaling[0] if own and context.block.scaling else context.config
    return holder.error(error.message, key=error.key, allowed=error.allowed)


def _set_theta(draft: Draft) -> None:
    context = draft.context
    node, ratio = _theta_node(draft), context.family.get("theta_ratio")
    if node is None:
        raise context.config.error("this key is missing", key="rope_theta", allowed="a number")
    theta = node.number()
    factor = None if ratio is None else context.config.get(ratio.text())
    if factor is not None:
        theta, node = theta * factor.number(), factor
    draft.set("theta", theta, node)


def _theta_node(draft: Draft) -> Document | None:
    context = draft.context
    if context.theta is not None:
        check_list(context.theta, context.block.get("rope_theta"))
        return context.theta
    own = context.schedule.get("theta_key")
    if own is not None:
        # The layers have a base of their own: that of a flat block is the others'.
        inner = None if context.block.flat else context.block.shape_key("rope_theta")
        outer = context.config.get(own.text())
    else:
        inner = context.block.shape_key("rope_theta")
        outer = stated(context.config, "theta")
    if inner is not None and outer is not None:
        draft.note_contradiction(
            outer, inner, "the block counts, as in transformers 5; 4 takes the other"
        )
    defaults = context.schedule.get("theta"), context.family.get("theta")
    draft.note_second_block(inner, "rope_theta")
    found = inner or outer
    usual = next((n for n in defaults if n is not None), None)
    draft.check_read(found, usual)
    return found or usual


def _set_layout(draft: Draft) -> None:
    context = draft.context
    node = context.family.get("pairs")
    pairs = pair_layout(context.config, context.family)
    draft.set("interleaved", pairs != "half-split", node if pairs != "half-split" else None)
    if context.family.flag("trailing"):
        draft.set("trailing", True, context.family.get("trailing"))
    section, layout = context.block.get("mrope_section"), context.family.get("mrope")
    if section is None or layout is None:
        return
    mixed = context.block.get("mrope_interleaved")
    if mixed is not None and mixed.boolean() != (layout.text() == "interleaved"):
        raise mixed.error(
            f"family {context.family.name} lays its sections otherwise", allowed=layout.text()
        )
    draft.set("mrope_section", section.integers(0), section)
    draft.set("mrope_layout", layout.text(), layout)


def pair_layout(config: Document, family: Family) -> str:
    """How pairs lie: half-split, interleaved or de-interleaved; see families.yaml."""
    pairs = family.text("pairs", "half-split")
    if pairs == "de-interleaved":
        node = config.get("rope_interleave")
        if node is not None and not node.boolean():
            return "half-split"
    return pairs
