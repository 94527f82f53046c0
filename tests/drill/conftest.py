"""Shared by the drill's tests; also lets them import the engine helper, which lies one folder up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lifesign.drill.engines import Engine, choose

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture
def fake() -> Engine:
    """The fake engine with the newest dialect."""
    return choose("fake")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Where kept logs go."""
    return tmp_path / "logs"
