"""Find: every place in an ONNX file that rotates, and everything that might and is not read.

facts = find_sites(container, "model.onnx", Hints(past_key_names="past_key_values.%d.key"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from packimport.graph.attention import attentions
from packimport.graph.completeness import redefined_ops, unread_layers, unread_ops, unrotated
from packimport.graph.forms import group_query_attention, rotary_embedding
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.rotation import Rotation, Scene
from packimport.graph.sharing import shared
from packimport.graph.site import GraphFacts, Hints, Site, Unread
from packimport.graph.spans import Spans
from packimport.pack.container import Container

Finder = Callable[[Scene], Iterator[Rotation | Unread]]

# Form ─▶ its finder. A form is one module of `forms/` and one line here; the ops
# that it reads leave `completeness`.
FORMS: Mapping[str, Finder] = {
    group_query_attention.FORM: group_query_attention.find,
    rotary_embedding.FORM: rotary_embedding.find,
}


def find_sites(container: Container, graph: str, hints: Hints | None = None) -> GraphFacts:
    """What the ONNX file `graph` of a container holds, as far as position goes.

    hints: what genai_config says about the graph's inputs. No verdict rests on the
    names of other tensors and nodes.

    Raises GraphError where the file is damaged or contradicts itself, and
    ContainerError where a data file is missing or outside the container. Reads the
    graph alone: no byte of external data, and no large value inside the graph.
    """
    file = OnnxFile(container, graph)
    spans = Spans(file)
    hints = hints or Hints()
    scene = Scene(file=file, spans=spans, hints=hints, attentions=attentions(file.main, hints))
    rotations: list[Rotation] = []
    unread: list[Unread] = []
    for find in FORMS.values():
        for found in find(scene):
            if isinstance(found, Rotation):
                rotations.append(found)
            else:
                unread.append(found)
    for others in (unread_ops, redefined_ops, unread_layers):
        unread += others(scene)
    unread += shared(scene, rotations)
    return GraphFacts(
        graph=graph,
        producer=file.producer,
        layers=len(scene.attentions),
        sites=tuple(_sites(graph, rotations)),
        unread=tuple(unread),
        unrotated=unrotated(scene),
    )


def _sites(graph: str, rotations: list[Rotation]) -> Iterator[Site]:
    groups: dict[object, list[Rotation]] = {}
    for rotation in rotations:
        cos, sin = rotation.tables.cos, rotation.tables.sin
        key = (
            rotation.form,
            (cos.file, cos.offset),
            (sin.file, sin.offset),
            (cos.dtype, cos.shape),
            rotation.encoding,
            rotation.interleaved,
            rotation.rotary_dim,
            rotation.head_dim,
        )
        groups.setdefault(key, []).append(rotation)
    for group in groups.values():
        first = group[0]
        yield Site(
            graph=graph,
            form=first.form,
            nodes=tuple(rotation.node.label for rotation in group),
            layers=tuple(sorted({layer for rotation in group for layer in rotation.layers})),
            encoding=first.encoding,
            interleaved=first.interleaved,
            rotary_dim=first.rotary_dim,
            head_dim=first.head_dim,
            cos=first.tables.cos,
            sin=first.tables.sin,
        )
