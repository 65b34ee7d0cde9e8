"""What every test may use: tests/ is on the path, for the builders of packs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
