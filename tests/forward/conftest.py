"""What several tests of forward-serve use."""

from __future__ import annotations

import pytest
from in_process import Serve


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Serve:
    return Serve(capsys)
