"""Exporters: the releases behind a fault, where the fault, the model and its config tell them.

Every release named was built, and its tables were compared with transformers': a range
names the first and the last one tried. OGA is onnxruntime-genai's model builder; AMD's is
the one of onnxruntime-genai-directml-ryzenai, of which a Llama was built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from packimport.audit.judge import JudgedSite, fixed_length, used_length
from packimport.rope.schedule import Rope
from packimport.semantics.model import Semantics

_OGA = "onnxruntime-genai builder"
_AMD = "AMD's builder 0.7.0.1 (Ryzen AI 1.5)"
_RYZEN = "(Ryzen AI 1.4 to 1.7.1)"
_TRACERS = "optimum-onnx 0.1.0, torch's older exporter"

_LLAMA = frozenset({"llama"})
# What builder 0.18.0 builds by a class of its own that is made from Llama's.
_LLAMA_KIN = frozenset({"nemotron", "smollm3"})
_GEMMA3 = frozenset({"gemma3", "gemma3_text"})
_GPT_OSS = frozenset({"gpt_oss"})
_CHATGLM = frozenset({"chatglm"})
_PARTIAL = frozenset({"nemotron", "phi"})
_ALL: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Case:
    """A fault: the declared schedule, the family, and the site."""

    rope: Rope | None
    family: str
    judged: JudgedSite
    is_beyond: bool

    @property
    def names_beta(self) -> bool:
        return self.rope is not None and self.rope.beta_fast is not None


@dataclass(frozen=True, slots=True)
class _Row:
    """What is known of one fault.

    mistake:  its id in `MISTAKES`; None where the case alone tells.
    applies:  whether it is the case at hand.
    releases: as text.
    """

    mistake: str | None
    applies: Callable[[_Case], bool]
    releases: str


def _of(*families: frozenset[str]) -> Callable[[_Case], bool]:
    known = frozenset().union(*families)
    return lambda case: case.family in known


def _not_of(*families: frozenset[str]) -> Callable[[_Case], bool]:
    known = frozenset().union(*families)
    return lambda case: case.family not in known


def _any(_: _Case) -> bool:
    return True


def _yarn(families: frozenset[str], *, beta: bool) -> Callable[[_Case], bool]:
    """Yarn of a family, or of any where none is named, whose block names `beta_fast` or not."""
    return lambda case: (not families or case.family in families) and case.names_beta == beta


def _frozen(kinds: frozenset[str], *, computed: bool) -> Callable[[_Case], bool]:
    """One table, or one list of frequencies, where the schedule follows the length."""

    def applies(case: _Case) -> bool:
        is_computed = case.judged.site.waves is not None
        return (
            case.rope is not None
            and case.rope.type in kinds
            and case.judged.site.length is None
            and case.is_beyond
            and case.judged.measurement.wrong_pairs == 0
            and is_computed == computed
        )

    return applies


# The first row that applies counts.
_ROWS = (
    _Row("llama3-original-max", _any, f"{_OGA} 0.6.0 to 0.13.2 {_RYZEN}; {_AMD}"),
    _Row("llama3-lost", _not_of(_LLAMA), f"{_OGA} 0.15 to 0.16"),
    _Row("linear-lost", _of(_GEMMA3), f"{_OGA} 0.8.3 to 0.13.2"),
    _Row("linear-lost", _of(_LLAMA), f"{_OGA} 0.6.0 to 0.13.2 and 0.15.2 to 0.18.0; {_AMD}"),
    _Row("linear-lost", _of(_LLAMA_KIN), f"{_OGA} 0.6.0 to 0.13.2 and 0.18.0"),
    _Row("linear-lost", _any, f"{_OGA} 0.6.0 to 0.13.2"),
    _Row("linear-elsewhere", _of(_GEMMA3), f"{_OGA} 0.14.0 to 0.15.2"),
    _Row(
        "yarn-lost",
        _yarn(_LLAMA, beta=True),
        f"{_OGA} 0.6.0 to 0.8.3 and 0.15.2 to 0.18.0; {_AMD}",
    ),
    _Row("yarn-lost", _yarn(_LLAMA_KIN, beta=True), f"{_OGA} 0.6.0 to 0.8.3 and 0.18.0"),
    _Row("yarn-lost", _yarn(_ALL, beta=True), f"{_OGA} 0.6.0 to 0.8.3"),
    _Row("yarn-lost", _yarn(_LLAMA, beta=False), f"{_OGA} 0.6.0 to 0.18.0; {_AMD}"),
    _Row("yarn-lost", _yarn(_LLAMA_KIN, beta=False), f"{_OGA} 0.6.0 to 0.15.2 and 0.18.0"),
    _Row("yarn-lost", _yarn(_ALL, beta=False), f"{_OGA} 0.6.0 to 0.15.2"),
    _Row("yarn-upside-down", _of(_GPT_OSS), f"{_OGA} 0.14.0"),
    _Row("yarn-upside-down", _any, f"{_OGA} 0.9.2 to 0.13.2"),
    _Row("yarn-original-max", _of(_GPT_OSS), f"{_OGA} 0.9.2 to 0.13.2"),
    _Row("yarn-not-truncated", _any, f"{_OGA} 0.14.0 to 0.18.0"),
    _Row("attention-mscale", _any, f"{_OGA} 0.14.0 to 0.18.0"),
    _Row("attention-recomputed", _any, f"{_OGA} 0.14.0 to 0.18.0"),
    _Row("theta-lost", _of(_CHATGLM), f"{_OGA} 0.6.0 to 0.14.0"),
    _Row("theta-lost", _any, f"{_OGA} 0.9.2 and 0.11.2, for configs saved by transformers 5"),
    _Row(
        "partial-lost",
        _of(_PARTIAL),
        f"{_OGA} 0.9.2 to 0.15.2, for configs saved by transformers 5",
    ),
    _Row(
        "longrope-concatenated",
        _any,
        f"{_OGA} for DirectML, and for TRT-RTX 0.9.2 and 0.15.2 to 0.18.0",
    ),
    _Row(None, _frozen(frozenset({"dynamic"}), computed=False), f"{_OGA}, every release"),
    _Row(None, _frozen(frozenset({"dynamic", "longrope"}), computed=True), _TRACERS),
    _Row(
        None,
        lambda case: case.family == "smollm3" and None in case.judged.ropes,
        f"{_OGA}, every release that builds it",
    ),
    _Row(
        None,
        lambda case: case.family in _GEMMA3 and len({*case.judged.ropes} - {None}) > 1,
        "onnxruntime's fusion of rotary embeddings (read in its source, not run)",
    ),
)


def exporter_of(judged: JudgedSite, semantics: Semantics) -> str | None:
    """The releases that are known to make the fault of a site; None where none is."""
    mistake = judged.measurement.mistake
    ropes: list[Rope | None] = [rope for rope in judged.ropes if rope is not None]
    for rope in ropes or [None]:
        limit = None if rope is None else fixed_length(rope)
        case = _Case(
            rope=rope,
            family=semantics.model_type or "",
            judged=judged,
            is_beyond=rope is not None
            and limit is not None
            and used_length(judged.site, rope, semantics) > limit,
        )
        for row in _ROWS:
            if row.mistake in {None, mistake} and row.applies(case):
                return row.releases
    return None
