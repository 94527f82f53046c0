"""Which blocks of a plain file hold a trigger word. GNU grep does it three times as fast as Python; without it Python does.

Where words are rare, grep names each; where they are dense (an error storm), the first bytes of a block tell enough.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import sys

BLOCK_BYTES = 1 << 20
TRIGGERS = (b"ERROR",)
_PROBE_BYTES = 64 << 10
_MAX_HITS = 20_000
"""So many words from one run of grep are a storm: reading blocks is cheaper than reading their list."""
_MAX_RUNS = 16
_CALM_BLOCKS = 32
"""After so many blocks without a word, the storm is over."""
_GREP_MEMORY_BYTES = 96 << 20
"""grep holds a whole line in memory; a file that is one line must not take the machine's."""


def search(path: str, start: int, end: int) -> list[int]:
    """Offsets, counted in blocks from `start`, of the blocks in [start, end) that hold a trigger word."""
    found: list[int] = []
    position, runs = start, 0
    program = _gnu_grep()
    while program is not None and runs < _MAX_RUNS and position < end:
        runs += 1
        position, works = _by_grep(program, path, start, position, end, found)
        if not works:
            break
        position = _by_blocks(path, position, end, found, patience=_CALM_BLOCKS)
    _by_blocks(path, position, end, found)
    return found


def fast() -> bool:
    """Whether one process searches faster than several cores would in Python."""
    return _gnu_grep() is not None


def _gnu_grep() -> str | None:
    # On other systems grep is slower than Python, or doesn't know the options.
    return shutil.which("grep") if sys.platform == "linux" else None


def _by_grep(program: str, path: str, start: int, position: int, end: int, found: list[int]) -> tuple[int, bool]:
    """Adds blocks to `found` from `position` (a block's edge) on; gives where the next block to look at begins, and whether grep works here."""
    command = [program, "-a", "-b", "-o", "-F"]
    for word in TRIGGERS:
        command += ["-e", word.decode()]
    with open(path, "rb", buffering=0) as file:
        file.seek(position)
        try:
            grep = subprocess.Popen(
                command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"LC_ALL": "C"}
            )
        except OSError:
            return position, False
    with contextlib.suppress(OSError):
        resource.prlimit(grep.pid, resource.RLIMIT_AS, (_GREP_MEMORY_BYTES, _GREP_MEMORY_BYTES))
    assert grep.stdout is not None
    assert grep.stderr is not None
    reached, hits, ended = position, 0, True
    with grep:
        for row in grep.stdout:
            offset, _, word = row.rstrip(b"\n").partition(b":")
            if word not in TRIGGERS or not offset.isdigit():
                ended = False
                break
            at = position + int(offset)
            if at >= end:
                reached = end
                break
            block = at - (at - start) % BLOCK_BYTES
            if block >= reached:
                found.append(block)
                reached = block + BLOCK_BYTES
            hits += 1
            if hits >= _MAX_HITS:
                break
        else:
            complaint = grep.stderr.read(200)
            # 1: no word was found. Anything on standard error: it didn't read all (or is another kind of grep).
            ended = grep.wait() in (0, 1) and not complaint
            reached = end if ended else reached
        grep.kill()
    return reached, ended


def _by_blocks(path: str, position: int, end: int, found: list[int], patience: int = 0) -> int:
    """The same by reading; ends early after `patience` blocks without a word (0: never). A word on a block's edge is found by overlap."""
    overlap = max(len(word) for word in TRIGGERS) - 1
    buffer = bytearray(BLOCK_BYTES + overlap)
    calm = 0
    with open(path, "rb", buffering=0) as file:
        while position < end and not (patience and calm >= patience):
            limit = end - position + overlap
            hit = False
            # In a storm the first bytes of a block tell already.
            for size in (_PROBE_BYTES, len(buffer)):
                file.seek(position)
                read = file.readinto(memoryview(buffer)[:size]) or 0
                if any(buffer.find(word, 0, min(read, limit)) >= 0 for word in TRIGGERS):
                    hit = True
                    break
                if read < size:
                    break
            if hit:
                found.append(position)
            calm = 0 if hit else calm + 1
            position += BLOCK_BYTES
    return position
