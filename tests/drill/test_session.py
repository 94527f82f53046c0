"""The promise of a drill's session: what its engine had in shared memory goes with it, and nobody else's."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifesign.drill.session import Session

MAPS = "import mmap, os, sys, time\nfile = open(sys.argv[1], 'r+b')\nkept = mmap.mmap(file.fileno(), 4096)\nfile.close()\nprint('mapped', flush=True)\ntime.sleep(60)"


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/psm_{secrets.token_hex(6)}")
    path.write_bytes(b"\0" * 4096)
    yield path
    path.unlink(missing_ok=True)


def start(tmp_path: Path, segment: Path) -> Session:
    session = Session([sys.executable, "-c", MAPS, str(segment)], dict(os.environ), tmp_path / "log", tmp_path)
    deadline = time.monotonic() + 40.0
    while not (tmp_path / "log").read_text():
        assert time.monotonic() < deadline, "the segment was never mapped"
        time.sleep(0.05)
    session.processes()
    return session


def test_shared_memory_of_a_dead_engine_goes(tmp_path: Path, segment: Path) -> None:
    session = start(tmp_path, segment)
    session.top.kill()
    session.top.wait()
    assert session.leftovers()["shm"] == 1
    session.close()
    assert not segment.exists()


def test_shared_memory_that_another_process_uses_stays(tmp_path: Path, segment: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", MAPS, str(segment)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mapped\n"
        session = start(tmp_path, segment)
        session.close()
        there = segment.exists()
        other.kill()
    assert there


def test_other_names_are_not_the_engine_s(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/somebody-{secrets.token_hex(6)}")
    path.write_bytes(b"\0" * 4096)
    try:
        session = start(tmp_path, path)
        session.close()
        assert "shm" not in session.leftovers()
        assert path.exists()
    finally:
        path.unlink()
