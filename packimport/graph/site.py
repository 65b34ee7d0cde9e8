"""Site: one place in one graph that rotates with one set of constants. Facts, no judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Encoding ─▶ stored entries of a row per pair; see `encodings.ENCODINGS`.
ENTRIES: Mapping[str, int] = MappingProxyType(
    {"pairs": 1, "halves": 2, "repeated": 2, "cos-sin": 2, "sin-cos": 2, "hi-lo": 4}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What the configs say about the graphs: most of it is genai_config's `model.decoder.inputs`.

    position_ids:   the name of the input that holds the positions.
    attention_mask: the name of the input that is as wide as past and new tokens together.
    past_key_names: the names of the key caches, with `%d` for the layer; None where
                    nothing says it, and then layers are numbered as the graph runs them.
    long_rows:      where the provider's options say that the tables for long calls start
                    in tables of two lengths; None where they say nothing.
    layers:         how many the model has; None where nothing says it.
    without:        those of them that have no attention.
    """

    position_ids: str = "position_ids"
    attention_mask: str = "attention_mask"
    past_key_names: str | None = None
    long_rows: int | None = None
    layers: int | None = None
    without: tuple[int, ...] = ()

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that have attention; () where nothing says how many layers there are."""
        without = {*self.without}
        return tuple(i for i in range(self.layers or 0) if i not in without)


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
class ByLength:
    """For which calls a graph uses a table: those above `limit` tokens, or those up to it.

    The tokens are past and new ones together.
    """

    limit: int
    long: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpans:
    """A stored table: cos and sin, of one dtype, and the rows that are positions 0 ..

    tensors: the one that holds cos and the one that holds sin, of one shape; or the one
             that holds both.

    Rows start .. stop are the positions from 0 on; other rows belong to another length
    of call, or to nobody.
    """

    tensors: tuple[TensorSpan, ...]
    start: int
    stop: int

    @property
    def cos(self) -> TensorSpan:
        """The tensor that holds cos."""
        return self.tensors[0]

    @property
    def sin(self) -> TensorSpan:
        """The tensor that holds sin; that of cos where it holds both."""
        return self.tensors[-1]

    def pairs(self, encoding: str) -> int:
        """Pairs of a row, stored in an encoding."""
        return self.cos.shape[-1] // ENTRIES[encoding]


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """A base that a graph computes from the total length of the call, as `dynamic` has it.

    theta * (factor * length / longest - (factor - 1)) ** (d / (d - 2)), d = 2 * pairs.
    """

    theta: float
    factor: float
    longest: float
    pairs: int

    @property
    def sample(self) -> int:
        """The length of call at which `Waves.values` stand for all others."""
        return 2 * int(self.longest)

    def base(self, length: int) -> float:
        """The base of a call of `length` positions."""
        d = 2 * self.pairs
        stretch = self.factor * length / self.longest - (self.factor - 1)
        return float(self.theta * stretch ** (d / (d - 2)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Waves:
    """Frequencies that a graph computes cos and sin from, at every position anew.

    values:  radians per position, as the graph computes with them.
    span:    where they are stored as they are; None where the graph computes them.
    dtype:   of the angles: the shortest float on their way.
    cos_factor, sin_factor: what the graph multiplies cos and sin by.
    factors: the constants of those, where nothing else uses them; () where there
             are none, or not alone.
    trig:    the Cos and Sin nodes.
    growth:  where the frequencies follow the length of the call: how; `values` are then
             those of a call of `growth.sample` positions.
    """

    values: tuple[float, ...]
    span: TensorSpan | None
    dtype: str
    cos_factor: float = 1.0
    sin_factor: float = 1.0
    factors: tuple[TensorSpan, ...] = ()
    trig: tuple[str, ...] = ()
    growth: Growth | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Nodes of one graph that rotate with the same constants in the same way.

    graph:       the ONNX file, relative to the container.
    branch:      the body in it: "" for the main graph, else e.g. "then_branch of /If".
    form:        which finder found it, e.g. "GroupQueryAttention".
    nodes:       names (or `op#index` where a node has none) of the rotating nodes.
    layers:      the layers they serve, ascending.
    sides:       what they rotate: "query", "key" or both.
    encoding:    how the constants lie in the tensors: a key of `encodings.ENCODINGS`.
    interleaved: how the node pairs entries; None where it does not say.
    trailing:    whether the rotated entries are the end of a head, not its start.
    rotary_dim:  entries that the node rotates.
    head_dim:    entries of a head, where the node takes them from its table and not
                 from the graph's shapes: contrib RotaryEmbedding without
                 rotary_embedding_dim cuts its input into heads of 2 * pairs entries.
    mrope:       the layout and the sections of positions in three axes; None for one axis.
    length:      the lengths of call that it serves; None for all.
    table, waves: the constants; one of them is None. Two sites may share a table, when
                 they pair entries differently or have different forms.
    """

    graph: str
    branch: str = ""
    form: str
    nodes: tuple[str, ...]
    layers: tuple[int, ...]
    sides: tuple[str, ...] = ("query", "key")
    encoding: str
    interleaved: bool | None
    trailing: bool = False
    rotary_dim: int
    head_dim: int | None = None
    mrope: tuple[int, ...] | None = None
    length: ByLength | None = None
    table: TableSpans | None = None
    waves: Waves | None = None

    @property
    def cos(self) -> TensorSpan:
        """The tensor that holds cos, of a site that has a table."""
        assert self.table is not None
        return self.table.cos

    @property
    def sin(self) -> TensorSpan:
        """The tensor that holds sin, of a site that has a table."""
        assert self.table is not None
        return self.table.sin

    @property
    def rows(self) -> int:
        """Positions that the table holds, of a site that has one."""
        assert self.table is not None
        return self.table.stop - self.table.start

    @property
    def pairs(self) -> int:
        """Pairs that rotate."""
        if self.waves is not None:
            return len(self.waves.values)
        assert self.table is not None
        return self.table.pairs(self.encoding)

    @property
    def tensors(self) -> tuple[TensorSpan, ...]:
        """The constants on disk; () where the graph computes its frequencies."""
        if self.table is not None:
            return self.table.tensors
        assert self.waves is not None
        return () if self.waves.span is None else (self.waves.span,)

    @property
    def dtype(self) -> str:
        """Of the table's entries, or of the angles."""
        return self.cos.dtype if self.waves is None else self.waves.dtype

    @property
    def names(self) -> str:
        """Its constants, or the nodes that compute with them, as short text."""
        if self.tensors:
            return ", ".join(span.name for span in self.tensors)
        assert self.waves is not None
        return ", ".join(self.waves.trig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A node that may rotate and whose constants could not be followed.

    node:   its name, or `op#index` where it has none.
    reason: one clause, printable.
    layer:  which it serves; None where that is unknown.
    own_table: whether the kernel makes a plain table of its own.
    offloaded: whether the values of its table were moved out of the graph's files.
    """

    graph: str
    node: str
    op: str
    reason: str
    layer: int | None = None
    own_table: bool = False
    offloaded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Heads:
    """How some attention layers cut q and k into heads, as the graph states it.

    node:   of the first layer.
    query:  heads of the query; keys: of the key; sizes: entries of a head. All that the node,
            its cache and its shapes state: () where they state none, and more than one
            number where they contradict each other.
    """

    node: str
    layers: tuple[int, ...]
    query: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFacts:
    """What one ONNX file holds, as far as position goes.

    layers:    how many attention layers were counted in the graph, or stand in a compiled
               node of it (0: none seen).
    unrotated: layers whose attention is understood and which nothing rotates, ascending.
    offloaded: whether tensors of it have the shape [0]: their values lie elsewhere.
    dangling:  nodes of the layers whose rotations can't run: see module `dangling`.
    heads:     how its attention layers cut q and k, one record per way.
    axes:      of positions that it is fed: 3 where one counts rows and columns of images.
    """

    graph: str
    producer: str
    layers: int
    sites: tuple[Site, ...]
    unread: tuple[Unread, ...]
    unrotated: tuple[int, ...] = ()
    offloaded: bool = False
    dangling: tuple[Unread, ...] = ()
    heads: tuple[Heads, ...] = ()
    axes: int = 1
