"""Running Ryzen AI packs: what is asked of the vendor's runtime, and what is said without it.

No NPU is here. A stand-in for its plug-in records what it is asked for and runs the graph on
the CPU; what it should be asked is in onnxruntime-genai's src/ryzenai (as of 2026).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tiny_pack, write_json
from onnx import TensorProto, helper
from ryzen_packs import FAMILIES, Pack, build
from ryzen_tables import LLAMA3

from forward import cli
from forward.dump import read_dump
from forward.runner import run_logits

ROWS = 64
TOKENS = [3, 1, 4, 1, 5]
BY_PROVIDER = sorted(name for name, family in FAMILIES.items() if family.header == "provider")
BY_SESSION = sorted(name for name, family in FAMILIES.items() if family.header == "session")
LIBRARY = (
    "onnxruntime_providers_ryzenai.dll"
    if sys.platform == "win32"
    else "libonnxruntime_providers_ryzenai.so"
)
FOUND = f"onnxruntime {onnxruntime.__version__} without {LIBRARY}"


class Serve:
    """Runs the command in this process: `--dump-logits` over TOKENS."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.out = folder / "dump"
        write_json(folder / "tokens.json", TOKENS)

    def __call__(self, pack: Path, *args: object) -> tuple[int, str]:
        """The exit code and standard error."""
        words = [pack, "--tokens", self._folder / "tokens.json", "--dump-logits", self.out, *args]
        with pytest.raises(SystemExit) as caught:
            cli.main([str(word) for word in words])
        assert isinstance(caught.value.code, int)
        return caught.value.code, self._capsys.readouterr().err


@pytest.fixture
def serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Serve:
    return Serve(tmp_path, capsys)


@pytest.fixture(autouse=True)
def no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has set."""
    for name in ("RYZENAI_EP_PATH", "RYZEN_AI_INSTALLATION_PATH"):
        monkeypatch.delenv(name, raising=False)


def made(family: str, folder: Path) -> Pack:
    return build(family, folder / "pack", LLAMA3, tables=LLAMA3.right(ROWS))


def change(pack: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Edit the decoder's session options."""
    path = pack / "genai_config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    edit(whole["model"]["decoder"]["session_options"])
    write_json(path, whole)
    return pack


# --- without the runtime -------------------------------------------------------------------


@pytest.mark.parametrize("family", BY_PROVIDER)
def test_without_the_runtime_one_line_says_where_to_run(
    family: str, tmp_path: Path, serve: Serve
) -> None:
    code, err = serve(made(family, tmp_path).path)
    assert code == 3
    assert err == (
        "forward-serve: error:"
        " genai_config.json#/model/decoder/session_options/provider_options/0/RyzenAI:"
        " the pack runs on the Ryzen AI runtime, which this environment lacks;"
        f" found {FOUND}."
        " Run it in the environment of AMD's Ryzen AI Software, or let RYZENAI_EP_PATH name"
        " that library. `forward-serve CONTAINER --probe` needs no device.\n"
    )
    assert not serve.out.exists()


def test_the_runtime_is_missed_before_what_a_text_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pack without tokenizer.json, so that the text could not be read either."""
    pack = made("hybrid 1.7", tmp_path).path
    assert not (pack / "tokenizer.json").exists()
    for task in (["--dump-logits", str(tmp_path / "dump")], ["--generate", "3"]):
        with pytest.raises(SystemExit) as caught:
            cli.main([str(pack), *task, "--prompt", "a text"])
        assert caught.value.code == 3
        assert "the pack runs on the Ryzen AI runtime" in capsys.readouterr().err
    # On another provider the text counts.
    with pytest.raises(SystemExit):
        cli.main([str(pack), "--generate", "3", "--prompt", "a text", "--ep", "cpu"])
    assert "there is no tokenizer.json" in capsys.readouterr().err


@pytest.mark.parametrize("family", BY_SESSION)
def test_packs_whose_runtime_is_not_published_are_refused_by_their_option(
    family: str, tmp_path: Path, serve: Serve
) -> None:
    code, err = serve(made(family, tmp_path).path, "--allow-custom-ops", "0" * 64)
    assert code == 3
    assert err == (
        "forward-serve: error: genai_config.json#/model/decoder/session_options/custom_allocator:"
        " the pack asks for custom_allocator, which forward-serve never loads; found ryzen_mm."
        " Such a pack runs only in its vendor's environment."
        " `forward-serve CONTAINER --probe` needs no device.\n"
    )


def test_nodes_of_the_runtime_in_a_pack_that_does_not_name_it(tmp_path: Path, serve: Serve) -> None:
    pack = change(made("hybrid 1.7", tmp_path).path, lambda o: o.pop("provider_options"))
    code, err = serve(pack)
    assert code == 3
    assert err == (
        "forward-serve: error: model_jit.onnx: the graph has nodes of com.ryzenai, such as"
        f" {vendor_op(pack / 'model_jit.onnx')}, which the Ryzen AI runtime alone runs, and"
        " genai_config.json does not say how that is to be started; allowed: provider_options"
        " with RyzenAI, as Ryzen AI 1.7 and later write them. Such a pack runs only in its"
        " vendor's environment. `forward-serve CONTAINER --probe` needs no device.\n"
    )


def vendor_op(path: Path) -> str:
    """The op of the first node of AMD's domain."""
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    return next(str(node.op_type) for node in nodes if node.domain == "com.ryzenai")


def test_the_cpu_by_name(tmp_path: Path, serve: Serve) -> None:
    code, err = serve(made("hybrid 1.7", tmp_path).path, "--ep", "cpu")
    assert code == 3
    version = onnxruntime.__version__
    assert f"model_jit.onnx: onnxruntime {version} has no operator com.ryzenai:" in err
    assert "on the CPU. A graph made for an NPU or GPU runs only in that device's" in err
    assert err.count("\n") == 1


def test_a_variable_that_names_no_file(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZENAI_EP_PATH", str(tmp_path / "none.dll"))
    code, err = serve(made("hybrid 1.7", tmp_path).path)
    assert code == 3
    assert "RYZENAI_EP_PATH names no file; found " in err
    assert err.count("\n") == 1


def test_a_library_that_is_none(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real onnxruntime is asked to load it, and says that it is no library."""
    (tmp_path / LIBRARY).write_bytes(b"no library")
    monkeypatch.setenv("RYZENAI_EP_PATH", str(tmp_path / LIBRARY))
    code, err = serve(made("hybrid 1.7", tmp_path).path)
    assert code == 3
    assert "model_jit.onnx: onnxruntime" in err
    assert LIBRARY in err
    assert err.count("\n") == 1


def test_no_library_of_the_pack_or_the_working_directory_is_taken(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = made("hybrid 1.7", tmp_path).path
    (pack / LIBRARY).write_bytes(b"evil")
    monkeypatch.chdir(pack)
    code, err = serve(pack)
    assert code == 3
    assert f"found {FOUND}" in err


def test_the_runtime_is_asked_for_by_name(tmp_path: Path, serve: Serve) -> None:
    code, err = serve(tiny_pack(tmp_path / "pack"), "--ep", "ryzenai")
    assert code == 3
    assert "genai_config.json names no options of the Ryzen AI runtime" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_library": "x"}, "this option of the Ryzen AI runtime is not known"),
        ({"external_data_file": "../x.bin"}, "a path below the folder of this file"),
        ({"external_data_file": "C:\\x.bin"}, "a path below the folder of this file"),
        ({"external_data_file": "none.pb.bin"}, "none.pb.bin"),
        ({"hybrid_opt_max_seq_length": 4096}, "not a string"),
    ],
)
def test_options_that_are_not_known_are_refused(
    options: dict[str, object], message: str, tmp_path: Path, serve: Serve
) -> None:
    def edit(session: dict[str, Any]) -> None:
        session["provider_options"] = [{"RyzenAI": options}]

    code, err = serve(change(tiny_pack(tmp_path / "pack"), edit))
    assert code == 3
    assert message in err
    assert "genai_config.json" in err


def test_session_entries_that_are_not_known_are_refused(tmp_path: Path, serve: Serve) -> None:
    def edit(session: dict[str, Any]) -> None:
        session["provider_options"] = [{"RyzenAI": {}}]
        session["config_entries"] = {"session.load_config_from_model": "1"}

    code, err = serve(change(tiny_pack(tmp_path / "pack"), edit))
    assert code == 3
    assert "config_entries/session.load_config_from_model: this option" in err


# --- with a stand-in for the runtime -------------------------------------------------------

EP = "RyzenAILightExecutionProvider"


class Plugin(ModuleType):
    """onnxruntime with an NPU, whose graphs run on the CPU; `asked` is what it was asked for."""

    def __init__(self, npus: int = 1) -> None:
        super().__init__("onnxruntime")
        self.__file__ = onnxruntime.__file__
        self.asked: list[tuple[str, object]] = []
        self._npus = npus
        self._registered = False
        asked = self.asked

        class Options:
            """What is set beside the providers goes to real options."""

            def __init__(self) -> None:
                object.__setattr__(self, "real", onnxruntime.SessionOptions())

            def __setattr__(self, name: str, value: object) -> None:
                setattr(self.real, name, value)

            def add_session_config_entry(self, key: str, value: str) -> None:
                asked.append(("entry", (key, value)))

            def add_provider_for_devices(self, devices: list[Any], options: Any) -> None:
                asked.append(("provider", ([d.ep_name for d in devices], options)))

            def register_custom_ops_library(self, path: str) -> None:
                asked.append(("operators", path))

        class Session(onnxruntime.InferenceSession):
            def __init__(self, path: str, options: Options, providers: object) -> None:
                asked.append(("session", providers))
                super().__init__(path, options.real, providers=["CPUExecutionProvider"])

            def get_providers(self) -> list[str]:
                return [EP, "CPUExecutionProvider"]

        self.SessionOptions, self.InferenceSession = Options, Session

    def __getattr__(self, name: str) -> object:
        return getattr(onnxruntime, name)

    def register_execution_provider_library(self, name: str, path: str) -> None:
        assert not self._registered, "registered twice: onnxruntime refuses that"
        self._registered = True
        self.asked.append(("register", (name, path)))

    def get_ep_devices(self) -> list[Any]:
        kind = onnxruntime.OrtHardwareDeviceType
        here = [SimpleNamespace(ep_name="CPU", device=SimpleNamespace(type=kind.CPU))]
        if self._registered:
            here.append(SimpleNamespace(ep_name=EP, device=SimpleNamespace(type=kind.GPU)))
            npu = SimpleNamespace(ep_name=EP, device=SimpleNamespace(type=kind.NPU))
            here += [npu] * self._npus
        return here


def plugged(monkeypatch: pytest.MonkeyPatch, folder: Path, npus: int = 1) -> tuple[Plugin, Path]:
    plugin, library = Plugin(npus), folder / "runtime" / LIBRARY
    library.parent.mkdir()
    library.write_bytes(b"the vendor's")
    monkeypatch.setitem(sys.modules, "onnxruntime", plugin)
    return plugin, library


def cpu_pack(folder: Path) -> Path:
    """A pack that names the runtime, and whose graph runs on the CPU."""

    def edit(session: dict[str, Any]) -> None:
        settings = {"external_data_file": "model.pb.bin", "hybrid_opt_max_seq_length": "64"}
        session["provider_options"] = [{"RyzenAI": settings}]
        session["config_entries"] = {"hybrid_dbg_use_aie_rope": "0"}

    pack = change(tiny_pack(folder / "pack", form="rotary_embedding"), edit)
    (pack / "model.pb.bin").write_bytes(b"header")
    return pack


@pytest.mark.parametrize("named_by", ["variable", "installation"])
def test_the_runtime_gets_the_options_of_the_pack(
    named_by: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = cpu_pack(tmp_path)
    wanted = run_logits(tiny_pack(tmp_path / "other", form="rotary_embedding"), TOKENS).logits[:]
    plugin, library = plugged(monkeypatch, tmp_path)
    if named_by == "variable":
        monkeypatch.setenv("RYZENAI_EP_PATH", str(library))
    else:
        inside = tmp_path / "installed" / "deployment" / LIBRARY
        inside.parent.mkdir(parents=True)
        library = library.rename(inside)
        monkeypatch.setenv("RYZEN_AI_INSTALLATION_PATH", str(tmp_path / "installed"))
    code, err = serve(pack)
    assert (code, err) == (0, "")
    options = {"external_data_file": "model.pb.bin", "hybrid_opt_max_seq_length": "64"}
    assert plugin.asked == [
        ("register", (EP, str(library))),
        ("entry", ("model_root", str(pack.resolve()))),
        ("entry", ("hybrid_dbg_use_aie_rope", "0")),
        ("provider", ([EP], options)),
        ("operators", str(library)),
        ("session", None),
    ]
    dump = read_dump(serve.out)
    assert np.allclose(dump.logits[:], wanted, atol=1e-5)
    stated = json.loads((serve.out / "dump.json").read_text(encoding="utf-8"))
    assert stated["engine"]["provider"] == EP
    assert "model.pb.bin" in [file["name"] for file in stated["source"]["files"]]


def test_a_machine_without_an_npu(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = cpu_pack(tmp_path)
    _, library = plugged(monkeypatch, tmp_path, npus=0)
    monkeypatch.setenv("RYZENAI_EP_PATH", str(library))
    code, err = serve(pack)
    assert code == 3
    assert "the Ryzen AI runtime finds no NPU on this machine" in err
    assert "`forward-serve CONTAINER --probe` needs no device." in err


def test_the_cpu_by_name_asks_nothing_of_the_runtime(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = cpu_pack(tmp_path)
    plugin, library = plugged(monkeypatch, tmp_path)
    monkeypatch.setenv("RYZENAI_EP_PATH", str(library))
    monkeypatch.setattr(
        plugin.InferenceSession, "get_providers", lambda _: ["CPUExecutionProvider"]
    )
    assert serve(pack, "--ep", "cpu") == (0, "")
    assert plugin.asked == [("session", ["CPUExecutionProvider"])]


def test_a_runtime_that_hands_on_to_the_cpu_is_refused(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = cpu_pack(tmp_path)
    plugin, library = plugged(monkeypatch, tmp_path)
    monkeypatch.setenv("RYZENAI_EP_PATH", str(library))
    monkeypatch.setattr(
        plugin.InferenceSession, "get_providers", lambda _: ["CPUExecutionProvider"]
    )
    code, err = serve(pack)
    assert code == 3
    assert f"can't start {EP} here" in err


# --- custom operators ----------------------------------------------------------------------


@pytest.fixture
def marking(tmp_path: Path) -> tuple[bytes, Path]:
    """A real library that leaves a file when its operators are registered, and that file."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    mark, source = tmp_path / "loaded", tmp_path / "ops.c"
    source.write_text(
        "#include <stdio.h>\n"
        "void *RegisterCustomOps(void *o, void *a)\n"
        f'{{ fclose(fopen("{mark}", "w")); return 0; }}\n',
        encoding="utf-8",
    )
    made_at = tmp_path / "ops.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made_at), str(source)], check=True)
    return made_at.read_bytes(), mark


def test_the_library_of_a_plain_pack_is_loaded_by_its_hash_alone(
    tmp_path: Path, serve: Serve, marking: tuple[bytes, Path]
) -> None:
    library, mark = marking
    pack = tiny_pack(tmp_path / "pack")
    (pack / "onnx_custom_ops.dll").write_bytes(library)
    change(pack, lambda options: options.update(custom_ops_library="onnx_custom_ops.dll"))
    for args in ((), ("--allow-custom-ops", "0" * 64)):
        assert serve(pack, *args)[0] == 3
        assert not mark.exists()
    digest = hashlib.sha256(library).hexdigest()
    assert serve(pack, "--allow-custom-ops", digest) == (0, "")
    assert mark.exists()


def test_the_library_of_a_stage_is_never_loaded_unasked(
    tmp_path: Path, serve: Serve, marking: tuple[bytes, Path]
) -> None:
    library, mark = marking
    pack = tiny_pack(tmp_path / "pack")
    (pack / "onnx_custom_ops.dll").write_bytes(library)
    path = pack / "genai_config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    options = {"custom_ops_library": "onnx_custom_ops.dll"}
    stage = {"filename": "model.onnx", "session_options": options}
    whole["model"]["decoder"]["pipeline"] = [{"prefill": stage}]
    write_json(path, whole)
    code, err = serve(pack)
    assert code == 3
    assert "pipeline/0/prefill/session_options/custom_ops_library: the pack asks for" in err
    code, err = serve(pack, "--allow-custom-ops", hashlib.sha256(library).hexdigest())
    assert code == 3
    assert "a pack of several graphs (pipeline) can't be run yet" in err
    assert not mark.exists()


# --- one row of logits ---------------------------------------------------------------------


def last_row(stated: bool) -> Callable[[onnx.ModelProto], None]:
    """The logits of the last position alone, as packs of NPUs return them."""

    def edit(model: onnx.ModelProto) -> None:
        graph = model.graph
        head = next(node for node in graph.node if node.output[0] == "logits")
        graph.initializer.append(helper.make_tensor("last_at", TensorProto.INT64, [1], [-1]))
        cut = helper.make_node("Gather", [head.input[0], "last_at"], ["last_row"], "cut", axis=1)
        head.input[0] = "last_row"
        nodes = [*graph.node[:-1], cut, head]
        assert graph.node[-1] == head
        del graph.node[:]
        graph.node.extend(nodes)
        size = graph.output[0].type.tensor_type.shape.dim[1]
        size.Clear()
        if stated:
            size.dim_value = 1
        else:
            size.dim_param = "rows"

    return edit


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("stated", [True, False])
def test_a_graph_that_returns_the_last_row_is_scored_token_by_token(
    form: str, stated: bool, tmp_path: Path, serve: Serve
) -> None:
    whole = run_logits(tiny_pack(tmp_path / "whole", form=form), TOKENS)
    code, err = serve(tiny_pack(tmp_path / "last", form=form, change=last_row(stated)))
    assert (code, err) == (0, "")
    dump = read_dump(serve.out)
    assert dump.logits.shape == (len(TOKENS), 64)
    assert np.allclose(dump.logits[:], whole.logits[:], atol=1e-5)
    assert dump.prefill == len(TOKENS)
