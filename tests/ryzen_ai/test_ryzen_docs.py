"""docs/ryzen-ai.md: every command is run, as it stands there, against packs of every family.

The hub is a server in this process that has the built pack under the names of the page.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from builders import tiny_pack
from llama3 import llama3, tables_of
from ryzen_graphs import Shape
from ryzen_packs import FAMILIES, build
from ryzen_tables import Declared, llama3_with_the_longest_as_original

from forward.cli import main as forward_main
from packimport.cli import main as packimport_main

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "ryzen-ai.md").read_text(encoding="utf-8")
SCRIPTS = Path(sys.executable).parent
SHELL = re.compile(r"[\\'`$^|<>&;*%]")
# The rope block of the page's model, as its config.json has it.
DEEPSEEK = Declared(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    llama3(64, 500000.0, 8.0, 1.0, 4.0, 8192),
)


@dataclass(frozen=True)
class Block:
    """A fenced block of the page: what the comment above it says, and its lines."""

    kind: str
    lines: tuple[str, ...]


BLOCKS = tuple(
    Block(kind, tuple(lines.splitlines()))
    for kind, lines in re.findall(r"<!-- (.+?) -->\n```\n(.*?)\n```", PAGE, re.DOTALL)
)


def blocks(start: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind.startswith(start)]


# --- the page ------------------------------------------------------------------------------


def test_every_block_of_the_page_is_known() -> None:
    assert PAGE.count("```") == 2 * len(BLOCKS)
    known = ("setup", "exit 0", "exit 1", "output")
    assert all(block.kind.startswith(known) for block in BLOCKS)


@pytest.mark.parametrize("line", [b for x in ("setup", "exit") for k in blocks(x) for b in k.lines])
def test_commands_are_the_same_in_every_shell(line: str) -> None:
    assert not SHELL.search(line), "a character that cmd, PowerShell or bash reads in its own way"
    assert line == line.strip()


def test_commands_in_the_text_are_those_of_the_blocks() -> None:
    """What starts like a command within the text names one that a block has, or an option."""
    commands = {line for block in BLOCKS for line in block.lines}
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    for quoted in re.findall(r"`([^`]+)`", text):
        if quoted.split()[0] in ("packimport", "forward-serve") and " " in quoted:
            known = any(line.startswith(quoted) for line in commands)
            assert known or quoted in EXTRA, quoted


# Commands in the text, with their exit codes; run beside those of the blocks.
EXTRA = {"packimport pack": 1, "packimport explain RPE001": 0}


# --- a hub ---------------------------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """What `hf download` asks of the hub, for the files of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._json(parts)
            return
        path = self.server.root.joinpath(*parts[:2], *parts[4:])
        if len(parts) > 4 and parts[2] == "resolve" and path.is_file():
            data = path.read_bytes()
            tag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": "0" * 40}
            self._send(data, tag)
            return
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, parts: list[str]) -> None:
        repo = self.server.root.joinpath(*parts[2:4])
        names = sorted(p.relative_to(repo).as_posix() for p in repo.rglob("*") if p.is_file())
        value: object = {
            "id": "/".join(parts[2:4]),
            "sha": "0" * 40,
            "private": False,
            "siblings": [{"rfilename": name} for name in names],
        }
        if "tree" in parts:
            value = [
                {"type": "file", "path": n, "size": (repo / n).stat().st_size, "oid": "0" * 40}
                for n in names
            ]
        self._send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


# --- the commands --------------------------------------------------------------------------


class Walk:
    """Runs lines of the page in one folder; `text` is what they printed."""

    def __init__(
        self,
        folder: Path,
        hub: Hub,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.folder = folder
        self.text = ""
        self._capsys = capsys
        folder.mkdir()
        monkeypatch.chdir(folder)
        for name in ("RYZENAI_EP_PATH", "RYZEN_AI_INSTALLATION_PATH"):
            monkeypatch.delenv(name, raising=False)
        self._environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf-home"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def __call__(self, line: str) -> int:
        words = shlex.split(line)
        self.text += f"$ {line}\n"
        mains = {"packimport": packimport_main, "forward-serve": forward_main}
        if words[0] in mains:
            # In this process: a start takes longer than most of the commands.
            with pytest.raises(SystemExit) as caught:
                mains[words[0]](words[1:])
            out, err = self._capsys.readouterr()
            code = caught.value.code
        else:
            words[0] = str(SCRIPTS / words[0])
            done = subprocess.run(
                words, check=False, capture_output=True, encoding="utf-8", env=self._environment
            )
            out, err, code = done.stdout, done.stderr, done.returncode
        self.text += out + err
        assert isinstance(code, int)
        return code


def published(hub: Hub, pack: Path, source: Path) -> None:
    """The pack and its config where the page's commands look for them."""
    (pack_line, config_line) = [
        line for block in BLOCKS for line in block.lines if line.startswith("hf download")
    ]
    there = hub.root / pack_line.split()[2]
    shutil.copytree(pack, there)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(there / "tokenizer.json"))
    config = hub.root / config_line.split()[2] / "config.json"
    config.parent.mkdir(parents=True)
    shutil.copy(source / "config.json", config)
    # The model has more than that; one file alone is asked for.
    (config.parent / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def ran(
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Walk:
    """A folder in which nothing has been run yet."""
    if shutil.which("hf", path=str(SCRIPTS)) is None:
        pytest.skip("needs the command hf of huggingface_hub 0.34 or later")
    return Walk(tmp_path / "here", hub, capsys, monkeypatch)


def walk(ran: Walk, code_of: Callable[[Block], int]) -> None:
    """Run every command of the page but those that set up environments."""
    words = np.random.default_rng(0).integers(1, 64, 120)
    (ran.folder / "text.txt").write_text(" ".join(f"w{i}" for i in words), encoding="utf-8")
    for block in blocks("exit"):
        for line in block.lines:
            code = ran(line)
            assert code == code_of(block), ran.text


def printed(ran: Walk, start: str) -> None:
    """The page's excerpts of outputs are what was printed."""
    for block in BLOCKS:
        if block.kind == start:
            for line in block.lines:
                assert line in ran.text, f"{line}\nis not in\n{ran.text}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_on_every_family(family: str, hub: Hub, ran: Walk, tmp_path: Path) -> None:
    rows = 1024
    longest = {**DEEPSEEK.config, "max_position_embeddings": 16384}
    pack = build(
        family, tmp_path / "built", Declared(longest, DEEPSEEK.inv_freq),
        tables=llama3_with_the_longest_as_original(Declared(longest, DEEPSEEK.inv_freq), rows),
        shape=Shape(head_size=128),
    )  # fmt: skip
    published(hub, pack.path, pack.source)

    def code_of(block: Block) -> int:
        if block.kind == "exit 0, or 3 without the device":
            # Nothing was dumped, so there is nothing to compare.
            return 3
        return int(block.kind.removeprefix("exit "))

    walk(ran, code_of)
    by_provider = FAMILIES[family].header == "provider"
    if by_provider:
        printed(ran, "output without the device")
    else:
        assert "custom_allocator: the pack asks for custom_allocator" in ran.text
    here = ran.folder
    for name in ("before", "after"):
        assert not (here / name).exists()
    # `undo` left the pack as the hub has it.
    there = next(hub.root.glob("amd/*"))
    for path in there.rglob("*"):
        if path.is_file():
            assert (here / "pack" / path.relative_to(there)).read_bytes() == path.read_bytes()
    # Of the copy only tables changed.
    for side in (FAMILIES[family].weights, *FAMILIES[family].side):
        assert (here / "mended" / side).read_bytes() == (there / side).read_bytes()
    for line, code in EXTRA.items():
        if line != "packimport pack" or pack.config is not None:
            assert ran(line) == code


def test_what_the_page_prints(hub: Hub, ran: Walk, tmp_path: Path) -> None:
    """Tables of the size of the page's pack, with the fault of its exporter."""
    rows = 131_072
    pack = build(
        "hybrid 1.7", tmp_path / "built", DEEPSEEK,
        tables=llama3_with_the_longest_as_original(DEEPSEEK, rows), usable=4096,
        shape=Shape(layers=32, head_size=128, hidden=64, vocab=64),
    )  # fmt: skip
    published(hub, pack.path, pack.source)
    walk(ran, lambda block: 3 if "device" in block.kind else int(block.kind.removeprefix("exit ")))
    printed(ran, "output")
    printed(ran, "output without the device")


def test_the_page_to_its_end_on_a_pack_that_runs_here(hub: Hub, ran: Walk, tmp_path: Path) -> None:
    """A pack of onnxruntime-genai in the place of AMD's: its logits are dumped and compared."""
    rows, block = 128, {**DEEPSEEK.config["rope_scaling"], "original_max_position_embeddings": 16}
    wrong = tables_of(llama3(8, 500000.0, 8.0, 1.0, 4.0, rows), rows)
    declared = {**DEEPSEEK.config, "max_position_embeddings": rows, "rope_scaling": block}
    pack = tiny_pack(tmp_path / "built", tables=(wrong[0], wrong[1]), config=declared, rows=rows)
    source = tmp_path / "source"
    source.mkdir()
    (pack / "config.json").rename(source / "config.json")
    published(hub, pack, source)
    walk(ran, lambda block: 0 if "device" in block.kind else int(block.kind.removeprefix("exit ")))
    assert "before: logits of 120 positions x 64" in ran.text
    assert "the patch" in ran.text


# --- the environments ----------------------------------------------------------------------


def test_the_line_that_installs_is_the_one_that_ci_runs() -> None:
    """`.ci/run` runs the README's demo command, which begins with it."""
    demo = re.search(r"<!-- demo command -->\n```\n(.+)\n", (ROOT / "README.md").read_text("utf-8"))
    assert demo is not None
    lines = [line for block in blocks("setup") for line in block.lines]
    assert demo[1].split("; ")[0] in lines


def test_an_environment_is_made_and_activated(tmp_path: Path) -> None:
    for line in (line for block in blocks("setup") for line in block.lines if " venv " in line):
        words = shlex.split(line)
        assert words[0] == "python"
        subprocess.run([sys.executable, *words[1:]], check=True, cwd=tmp_path)
    shells = dict(re.findall(r"^\| (\w+) \| `(.+?)` \|$", PAGE, re.MULTILINE))
    assert set(shells) == {"cmd", "PowerShell", "bash"}
    ask = 'python -c "import sys; print(sys.prefix)"'
    runs = (
        {"cmd": ["cmd", "/c", f"{shells['cmd']} && {ask}"],
         "PowerShell": ["powershell", "-ExecutionPolicy", "Bypass", "-Command",
                        f"{shells['PowerShell']}; {ask}"]}
        if sys.platform == "win32"
        else {"bash": ["bash", "-c", f"{shells['bash']} && {ask}"]}
    )  # fmt: skip
    for words in runs.values():
        done = subprocess.run(words, check=True, capture_output=True, encoding="utf-8",
                              cwd=tmp_path)  # fmt: skip
        assert Path(done.stdout.strip()) == tmp_path / "packimport-env"
    settings = (tmp_path / "logits-env" / "pyvenv.cfg").read_text(encoding="utf-8")
    assert "include-system-site-packages = true" in settings


@pytest.mark.oracle
def test_the_lines_that_install(tmp_path: Path) -> None:
    """In fresh environments, from the index of packages."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("packimport", "forward", "schemas", "docs", "pyproject.toml", "README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    (root / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    environment, python = "", ""
    for line in (line for block in blocks("setup") for line in block.lines):
        words = shlex.split(line)
        if " venv " in line:
            environment = words[-1]
            subprocess.run([sys.executable, *words[1:]], check=True, cwd=root)
            folder = root / environment / ("Scripts" if sys.platform == "win32" else "bin")
            python = str(folder / "python")
            continue
        subprocess.run([python, *words[1:], "--quiet"], check=True, cwd=root)
        for command in ("packimport", "forward-serve"):
            subprocess.run([str(folder / command), "--version"], check=True, cwd=tmp_path)
    # The first has the command that gets packs; the second brought no onnxruntime of its own.
    first = root / "packimport-env" / ("Scripts" if sys.platform == "win32" else "bin")
    assert shutil.which("hf", path=str(first)) is not None
    assert environment == "logits-env"
    assert not list((root / environment).rglob("site-packages/onnxruntime"))
