"""Show: what was read of a pack or a config, and from where. Nothing is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packimport.audit.audit import find
from packimport.audit.judge import counted
from packimport.audit.layout import layout_of
from packimport.errors import printable
from packimport.graph.site import GraphFacts
from packimport.pack.archive import opened
from packimport.pack.signals import interruptible
from packimport.rope.schedule import Rope
from packimport.semantics.describe import describe
from packimport.semantics.model import Semantics, Source
from packimport.semantics.reader import bare_config, read_semantics


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Semantics, and the facts of each decoder graph; for a bare config no graphs and no layout."""

    path: str
    layout: str | None
    semantics: Semantics
    graphs: tuple[GraphFacts, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: the semantics as in the report, and the sites of each graph."""
        return {
            "path": self.path,
            "layout": self.layout,
            "semantics": self.semantics.to_dict(),
            "graphs": [_graph(facts) for facts in self.graphs],
        }

    def text(self) -> str:
        """For a person: every field with its file and JSON pointer."""
        return "\n".join(_lines(self))


def show(path: str | Path, config: str | Path | None = None, model: str | None = None) -> Shown:
    """What a container, or a bare config.json, says. Raises PackimportError as `check` does."""
    path = Path(path)
    if bare_config(path) is not None:
        semantics = read_semantics(path, config, model)
        return Shown(path=str(path), layout=None, semantics=semantics, graphs=())
    with opened(path) as container, interruptible():
        semantics = read_semantics(container, config, model)
        facts = tuple(find(container, semantics))
        layout = layout_of(container, facts)
        return Shown(path=str(path), layout=layout, semantics=semantics, graphs=facts)


def _graph(facts: GraphFacts) -> dict[str, object]:
    return {
        "graph": facts.graph,
        "producer": facts.producer,
        "layers": facts.layers,
        "unrotated": list(facts.unrotated),
        "sites": [
            {
                "form": site.form,
                "encoding": site.encoding,
                "nodes": list(site.nodes),
                "layers": list(site.layers),
                "interleaved": site.interleaved,
                "rotary_dim": site.rotary_dim,
                "tensors": [
                    {
                        "name": span.name,
                        "dtype": span.dtype,
                        "shape": list(span.shape),
                        "file": span.file,
                        "offset": span.offset,
                        "length": span.length,
                    }
                    for span in site.tensors
                ],
            }
            for site in facts.sites
        ],
        "unread": [
            {"node": item.node, "op": item.op, "reason": item.reason} for item in facts.unread
        ],
    }


def _lines(shown: Shown) -> Iterator[str]:
    semantics = shown.semantics
    yield printable(shown.path)
    if shown.layout is not None:
        yield f"  layout {shown.layout}"
    if semantics.model_type is not None:
        pairs = "" if semantics.pair_layout is None else f", pairs {semantics.pair_layout}"
        yield printable(f"  family {semantics.model_type}{pairs}")
    yield from _fields(
        (name, getattr(semantics, name), source) for name, source in semantics.sources.items()
    )
    if semantics.declaration is None:
        yield "  nothing declares a schedule"
    for note in semantics.notes:
        yield printable(f"  note: {note}")
    for layers, rope, sources in _schedules(semantics):
        yield ""
        has_none = layers[0] in semantics.without_attention
        yield f"  {counted(layers)}: {'no attention' if has_none else describe(rope)}"
        yield from _fields(
            (name, getattr(rope, name, None), source) for name, source in sources.items()
        )
    for facts in shown.graphs:
        yield ""
        plural = "" if facts.layers == 1 else "s"
        yield printable(f"  {facts.graph}: {facts.layers} attention layer{plural}")
        for site in facts.sites:
            for span in site.tensors:
                yield printable(
                    f"    {span.name:<24}{span.dtype} {list(span.shape)}, {span.length} bytes"
                    f" of {span.file} at {span.offset}"
                )
            yield printable(f"      {site.form} in {counted(site.layers)}")
        for item in facts.unread:
            yield printable(f"    not read: {item.node}: {item.reason}")


def _schedules(
    semantics: Semantics,
) -> Iterator[tuple[list[int], Rope | None, Mapping[str, Source]]]:
    grouped: dict[tuple[Rope | None, bool], list[int]] = {}
    without = {*semantics.without_attention}
    for index, rope in enumerate(semantics.layers):
        grouped.setdefault((rope, index in without), []).append(index)
    for (rope, _), layers in grouped.items():
        yield layers, rope, semantics.layer_sources[layers[0]]


def _fields(fields: Iterable[tuple[str, object, Source]]) -> Iterator[str]:
    """A line per field, in columns that are as wide as the names and values are."""
    lines = [
        (name, f"{len(value)} values" if isinstance(value, tuple) else str(value), str(source))
        for name, value, source in fields
    ]
    names, values = (max((len(line[i]) for line in lines), default=0) for i in (0, 1))
    for name, text, source in lines:
        yield printable(f"    {name:<{names}}  {text:<{values}}  {source}")
