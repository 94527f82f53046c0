"""Shared by the drill's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.drill.engines import Engine, choose


@pytest.fixture
def fake() -> Engine:
    """The fake engine with the newest dialect."""
    return choose("fake")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Where kept logs go."""
    return tmp_path / "logs"
