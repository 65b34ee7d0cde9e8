"""The runtime of Ryzen AI: what a pack says to it, where it lies, and how it joins a session.

It is a plug-in of onnxruntime, a library that AMD's software brings: an execution provider
for the NPU, and the operators of `com.ryzenai`. It is used as onnxruntime-genai does
(its src/ryzenai, as of 2026): the provider is registered
under its name, its NPU devices are added with the options of genai_config.json, and the
library's operators are registered. The library is the machine's, never the pack's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

from packimport.errors import DependencyError, GraphError
from packimport.pack.container import Container
from packimport.pack.document import Document

# The name in genai_config.json, the provider's in onnxruntime, the variable that names its
# library, and the one that names where AMD's software is installed.
NAME, PROVIDER = "RyzenAI", "RyzenAILightExecutionProvider"
VARIABLE, INSTALLATION = "RYZENAI_EP_PATH", "RYZEN_AI_INSTALLATION_PATH"
LIBRARY = (
    "onnxruntime_providers_ryzenai.dll"
    if sys.platform == "win32"
    else "libonnxruntime_providers_ryzenai.so"
)
ELSEWHERE = (
    f"Run it in the environment of AMD's Ryzen AI Software, or let {VARIABLE} name that library."
    " `forward-serve CONTAINER --probe` needs no device."
)

# What is known of the options: figures and switches, and one file of the pack.
_PREFIXES = ("hybrid_opt_", "hybrid_dbg_")
_FIGURES = ("max_length_for_kv_cache",)
_FILE = "external_data_file"


@dataclass(frozen=True, kw_only=True, slots=True)
class RyzenAI:
    """What genai_config.json says to the runtime.

    place:   where it says so.
    options: of the provider. entries: of the session.
    files:   those of the pack that the options name.
    """

    place: str
    options: Mapping[str, str]
    entries: Mapping[str, str]
    files: tuple[str, ...]


def read_ryzen_ai(container: Container, session_options: Document | None) -> RyzenAI | None:
    """What a decoder's session options say to the runtime; None where they don't name it.

    Raises DocumentError for an option that is not known, ContainerError for a file outside
    the pack.
    """
    providers = None if session_options is None else session_options.get("provider_options")
    named = [
        entry.require(NAME)
        for entry in (providers.items() if providers is not None else ())
        if entry.has(NAME)
    ]
    if not named:
        return None
    if len(named) > 1:
        raise named[1].error("the provider is named twice", allowed="one entry")
    assert session_options is not None
    settings, entries = named[0], session_options.get("config_entries")
    options = _texts(settings)
    return RyzenAI(
        place=settings.place,
        options=options,
        entries={} if entries is None else _texts(entries, ()),
        files=tuple(
            container.safe_name(options[key], settings.file) for key in (_FILE,) if key in options
        ),
    )


def find_library(ort: ModuleType) -> Path | None:
    """The library of the runtime; None where the machine has none.

    It is looked for where the variable says, beside onnxruntime and onnxruntime-genai, and
    where AMD's software is installed: neither in the pack nor in the working directory.
    Raises DependencyError where the variable names no file.
    """
    stated = os.environ.get(VARIABLE)
    if stated:
        if not Path(stated).is_file():
            raise DependencyError(
                f"{VARIABLE} names no file", found=stated, allowed=f"the path of {LIBRARY}"
            )
        return Path(stated)
    return next((path for path in _places(ort) if path.is_file()), None)


def library_for(ort: ModuleType, wanted: RyzenAI) -> Path:
    """The library of the runtime. Raises DependencyError without it."""
    library = find_library(ort)
    if library is None or not hasattr(ort, "get_ep_devices"):
        lacks = LIBRARY if library is None else "plug-in providers, which came with 1.23"
        raise DependencyError(
            "the pack runs on the Ryzen AI runtime, which this environment lacks",
            place=wanted.place,
            found=f"onnxruntime {ort.__version__} without {lacks}",
            fix=ELSEWHERE,
        )
    return library


def join(ort: ModuleType, options: Any, wanted: RyzenAI, root: Path) -> None:
    """Add the runtime to the options of a session.

    root: the folder of the pack, from which the runtime takes the files of its options.
    Raises DependencyError without the runtime, GraphError without an NPU.
    """
    library = library_for(ort, wanted)
    if not _devices(ort, None):
        add_folder = getattr(os, "add_dll_directory", None)  # Windows alone has it
        if add_folder is not None:
            add_folder(str(library.resolve().parent))
        ort.register_execution_provider_library(PROVIDER, str(library))
    devices = _devices(ort, ort.OrtHardwareDeviceType.NPU)
    if not devices:
        raise GraphError(
            "the Ryzen AI runtime finds no NPU on this machine",
            place=wanted.place,
            fix="Look at the NPU's driver. `forward-serve CONTAINER --probe` needs no device.",
        )
    options.add_session_config_entry("model_root", str(root))
    for key, value in wanted.entries.items():
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices(devices, dict(wanted.options))
    options.register_custom_ops_library(str(library))


def lacking(place: str, domain: str, op: str) -> DependencyError:
    """The error for a graph with an operator of the runtime, in a pack that does not name it."""
    return DependencyError(
        f"the graph has nodes of {domain}, such as {op}, which the Ryzen AI runtime alone runs,"
        " and genai_config.json does not say how that is to be started",
        place=place,
        allowed=f"provider_options with {NAME}, as Ryzen AI 1.7 and later write them",
        fix="Such a pack runs only in its vendor's environment."
        " `forward-serve CONTAINER --probe` needs no device.",
    )


def _texts(document: Document, files: tuple[str, ...] = (_FILE,)) -> dict[str, str]:
    for key, value in document.fields().items():
        if key not in (*_FIGURES, *files) and not key.startswith(_PREFIXES):
            raise value.error(
                "this option of the Ryzen AI runtime is not known",
                allowed=", ".join((*files, *_FIGURES, *(f"{prefix}*" for prefix in _PREFIXES))),
                fix="Take it out of a copy of the pack, or run the pack in its own environment.",
            )
    return {key: value.text() for key, value in document.fields().items()}


def _devices(ort: ModuleType, kind: object) -> list[object]:
    return [
        device
        for device in ort.get_ep_devices()
        if device.ep_name == PROVIDER and kind in (None, device.device.type)
    ]


def _places(ort: ModuleType) -> Iterator[Path]:
    if ort.__file__ is not None:
        yield Path(ort.__file__).parent / "capi" / LIBRARY
    beside = util.find_spec("onnxruntime_genai")
    if beside is not None and beside.origin is not None:
        yield Path(beside.origin).parent / LIBRARY
    installed = os.environ.get(INSTALLATION)
    if installed:
        for folder in ("deployment", "deployment/lib"):
            yield Path(installed) / folder / LIBRARY
