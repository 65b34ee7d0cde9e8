"""The wheel, installed in a fresh environment, finds its schemas and runs from anywhere."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT))
    (built,) = out.glob("*.whl")
    return built


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", cwd=cwd)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def test_the_wheel_holds_what_it_needs_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"packimport", "forward"}
    packed = {Path(n).name for n in names if n.startswith("packimport/_schemas/")}
    assert packed == {path.name for path in (ROOT / "schemas").iterdir()}
    for name in ("packimport/py.typed", "forward/py.typed", "packimport/demo/model.onnx"):
        assert name in names


def test_the_wheel_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    venv.create(environment, with_pip=True)
    scripts = environment / ("Scripts" if sys.platform == "win32" else "bin")
    python = str(scripts / "python")
    run(python, "-m", "pip", "install", "--quiet", str(wheel))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pack = ROOT / "tests" / "packs" / "oga-0.18.0-qwen3"
    command = str(scripts / "packimport")
    done = run(command, str(pack), "--format", "json", cwd=elsewhere)
    assert '"verdict": "ok"' in done.stdout
    run(command, "patch", str(pack), "-o", "out", cwd=elsewhere)
    run(command, "out", cwd=elsewhere)
    # Without onnxruntime the check works, and what needs it says how to get it.
    serve = str(scripts / "forward-serve")
    run(serve, "--help", cwd=elsewhere)
    failed = subprocess.run(
        [command, "demo"], check=False, capture_output=True, encoding="utf-8", cwd=elsewhere
    )
    assert failed.returncode == 3
    assert "pip install onnxruntime" in failed.stderr
