"""Imports run one way, and onnx and onnxruntime have one door each."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path.relative_to(ROOT)
    for top in ("packimport", "forward")
    for path in (ROOT / top).rglob("*.py")
)

# The floor of a module is that of the longest prefix that matches. A module may
# import its own floor and those below it.
FLOORS = {
    "packimport": 0,  # the package itself only names its API, lazily
    "packimport.errors": 0,
    "packimport.version": 0,
    "packimport.rope": 1,
    "packimport.pack": 1,
    "packimport.semantics": 2,
    "packimport.graph": 2,
    "packimport.audit": 3,
    "packimport.mending": 4,
    "packimport.patching": 4,
    "packimport.in_place": 4,
    "packimport.dry_run": 4,
    "packimport.export": 4,
    "forward": 4,
    "packimport.demo": 5,
    "packimport.shell": 5,
    "packimport.parameters": 5,
    "packimport.progress_bar": 5,
    "packimport.wrapping": 0,
    "packimport.cli": 6,
    "packimport.__main__": 7,
    "forward.cli": 6,
    "forward.cli_compare": 6,
    "forward.cli_run": 6,
    "forward.__main__": 7,
}
# Neighbours on one floor that must not know each other.
STRANGERS = (("packimport.rope", "packimport.pack"), ("packimport.semantics", "packimport.graph"))
DOORS = {
    "onnx": {"packimport/graph/onnx_file.py"},
    "onnxruntime": {"forward/session.py"},
}


def name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def home(module: str) -> str:
    parts = module.split(".")
    while ".".join(parts) not in FLOORS:
        parts.pop()
    return ".".join(parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, type-checking blocks of the API apart."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / Path(*inner.split("."))).with_suffix(".py").exists() or (
                    ROOT / Path(*inner.split(".")) / "__init__.py"
                ).exists()
                yield inner if is_module else node.module


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_run_down(path: Path) -> None:
    own = home(name_of(path))
    if path == Path("packimport/__init__.py"):
        return  # the lazy API: checked by test_importing_the_package_is_light
    for target in imports(path):
        if target.split(".")[0] not in ("packimport", "forward"):
            continue
        other = home(target)
        assert FLOORS[other] <= FLOORS[own], f"{path} imports {target}, a floor above it"
        for pair in STRANGERS:
            if own in pair and other in pair:
                assert own == other, f"{path} imports {target}, its neighbour"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_packimport_knows_forward_only_in_the_demo(path: Path) -> None:
    if path.parts[0] == "packimport" and path.parts[1] != "demo":
        assert not [t for t in imports(path) if t.split(".")[0] == "forward"]


@pytest.mark.parametrize("library", sorted(DOORS))
def test_one_door(library: str) -> None:
    users = {p.as_posix() for p in MODULES if any(t.split(".")[0] == library for t in imports(p))}
    assert users == DOORS[library]


HEAVY = {"numpy", "onnx", "onnxruntime", "rich", "jsonschema", "yaml", "torch", "transformers"}


@pytest.mark.parametrize(
    "code",
    [
        "import packimport",
        "import packimport.cli; packimport.cli.main(['--help'])",
        "import forward.cli; forward.cli.main(['--help'])",
    ],
)
def test_start_up_loads_nothing_heavy(code: str) -> None:
    script = (
        "import sys\n"
        f"try:\n    {code}\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"loaded = sorted(set({sorted(HEAVY)!r}) & sys.modules.keys())\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
