"""The search for trigger words: by grep and by reading, the same blocks, whatever is in the file or wrong with grep."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.logs import search

BLOCK = 4_096
WORD = search.TRIGGERS[0]
needs_grep = pytest.mark.skipif(not search.fast(), reason="no GNU grep here")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(search, "_PROBE_BYTES", 256)
    monkeypatch.setattr(search, "_MAX_HITS", 50)


def plainly(data: bytes, start: int, end: int) -> list[int]:
    """The reference: every place of a word, one after the other."""
    found, at = set(), data.find(WORD, start)
    while 0 <= at < end:
        found.add(at - (at - start) % BLOCK)
        at = data.find(WORD, at + 1)
    return sorted(found)


def made(rng: random.Random, size: int, share: float) -> bytes:
    """Lines of all lengths, bytes of all kinds, and words at a `share` of the places, some right on a block's edge."""
    data = bytearray(rng.choice(b"abcERO \x00\xff\xe4\xb8\n") for _ in range(size))
    for _ in range(int(size * share)):
        at = rng.randrange(size - len(WORD))
        data[at : at + len(WORD)] = WORD
    for edge in range(BLOCK, size - BLOCK, BLOCK):
        if rng.random() < share * 20:
            at = edge - rng.randrange(len(WORD) + 1)
            data[at : at + len(WORD)] = WORD
    return bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.15])
@pytest.mark.parametrize("by", [pytest.param("grep", marks=needs_grep), "python"])
def test_the_same_blocks_as_a_plain_search(
    by: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "python":
        monkeypatch.setattr(search, "_gnu_grep", lambda: None)
    path = tmp_path / "engine.log"
    for seed in range(12):
        rng = random.Random(seed)
        data = made(rng, rng.randrange(3 * BLOCK, 90 * BLOCK), share)
        path.write_bytes(data)
        start = rng.randrange(2 * BLOCK)
        end = rng.randrange(start + 1, len(data) + 1)
        assert search.search(str(path), start, end) == plainly(data, start, end), f"seed {seed}"


@needs_grep
def test_a_storm_between_calm_stretches(tmp_path: Path) -> None:
    calm = b"INFO all is well\n" * (BLOCK * 60 // 17)
    storm = b"ERROR again\n" * (BLOCK * 40 // 12)
    data = calm + storm + calm + b"ERROR once\n" + calm + storm
    path = tmp_path / "engine.log"
    path.write_bytes(data)
    assert search.search(str(path), 100, len(data)) == plainly(data, 100, len(data))


@needs_grep
def test_every_other_block_holds_words(tmp_path: Path) -> None:
    # More changes between calm and storm than grep is started for.
    part = b"INFO all is well\n" * (BLOCK * 40 // 17) + b"ERROR again\n" * (BLOCK * 2 // 12)
    data = part * 40
    path = tmp_path / "engine.log"
    path.write_bytes(data)
    assert search.search(str(path), 0, len(data)) == plainly(data, 0, len(data))


LIMITED = """
import resource, sys
from lifesign.logs import search
search._GREP_MEMORY_BYTES = int(sys.argv[2])
found = search.search(sys.argv[1], 0, int(sys.argv[3]))
print(*found, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@needs_grep
def test_a_line_larger_than_the_memory_grep_may_have(tmp_path: Path) -> None:
    line = 48 << 20
    data = b"INFO fine\n" * 1_000 + b"x" * line + b"ERROR at its end\n" + b"INFO\n" * BLOCK
    path = tmp_path / "engine.log"
    path.write_bytes(data)
    peaks_kib = []
    for limit in (32 << 20, 512 << 20):
        # In a small process: a child's peak counts from before it became grep.
        command = [sys.executable, "-c", LIMITED, str(path), str(limit), str(len(data))]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        *found, peak_kib = map(int, run.stdout.split())
        assert found == [(10_000 + line) >> 20 << 20]
        peaks_kib.append(peak_kib)
    assert peaks_kib[0] <= 32 << 10 < line >> 10 < peaks_kib[1]


STRANGE = {
    "has no such option": "echo \"grep: unrecognized option '-b'\" >&2; exit 1",
    "says something else": "echo 'Binary file matches'; exit 0",
    "gives no offsets": "echo ERROR; exit 0",
    "dies": "kill -9 $$",
    "complains and stops": "echo 0:ERROR; echo 'grep: memory exhausted' >&2; exit 2",
    "is silent with an error": "exit 2",
}


@pytest.mark.parametrize("kind", STRANGE)
def test_another_kind_of_grep_hides_no_error(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "grep"
    program.write_text(f"#!/bin/sh\n{STRANGE[kind]}\n")
    program.chmod(0o755)
    monkeypatch.setattr(search, "_gnu_grep", lambda: str(program))
    data = b"ERROR first\n" + b"INFO fine\n" * BLOCK + b"ERROR in the middle\n" + b"INFO fine\n" * BLOCK
    path = tmp_path / "engine.log"
    path.write_bytes(data)
    assert search.search(str(path), 0, len(data)) == plainly(data, 0, len(data))


def test_a_grep_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "grep"
    program.write_bytes(b"\x00no program")
    program.chmod(0o755)
    monkeypatch.setattr(search, "_gnu_grep", lambda: str(program))
    path = tmp_path / "engine.log"
    path.write_bytes(b"INFO fine\n" * BLOCK + b"ERROR\n")
    assert search.search(str(path), 0, path.stat().st_size) == [10 * BLOCK]


def test_settings_of_grep_from_the_environment_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_bytes(b"INFO fine\n" * BLOCK + b"ERROR\n" + b"INFO fine\n" * BLOCK)
    script = f"from lifesign.logs.search import search; print(search({str(path)!r}, 0, {path.stat().st_size}))"
    environment = {"GREP_OPTIONS": "-v", "GREP_COLORS": "mt=41", "LC_ALL": "C.UTF-8"}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert run.stdout == "[0]\n"
