"""Site: one place in one graph that rotates with one set of constants. Facts, no judgement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What genai_config says about the inputs of a graph (`model.decoder.inputs`).

    position_ids:   the name of the input that holds the positions.
    past_key_names: the names of the key caches, with `%d` for the layer; None where
                    nothing says it, and then layers are numbered as the graph runs them.
    """

    position_ids: str = "position_ids"
    past_key_names: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpan:
    """Where the bytes of one constant lie on disk.

    name:   the tensor's name in the graph.
    dtype:  "float32", "float16" or "bfloat16".
    shape:  its dims.
    file:   the file that holds the bytes, relative to the container, with `/`.
    offset, length: the span in bytes; little-endian, row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Nodes of one graph that rotate with the same two tensors in the same way.

    graph:       the ONNX file, relative to the container.
    form:        which finder found it, e.g. "GroupQueryAttention".
    nodes:       names (or `op#index` where a node has none) of the rotating nodes.
    layers:      the layers they serve, ascending.
    encoding:    how the table lies in the tensors: a key of `encodings.ENCODINGS`.
    interleaved: how the node pairs entries.
    rotary_dim:  entries that the node rotates.
    head_dim:    entries of a head, where the node takes them from its table and not
                 from the graph's shapes: contrib RotaryEmbedding without
                 rotary_embedding_dim cuts its input into heads of 2 * pairs entries.
    cos, sin:    of one dtype and shape. Two sites may share them, when they pair
                 entries differently or have different forms.
    """

    graph: str
    form: str
    nodes: tuple[str, ...]
    layers: tuple[int, ...]
    encoding: str
    interleaved: bool
    rotary_dim: int
    head_dim: int | None = None
    cos: TensorSpan
    sin: TensorSpan

    @property
    def rows(self) -> int:
        """Positions that the table holds."""
        return self.cos.shape[0]

    @property
    def pairs(self) -> int:
        """Entries of a row, one per pair."""
        return self.cos.shape[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A node that may rotate and whose constants could not be followed.

    node:   its name, or `op#index` where it has none.
    reason: one clause, printable.
    layer:  which it serves; None where that is unknown.
    """

    graph: str
    node: str
    op: str
    reason: str
    layer: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFacts:
    """What one ONNX file holds, as far as position goes.

    layers:    how many attention layers were counted in the graph (0: none seen).
    unrotated: layers whose attention is understood and which nothing rotates, ascending.
    """

    graph: str
    producer: str
    layers: int
    sites: tuple[Site, ...]
    unread: tuple[Unread, ...]
    unrotated: tuple[int, ...] = ()
