"""Starts the fake engine and `lifesign watch` for a test, and ends them afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from watching import Engine, Watch


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Starts an engine with the given options; all are ended afterwards."""
    started: list[Engine] = []

    def start(*options: str) -> Engine:
        started.append(Engine(tmp_path, *options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    """Starts `lifesign watch` with the given arguments."""
    started: list[Watch] = []

    def start(*arguments: object) -> Watch:
        started.append(Watch(*map(str, arguments)))
        return started[-1]

    yield start
    for one in started:
        one.close()
