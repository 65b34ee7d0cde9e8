"""Find: every place in an ONNX file that rotates, and everything that might and is not read.

facts = find_sites(container, "model.onnx", Hints(past_key_names="past_key_values.%d.key"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from packimport.graph.attention import tracks
from packimport.graph.collector import resting
from packimport.graph.completeness import redefined_ops, unread_layers, unread_ops, unrotated
from packimport.graph.constants import Constants
from packimport.graph.dangling import dangling
from packimport.graph.forms import (
    group_query_attention,
    plain_ops,
    rotary_embedding,
    ryzen_ai,
    ryzen_ai_dispatch,
)
from packimport.graph.frame import Frame
from packimport.graph.heads import heads
from packimport.graph.lengths import Lengths
from packimport.graph.node import MICROSOFT, STANDARD
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.positions import PositionReader
from packimport.graph.ranks import Ranks
from packimport.graph.repeats import Repeats
from packimport.graph.rotation import Part, Rotation, Scene
from packimport.graph.sharing import shared
from packimport.graph.site import GraphFacts, Hints, Site, Unread
from packimport.graph.spans import Spans
from packimport.graph.strands import StrandReader
from packimport.graph.waves import WaveReader
from packimport.pack.container import Container

Finder = Callable[[Scene], Iterator[Rotation | Unread]]

# Form ─▶ its finder. A form is one module of `forms/` and one line here; its ops are
# those that `ops.READ` names.
FORMS: Mapping[str, Finder] = {
    group_query_attention.FORM: group_query_attention.find,
    rotary_embedding.FORM: rotary_embedding.find,
    plain_ops.FORM: plain_ops.find,
    ryzen_ai.FORM: ryzen_ai.find,
    ryzen_ai_dispatch.FORM: ryzen_ai_dispatch.find,
}

# Dims of positions that differ by axis: [3, batch, tokens].
_BY_AXIS = 3


def find_sites(container: Container, graph: str, hints: Hints | None = None) -> GraphFacts:
    """What the ONNX file `graph` of a container holds, as far as position goes.

    hints: what genai_config says about the graph's inputs. No verdict rests on the
    names of other tensors and nodes.

    Raises GraphError where the file is damaged or contradicts itself, and
    ContainerError where a data file is missing or outside the container. Reads the
    graph alone: no byte of external data, and no large value inside the graph.
    """
    with resting():
        return _found(container, graph, hints)


def _found(container: Container, graph: str, hints: Hints | None) -> GraphFacts:
    scene = _scene(OnnxFile(container, graph), hints or Hints())
    rotations: list[Rotation] = []
    unread: list[Unread] = []
    for find in FORMS.values():
        for found in find(scene):
            if isinstance(found, Rotation):
                rotations.append(found)
            else:
                unread.append(found)
    unread += unread_layers(scene, rotations)
    lost = tuple(dangling(scene))
    without = {item.layer for item in lost}
    unread = [item for item in unread if item.layer not in without]
    unread += unread_ops(scene, rotations)
    unread += redefined_ops(scene)
    unread += shared(scene, rotations)
    return GraphFacts(
        graph=graph,
        producer=scene.file.producer,
        layers=_count(scene, rotations),
        sites=tuple(_sites(graph, rotations)),
        unread=tuple(dict.fromkeys(unread)),
        unrotated=tuple(sorted({layer for track in scene.tracks for layer in unrotated(track)})),
        offloaded=any(t.shape == (0,) for body in scene.file.bodies() for t in body.tensors()),
        dangling=lost,
        heads=tuple(heads(scene)),
        axes=3 if scene.file.input_ranks.get(scene.hints.position_ids) == _BY_AXIS else 1,
    )


def _scene(file: OnnxFile, hints: Hints) -> Scene:
    spans = Spans(file)
    constants = Constants(file, spans)
    lengths = Lengths(constants, hints)
    positions = PositionReader(constants, lengths, hints)
    repeats = Repeats(constants, Ranks(constants, file.input_ranks))
    # A function that bears the name of an op is reported, and the op is what is looked at.
    own = {
        kind: body for kind, body in file.callable.items() if kind[0] not in {STANDARD, MICROSOFT}
    }
    main = Frame(file.main, own)
    return Scene(
        file=file,
        spans=spans,
        hints=hints,
        constants=constants,
        positions=positions,
        strands=StrandReader(
            constants, lengths, positions, WaveReader(constants, lengths, positions, repeats)
        ),
        main=main,
        tracks=tracks(main, constants, hints),
    )


def _count(scene: Scene, rotations: list[Rotation]) -> int:
    """The layers of the way with the most, or those that a compiled node stands for."""
    compiled = (len(r.layers) for r in rotations if r.form == ryzen_ai_dispatch.FORM)
    return max((*map(len, scene.tracks), *compiled), default=0)


def _sites(graph: str, rotations: list[Rotation]) -> Iterator[Site]:
    groups: dict[object, list[tuple[Rotation, Part]]] = {}
    for rotation in rotations:
        for part in rotation.parts:
            key = (
                rotation.form,
                rotation.frame.branch,
                _constants(part),
                part.encoding,
                part.length,
                rotation.interleaved,
                rotation.trailing,
                rotation.rotary_dim,
                rotation.head_dim,
                rotation.mrope,
            )
            groups.setdefault(key, []).append((rotation, part))
    for group in groups.values():
        first, part = group[0]
        sides = {side for rotation, _ in group for side in rotation.sides}
        yield Site(
            graph=graph,
            branch=first.frame.branch,
            form=first.form,
            nodes=tuple(dict.fromkeys(rotation.node.label for rotation, _ in group)),
            layers=tuple(sorted({layer for rotation, _ in group for layer in rotation.layers})),
            sides=tuple(side for side in ("query", "key") if side in sides),
            encoding=part.encoding,
            interleaved=first.interleaved,
            trailing=first.trailing,
            rotary_dim=first.rotary_dim,
            head_dim=first.head_dim,
            mrope=first.mrope,
            length=part.length,
            table=part.table,
            waves=part.waves,
        )


def _constants(part: Part) -> object:
    """What tells the constants of two parts apart: their bytes, else their values."""
    table, waves = part.table, part.waves
    if table is not None:
        spans = [(span.file, span.offset, span.dtype, span.shape) for span in table.tensors]
        return *spans, table.start, table.stop
    assert waves is not None
    place = (waves.span.file, waves.span.offset) if waves.span is not None else waves.values
    return place, waves.growth, waves.dtype, waves.cos_factor, waves.sin_factor
