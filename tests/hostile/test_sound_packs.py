"""The pack that every hostile case spoils is sound, and the watch sees what it has to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from attempts import command, refused, sound_pack, watched


def test_the_sound_pack_is_ok(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p")
    with watched([pack], []):
        assert command(pack).code == 0


def test_a_sound_pack_is_not_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        refused(sound_pack(tmp_path / "in" / "p"))


def test_the_watch_sees_reads_writes_and_processes(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    with pytest.raises(AssertionError), watched([], []):
        (tmp_path / "secret").read_bytes()
    with pytest.raises(AssertionError), watched([tmp_path], []):
        (tmp_path / "new").write_bytes(b"")
    with pytest.raises(AssertionError), watched([tmp_path], [tmp_path]):
        subprocess.run([sys.executable, "-c", ""], check=True)
