"""The memory of a dump is that of a chunk: it does not grow with the text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import tiny_pack
from processes import PEAK

ROOT = Path(__file__).parent.parent.parent
COUNT, VOCAB, CHUNK = 2048, 24000, 64
SCRIPT = f"""{PEAK}
import sys
from pathlib import Path
import numpy as np
from forward.dump_pack import dump_pack
from forward.genai_config import read_decoder
from packimport.pack.container import open_container

container, out = open_container(sys.argv[1]), Path(sys.argv[2])
tokens = np.arange({COUNT}) % 100
dump_pack(container, read_decoder(container), out / "short", tokens[:200], chunk={CHUNK})
before = peak()
dump_pack(container, read_decoder(container), out / "long", tokens, chunk={CHUNK})
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_long_dump_takes_the_memory_of_a_short_one(tmp_path: Path) -> None:
    """197 MB of logits, ten times as many as those before: the process grows by less than 50 MB."""
    pack = tiny_pack(tmp_path / "pack", vocab=VOCAB, rows=COUNT)
    command = [sys.executable, "-c", SCRIPT, str(pack), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size = (tmp_path / "long" / "logits.npy").stat().st_size
    assert size > 4 * COUNT * VOCAB
    assert int(done.stdout) < 50 << 20
