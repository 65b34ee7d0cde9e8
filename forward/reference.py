"""Reference: the logits that transformers gives, offline."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from forward.dump import Tokens, tokens_sha256
from forward.dump_writer import Provenance, resume_dump, write_dump
from forward.form import ALL, Form
from forward.prompt import check_tokens, of_prompt
from forward.sources import file_hashes, stamp
from forward.steps import Block, Step, plan
from forward.unfinished import Identity, check_free, unfinished
from packimport.errors import DependencyError, DumpError
from packimport.version import __version__

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

    def blocks(self, tokens: Tokens, steps: Sequence[Step], done: int = 0) -> Iterator[Block]:
        """Run the steps over `tokens`, int64 [count], with the cache carried over.

        Of the first `done` steps no logits.
        """
        if done == len(steps):
            return
        # transformers 5 has renamed past_key_values to cache, for most models.
        parameters = inspect.signature(self._model.forward).parameters
        name = "cache" if "cache" in parameters else "past_key_values"
        # Logits of one position alone, where the model can leave out the others.
        few = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        past = None
        with self._torch.inference_mode():
            for index, step in enumerate(steps):
                ids = self._torch.from_numpy(tokens[None, step.start : step.stop])
                ids = ids.to(self._device)
                options = {name: past, **(few if index < done else {})}
                output = self._model(input_ids=ids, use_cache=len(steps) > 1, **options)
                past = output[name] if len(steps) > 1 else None
                if index >= done:
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
    After a kill the same call goes on where it was, as `dump_pack` does.
    """
    check_free(out)
    with _opened(folder, config, torch_settings or Torch()) as job:
        job.check(tokens, form)
        steps = job.steps(tokens, chunk)
        return resume_dump(
            out,
            tokens,
            steps=steps,
            blocks=lambda done: job.reference.blocks(tokens, steps, done),
            provenance=job.provenance,
            chunk=job.width(chunk),
            identity=job.identity([tokens], chunk, form),
            form=form,
        )


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
    with _opened(folder, config, torch_settings or Torch()) as job:
        for index, tokens in enumerate(prompts):
            with of_prompt(index):
                job.check(tokens, form)
        with unfinished(out, job.identity(prompts, chunk, form)) as place:
            for index, tokens in enumerate(prompts):
                part = place / f"{index:05d}"
                if not part.exists():
                    blocks = job.reference.blocks(tokens, job.steps(tokens, chunk))
                    width = job.width(chunk)
                    write_dump(part, tokens, blocks, job.provenance, width, form=form)


@dataclass(frozen=True, slots=True)
class _Job:
    """An open checkpoint whose files are being hashed."""

    reference: Reference
    engine: Mapping[str, object]
    files: Mapping[str, Path]
    provenance: Callable[[], Provenance]

    def check(self, tokens: Tokens, form: Form) -> None:
        check_tokens(tokens, self.reference.vocab_size, "the checkpoint")
        form.kept(len(tokens))

    def width(self, chunk: int | None) -> int | None:
        return chunk or self.reference.chunk

    def steps(self, tokens: Tokens, chunk: int | None) -> tuple[Step, ...]:
        return plan(len(tokens), 0, self.width(chunk))

    def identity(self, prompts: Sequence[Tokens], chunk: int | None, form: Form) -> Identity:
        return {
            "tool": __version__,
            "engine": self.engine,
            "processors": os.cpu_count(),  # the order of torch's sums depends on it
            "files": {name: stamp(path) for name, path in self.files.items()},
            "tokens": [tokens_sha256(tokens) for tokens in prompts],
            "chunk": self.width(chunk),
            "form": form.to_json(),
        }


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
        engine: Mapping[str, object] = {
            "name": "transformers",
            **reference.versions,
            "dtype": settings.precision,
            "device": settings.device,
            "config": str(declared),
            "threads": settings.threads,
        }

        def provenance() -> Provenance:
            return Provenance(engine=engine, kind="checkpoint", path=str(folder), files=hashes())

        yield _Job(reference, engine, files, provenance)


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
