"""Width: how many entries of a head rotate, by whichever key says so."""

from __future__ import annotations

from packimport.pack.documents import Document
from packimport.semantics.dimensions import MAXIMA, Size, stated
from packimport.semantics.draft import Context, Draft


def set_width(draft: Draft, kind: str) -> None:
    """Set head_dim, rotary_dim, and partial_rotary_factor where the type has that field."""
    context = draft.context
    head, part, count = _head(context), _stated_part(draft), _stated_count(context)
    draft.set("head_dim", head.value, head.node)
    if kind == "proportional":
        # The whole head has frequencies, of which those beyond the part are zero.
        part = part or _default(context, "partial")
        if part is not None:
            draft.set("partial_rotary_factor", _fraction(part), part)
        draft.set("rotary_dim", head.value, head.node)
    elif context.family.flag("latent"):
        if part is not None:
            _check_latent_part(part, head, context.config)
        _note_latent(draft, head, part, kind)
        draft.set("rotary_dim", head.value, head.node)
    elif part is not None:
        _set_part(draft, part, head)
        _check_same(draft, part, count)
    elif count is not None:
        _check_alone(context, count, head)
        usual = _default(context, "partial")
        silent = head.value if usual is None else int(head.value * usual.number())
        if context.family.get("rotary_key") is None and count.integer(1) != silent:
            draft.check_read(count, _default(context, "rotary_dim") or usual)
        draft.set("rotary_dim", count.integer(1), count)
    else:
        _set_default(draft, head)
    _check_whole(draft, head)


def _head(context: Context) -> Size:
    key = context.schedule.get("head_dim_key")
    node = None if key is None else context.config.get(key.text())
    if node is None:
        node = context.schedule.get("head_dim")
    if node is None:
        return context.dimensions.require("head_dim", context.config)
    return Size(node.integer(1, MAXIMA["head_dim"]), node)


def _stated_part(draft: Draft) -> Document | None:
    """The part of a head that the config states."""
    context = draft.context
    if context.partial is not None:
        check_list(context.partial, context.block.get("partial_rotary_factor"))
        return context.partial
    inner = context.block.shape_key("partial_rotary_factor")
    outer = stated(context.config, "partial")
    if inner is not None and outer is not None:
        draft.note_contradiction(outer, inner, "the block counts, as in transformers")
    draft.note_second_block(inner, "partial_rotary_factor")
    found = inner or outer
    draft.check_read(found, _default(context, "partial"))
    return found


def check_list(entry: Document, inner: Document | None) -> None:
    """An entry of a list by layer and a block must say the same: the list counts for us, the block
    in transformers 5.24.0.
    """
    if inner is not None and inner.value != entry.value:
        raise inner.error(
            f"contradicts {entry.pointer}, which is for this layer",
            allowed=f"{entry.value}, as there",
            fix="Keep the one that the model was trained with.",
        )


def _stated_count(context: Context) -> Document | None:
    """The number of entries that the config states."""
    key = context.family.get("rotary_key")
    own = None if key is None else context.config.get(key.text())
    return own or stated(context.config, "rotary_dim")


def _default(context: Context, field: str) -> Document | None:
    """What stands where the config is silent. A schedule's own part belongs to its own type: a
    block takes the place of both.
    """
    if context.schedule.get("type") is not None and context.block.scaling:
        return context.family.get(field)
    return context.schedule.get(field) or context.family.get(field)


def _fraction(node: Document) -> float:
    value = node.number()
    if not 0 < value <= 1:
        raise node.error("not a part of a head", allowed="a number above 0 and up to 1")
    return value


def _set_part(draft: Draft, part: Document, head: Size) -> None:
    # Truncated in float64, as transformers does it.
    draft.set("rotary_dim", int(head.value * _fraction(part)), part)


def _set_default(draft: Draft, head: Size) -> None:
    """What the family says where the config is silent; else the whole head."""
    count = _default(draft.context, "rotary_dim")
    part = _default(draft.context, "partial")
    if count is not None:
        draft.set("rotary_dim", count.integer(1), count)
    elif part is not None:
        _set_part(draft, part, head)
    else:
        draft.set("rotary_dim", head.value, head.node)


def _check_same(draft: Draft, part: Document, count: Document | None) -> None:
    """Two keys that state the width must state the same one."""
    rotary = draft.values["rotary_dim"]
    if count is not None and count.integer(1) != rotary:
        raise count.error(
            f"contradicts {part.pointer}: {part.value} of {draft.values['head_dim']} entries is"
            f" {rotary}",
            allowed=str(rotary),
        )


def _check_alone(context: Context, count: Document, head: Size) -> None:
    """A number of entries that the family's code does not read, and that changes something."""
    if context.family.text("rotary_dim_alone", "") and count.integer(1) != head.value:
        raise count.error(
            f"transformers' code for {context.family.name} does not read this key and rotates"
            f" {head.value} entries, other code rotates {count.value}",
            allowed=f"partial_rotary_factor {count.integer(1) / head.value:g} beside it where"
            " those rotate; none of it where whole heads do",
        )


def _check_whole(draft: Draft, head: Size) -> None:
    """A family whose code rotates whole heads can't rotate a part of one."""
    family = draft.context.family
    if not family.known or family.get("partial") is not None:
        return
    if draft.values["rotary_dim"] != head.value:
        raise draft.nodes["rotary_dim"].error(
            f"family {family.name} rotates whole heads: its code ignores this for plain RoPE and"
            " fails for scaled RoPE",
            allowed="1.0, or leave it out",
        )


def _check_latent_part(part: Document, head: Size, config: Document) -> None:
    """Latent attention states its slice; a factor must say the same of the whole head."""
    value, rest = _fraction(part), config.get("qk_nope_head_dim")
    whole = head.value + (0 if rest is None else rest.integer(0))
    if value != 1 and int(whole * value) != head.value:
        raise part.error(
            f"contradicts {head.node.pointer}, {head.value} of {whole} entries", allowed="1.0"
        )


def _note_latent(draft: Draft, head: Size, part: Document | None, kind: str) -> None:
    """Say where transformers makes a table of another width, which its rotation can't use.

    Source: transformers 5.24.0, the rotary modules of DeepSeek V2 and V3.
    """
    context = draft.context
    whole, rest = context.config.get("head_dim"), context.config.get("qk_nope_head_dim")
    wide, value = head.value, 1.0 if part is None else part.number()
    silent = context.family.get("table_of_head")
    if silent is not None and silent.value != "none":
        sum_ = head.value + (0 if rest is None else rest.integer(0))
        usual = sum_ if silent.value == "whole" else head.value
        wide = usual if whole is None else whole.integer(1)
        if silent.value == "whole" and part is None and not _has_scaling(context.config):
            value = head.value / sum_
    has_part = kind != "default" or context.family.flag("plain_part")
    width = int(wide * value) if has_part else wide
    if width == head.value:
        return
    own = whole or rest or head.node
    node = own if part is None or wide != head.value else part
    draft.notes.append(
        f"{node.place} says {node.value}: transformers 5.24.0 makes a table of {width} entries of"
        f" it, while the slice that rotates has {head.value} by {head.node.place}: that counts"
    )


def _has_scaling(config: Document) -> bool:
    block = config.get("rope_scaling")
    return block is not None and block.value != {}
