"""Labels: which schedule each layer follows, by the rules of its family."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.pack.documents import Document
from packimport.semantics.families import Family, as_label, rotating_labels


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a layer's schedule.

    node: the value of the config that names it; None where the family's rule does.
    raw:  the name as the config has it, before the family translates it.
    """

    name: str
    node: Document | None
    raw: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """What a label means: no rotation, or where its fields differ from the family's.

    spec:    the entry of families.yaml; None where the label rotates as all do.
    attends: whether such a layer has attention at all.
    """

    rotates: bool
    spec: Document | None
    attends: bool = True

    def get(self, field: str) -> Document | None:
        """A field of the entry, or None."""
        return None if self.spec is None else self.spec.get(field)


def read_labels(config: Document, family: Family, count: int) -> tuple[Label, ...]:
    """The labels of `count` layers.

    Raises DocumentError for a list of another length, and for an entry that
    the family does not know.
    """
    rule = family.get("layers")
    if rule is None:
        listed = config.get("layer_types")
        if listed is None:
            return (Label("full_attention", None, "full_attention"),) * count
        return _listed(listed, None, count)
    labels = _by_lists(config, rule, count)
    if labels is None and rule.get("every") is not None:
        labels = _by_pattern(config, rule.require("every"), count)
    if labels is None:
        default = rule.get("all")
        if default is None:
            key = rule.require("lists").items()[0].require("key").text()
            raise config.error("this key is missing", key=key, allowed="a list")
        labels = (Label(default.text(), None, default.text()),) * count
    return _ended(labels, rule)


def _by_lists(config: Document, rule: Document, count: int) -> tuple[Label, ...] | None:
    lists = rule.get("lists")
    for entry in () if lists is None else lists.items():
        listed = config.get(entry.require("key").text())
        if listed is None or (not listed.items() and entry.get("empty") is not None):
            continue
        if entry.get("inside") is not None:
            return _by_members(listed, entry, count)
        if entry.get("flags") is not None:
            return _by_flags(listed, entry, count)
        return _listed(listed, entry, count)
    return None


def _entries(listed: Document, entry: Document | None, count: int) -> tuple[Document, ...]:
    items = listed.items()
    longer = entry is not None and entry.get("longer") is not None
    if len(items) < count or (len(items) > count and not longer):
        raise listed.error("a list of the wrong length", allowed=f"{count}, one per layer")
    return items[:count]


def _listed(listed: Document, entry: Document | None, count: int) -> tuple[Label, ...]:
    """A label per layer, translated where the family's rule says so."""
    names = None if entry is None else entry.get("labels")
    labels = []
    for node in _entries(listed, entry, count):
        raw = node.text() if names is None else as_label(node.value)
        if names is not None and not names.has(raw):
            raise node.error("an unknown kind of layer", allowed=", ".join(names.fields()))
        name = raw if names is None else names.require(raw).text()
        labels.append(Label(name, node, raw))
    return tuple(labels)


def _by_members(listed: Document, entry: Document, count: int) -> tuple[Label, ...]:
    """The layers that a list of indices names, and the others."""
    nodes = {node.integer(0, count - 1): node for node in listed.items()}
    inside, outside = entry.require("inside").text(), entry.require("outside").text()
    return tuple(
        Label(inside, nodes[i], inside) if i in nodes else Label(outside, listed, outside)
        for i in range(count)
    )


def _by_flags(listed: Document, entry: Document, count: int) -> tuple[Label, ...]:
    """One label where any of several flags of an entry is set, another where none is."""
    labels = []
    for node in _entries(listed, entry, count):
        is_set = any(_flag(node, pointer) for pointer in entry.require("flags").texts())
        name = entry.require("set" if is_set else "unset").text()
        labels.append(Label(name, node, name))
    return tuple(labels)


def _flag(node: Document, pointer: str) -> bool:
    found: Document | None = node
    for key in pointer.split("/")[1:]:
        found = None if found is None else found.get(key)
    return found is not None and found.boolean()


def _by_pattern(config: Document, every: Document, count: int) -> tuple[Label, ...]:
    """The last of every so many layers is of one kind, and perhaps the first of all."""
    key = every.get("key")
    node = None if key is None else config.get(key.text())
    interval = (every.require("interval") if node is None else node).integer(1)
    last, others = every.require("last").text(), every.require("others").text()
    names = [others if (i + 1) % interval else last for i in range(count)]
    first = every.get("first")
    if first is not None:
        names[0] = first.text()
    return tuple(Label(name, node, name) for name in names)


def _ended(labels: tuple[Label, ...], rule: Document) -> tuple[Label, ...]:
    """The family's code forces the last layer's kind; a config that says otherwise is refused."""
    ends = rule.get("ends")
    if ends is None or labels[-1].name == ends.text():
        return labels
    node = labels[-1].node
    if node is not None:
        raise node.error("the last layer can't be of this kind", allowed=ends.text())
    return (*labels[:-1], Label(ends.text(), None, ends.text()))


def schedule_of(label: Label, family: Family) -> Schedule:
    """What a label means in its family. Raises DocumentError for one it does not know."""
    schedules = family.get("schedules")
    if schedules is None:
        known = rotating_labels()
        if label.name in known:
            return Schedule(True, None)
    else:
        known = tuple(schedules.fields())
        if label.name in known:
            spec = schedules.require(label.name)
            rotates = spec.value not in ("none", "no-attention")
            attends = spec.value != "no-attention"
            return Schedule(rotates, spec if spec.is_object else None, attends)
    assert label.node is not None, "a label of families.yaml without its schedule"
    raise label.node.error(
        f"an unknown kind of layer for family {family.name}", allowed=", ".join(known)
    )
