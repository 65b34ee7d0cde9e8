"""Reference: the logits that transformers gives, offline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from forward.dump import Tokens
from forward.dump_writer import Provenance, write_dump
from forward.form import ALL, Form
from forward.prompt import check_tokens, of_prompt
from forward.sources import file_hashes
from forward.steps import Block, Step, plan
from forward.unfinished import check_free, unfinished
from packimport.errors import DependencyError, DumpError

CONFIG = "config.json"

# Positions of one forward pass where the schedule does not look at the length.
CHUNK = 512
_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Torch:
    """How torch runs a model. precision: "float32" or "bfloat16". device: as torch names it."""

    threads: int | None = None
    precision: str = "float32"
    device: str = "cpu"


class Reference:
    """A checkpoint that is ready to run.

    vocab_size: token ids are below it.
    chunk:      positions of a pass; None where the whole text must be fed at once.
    """

    def __init__(
        self, transformers: ModuleType, torch: ModuleType, model: Any, device: str = "cpu"
    ) -> None:
        # torch and transformers are optional and looked at by nobody else: Any.
        self._torch = torch
        self._model = model.to(device)
        self._device = device
        self.versions = {"version": transformers.__version__, "torch": torch.__version__}
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.chunk = None if _looks_at_length(model) else CHUNK

    def blocks(self, tokens: Tokens, steps: Sequence[Step]) -> Iterator[Block]:
        """Run the steps over `tokens`, int64 [count], with the cache carried over."""
        # transformers 5 has renamed past_key_values to cache, for most models.
        parameters = inspect.signature(self._model.forward).parameters
        name = "cache" if "cache" in parameters else "past_key_values"
        past = None
        with self._torch.inference_mode():
            for step in steps:
                ids = self._torch.from_numpy(tokens[None, step.start : step.stop])
                ids = ids.to(self._device)
                output = self._model(input_ids=ids, use_cache=len(steps) > 1, **{name: past})
                past = output[name] if len(steps) > 1 else None
                yield Block(step, output.logits[0].float().cpu().numpy())


def open_reference(folder: Path, config: Path, settings: Torch | None = None) -> Reference:
    """The checkpoint in `folder` under the config.json at `config`. No code of it is run.

    Raises DependencyError without torch or transformers, DumpError where the
    weights are not those of the config, or torch has no such device.
    """
    settings = settings or Torch()
    transformers, torch = _modules()
    _check_device(torch, settings.device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        declared = transformers.AutoConfig.from_pretrained(str(config), **offline)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=declared,
            dtype=getattr(torch, settings.precision),
            output_loading_info=True,
            **offline,
        )
    except MemoryError:
        raise
    except Exception as error:  # transformers raises whatever its parts do
        text = " ".join(str(error).split())[:300]
        raise DumpError(f"transformers can't load it: {text}", place=str(folder)) from error
    for kind in ("missing_keys", "mismatched_keys"):
        if report[kind]:
            # It would fill them with random numbers.
            raise DumpError(
                f"the checkpoint lacks weights that the config asks for ({kind})",
                place=str(folder),
                found=sorted(map(str, report[kind]))[:3],
                fix=f"Is {config} the config of this checkpoint?",
            )
    return Reference(transformers, torch, model.eval(), settings.device)


def _check_device(torch: ModuleType, device: str) -> None:
    """Refuse a device that torch does not have here: it would not fall back, but fail late."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DumpError(
            f"torch {torch.__version__} can't use this device",
            place="--device",
            found=device,
            allowed="cpu, or a device of this machine that torch was built for",
        ) from error


def dump_reference(
    folder: Path,
    out: Path,
    tokens: Tokens,
    *,
    config: Path | None = None,
    chunk: int | None = None,
    torch_settings: Torch | None = None,
    form: Form = ALL,
) -> tuple[int, int]:
    """The reference logits of `tokens`, int64 [count], as a new dump; returns [positions, vocab].

    config: another config.json for the weights of `folder`, such as one that
            declares another schedule.
    chunk:  positions of a pass; None leaves it to the schedule.
    """
    check_free(out)
    with _opened(folder, config, torch_settings or Torch()) as job:
        return job.dump(out, tokens, chunk, form)


def dump_references(
    folder: Path,
    out: Path,
    prompts: Sequence[Tokens],
    *,
    config: Path | None = None,
    chunk: int | None = None,
    torch_settings: Torch | None = None,
    form: Form = ALL,
) -> None:
    """The same of every prompt, as `out`/00000, `out`/00001 and so on: all of them or none."""
    check_free(out)
    with _opened(folder, config, torch_settings or Torch()) as job, unfinished(out) as place:
        for index, tokens in enumerate(prompts):
            with of_prompt(index):
                job.check(tokens, form)
        for index, tokens in enumerate(prompts):
            job.dump(place / f"{index:05d}", tokens, chunk, form)


@dataclass(frozen=True, slots=True)
class _Job:
    """An open checkpoint whose files are being hashed."""

    reference: Reference
    provenance: Callable[[], Provenance]

    def check(self, tokens: Tokens, form: Form) -> None:
        check_tokens(tokens, self.reference.vocab_size, "the checkpoint")
        form.kept(len(tokens))

    def dump(self, out: Path, tokens: Tokens, chunk: int | None, form: Form) -> tuple[int, int]:
        self.check(tokens, form)
        width = chunk or self.reference.chunk
        blocks = self.reference.blocks(tokens, plan(len(tokens), 0, width))
        return write_dump(out, tokens, blocks, self.provenance, width, form=form)


@contextmanager
def _opened(folder: Path, config: Path | None, settings: Torch) -> Iterator[_Job]:
    declared = folder / CONFIG if config is None else config
    files = _files(folder) | {CONFIG if config is None else str(config): declared}
    if not declared.is_file():
        raise DumpError(
            "there is no config.json",
            place=str(declared),
            fix="Pass a transformers folder, and a file as --config.",
        )
    with file_hashes(files) as hashes:
        reference = open_reference(folder, declared, settings)

        def provenance() -> Provenance:
            engine: Mapping[str, object] = {
                "name": "transformers",
                **reference.versions,
                "dtype": settings.precision,
                "device": settings.device,
                "config": str(declared),
                "threads": settings.threads,
            }
            return Provenance(engine=engine, kind="checkpoint", path=str(folder), files=hashes())

        yield _Job(reference, provenance)


def _files(folder: Path) -> dict[str, Path]:
    """The files of weights, by name."""
    files = {path.name: path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    if not files:
        raise DumpError(
            "no checkpoint: the folder holds no weights",
            place=str(folder),
            allowed=", ".join(_WEIGHTS[:2]),
            fix="Pass the folder of a transformers model.",
        )
    return files


def _looks_at_length(model: Any) -> bool:
    """Whether a rotary module chooses its frequencies by the length of the pass.

    A text fed in parts would get other logits there than one fed at once. These are
    the types that transformers' dynamic_rope_update acts on (modeling_rope_utils.py).
    """
    found = [getattr(module, "rope_type", None) for module in model.modules()]
    types = [t for kind in found for t in (kind.values() if isinstance(kind, dict) else (kind,))]
    return any(isinstance(t, str) and ("dynamic" in t or t == "longrope") for t in types)


def _modules() -> tuple[ModuleType, ModuleType]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise DependencyError(
            "a reference needs torch and transformers, which are not installed",
            found=error.name,
            fix="Install them: pip install torch transformers safetensors tokenizers",
        ) from error
    return transformers, torch
