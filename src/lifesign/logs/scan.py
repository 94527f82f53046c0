"""The gate: of all lines of a source, those that can matter to a diagnosis, with their physical line numbers.

Small sources pass whole. Of a large one, the head (version, configuration), the tail (the last death) and every block
that holds a trigger word are read line by line; what is left is a healthy engine's routine. Why nothing is lost by it:
an event counts as a cause only if the engine did no work after it, every fatal error of vLLM is logged with a trigger
word, and both sides of a trigger block are read too. In an error storm a line that was seen REPEATS times already
(digits apart) is counted, not kept. What was passed over is said in the source's notes.

A plain file is scanned by forked helpers on all cores; memory stays bounded whatever the size.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from lifesign.logs.sources import Source, read_blocks

BLOCK_BYTES = 1 << 20
WHOLE_BYTES = 6 << 20
"""Sources up to this size are read whole."""
HEAD_BYTES = 1 << 20
TAIL_BYTES = 4 << 20
END_BYTES = 256 << 10
"""The very end is kept whole, repeats too."""
MAX_RAW_BYTES = 64_000
REPEATS = 64
MAX_KEYS = 60_000
MAX_LINES = 30_000
"""Lines kept of the part between head and tail."""

TRIGGERS = (b"ERROR",)
_VARIABLE = b"0123456789abcdef"


class Block(NamedTuple):
    """A stretch of whole lines: `start` byte, `lines_before` it, and its bytes."""

    lines_before: int
    data: bytes


def interesting_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """`(line number, raw bytes without the newline)` of the lines of `source` that matter, in order.

    Sets `source.lines` to the number of all lines when it ends.
    """
    path = source.seekable_path
    if path is not None:
        size = os.path.getsize(path)
        if size > WHOLE_BYTES:
            source.bytes_read = size
            yield from _file_lines(source, path, size)
            return
    yield from _stream_lines(source)


def _numbered(before: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    rows = data.split(b"\n")
    if rows and not rows[-1]:
        rows.pop()
    for number, row in enumerate(rows, before + 1):
        yield number, row if len(row) <= MAX_RAW_BYTES else row[:MAX_RAW_BYTES]


class _Thinner:
    """Drops lines that were seen REPEATS times already, digits and hex letters apart, and counts them."""

    def __init__(self, limit: int) -> None:
        self._seen: dict[int, int] = {}
        self._limit = limit
        self.dropped = 0

    def thin(self, before: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines of `data` that say something new, with their numbers."""
        rows = data.split(b"\n")
        if not rows[-1]:
            rows.pop()
        # One pass over the whole block is five times as fast as one per line.
        keys = map(hash, data.translate(None, _VARIABLE).split(b"\n"))
        seen, get = self._seen, self._seen.get
        for number, (row, key) in enumerate(zip(rows, keys, strict=False), before + 1):
            count = get(key, 0)
            if count >= REPEATS or self._limit <= 0:
                self.dropped += 1
                continue
            if count or len(seen) < MAX_KEYS:
                seen[key] = count + 1
            self._limit -= 1
            yield number, row if len(row) <= MAX_RAW_BYTES else row[:MAX_RAW_BYTES]


# -- plain files -------------------------------------------------------------------------------------------------------


def _file_lines(source: Source, path: str, size: int) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as file:
        head = _whole_lines(file.read(HEAD_BYTES), file)
        tail_start = _line_start(file, max(len(head), size - TAIL_BYTES))
        counter = _start_count(path)
        hits = _trigger_blocks(path, len(head), tail_start)
        yield from _numbered(0, head)
        before = head.count(b"\n")
        position = len(head)
        thinner = _Thinner(MAX_LINES)
        for start, end in hits:
            # Both sides belong to it: C lines without a trigger word stand around the ones that have it.
            start = _line_start(file, max(position, start))
            if start > position:
                before += _count_between(file, position, start)
                position = start
            file.seek(start)
            while position < end:
                data = _whole_lines(file.read(min(BLOCK_BYTES, end - position)), file)
                if not data:
                    break
                yield from thinner.thin(before, data)
                before += data.count(b"\n")
                position += len(data)
        tail_start = max(tail_start, position)
        file.seek(tail_start)
        tail = file.read()
        total = _finish_count(counter)
        tail_lines = tail.count(b"\n")
        if total is None:
            before += _count_between(file, position, tail_start)
        else:
            before = total - tail_lines
        yield from _tail(before, tail, thinner)
        source.lines = before + tail_lines + (1 if tail and not tail.endswith(b"\n") else 0)
        _note(source, thinner, tail_start - len(head) - sum(end - start for start, end in hits))
    if source.stream is not None:
        source.stream.close()


def _tail(before: int, tail: bytes, thinner: _Thinner) -> Iterator[tuple[int, bytes]]:
    """The last stretch: repeats are dropped from its first part only, counted afresh."""
    cut = tail.rfind(b"\n", 0, max(0, len(tail) - END_BYTES)) + 1
    if cut:
        fresh = _Thinner(MAX_LINES)
        yield from fresh.thin(before, tail[:cut])
        thinner.dropped += fresh.dropped
        before += tail.count(b"\n", 0, cut)
    yield from _numbered(before, tail[cut:])


def _note(source: Source, thinner: _Thinner, passed_bytes: int) -> None:
    if passed_bytes > 0:
        source.notes.append(
            f"{source.name}: {passed_bytes / 1e6:,.0f} MB of routine without an error were passed over (only searched for errors)"
        )
    if thinner.dropped:
        source.notes.append(
            f"{source.name}: {thinner.dropped:,} lines repeat earlier ones; they were counted, not read"
        )


def _whole_lines(data: bytes, file: object) -> bytes:
    """`data` completed to the end of its last line."""
    if data.endswith(b"\n") or not data:
        return data
    rest: bytes = file.readline(MAX_RAW_BYTES * 16)  # type: ignore[attr-defined]
    return data + rest


def _line_start(file: object, offset: int) -> int:
    """The start of the first whole line at or after `offset`."""
    if offset <= 0:
        return 0
    file.seek(offset - 1)  # type: ignore[attr-defined]
    if file.read(1) == b"\n":  # type: ignore[attr-defined]
        return offset
    file.readline()  # type: ignore[attr-defined]
    return int(file.tell())  # type: ignore[attr-defined]


def _count_between(file: object, start: int, end: int) -> int:
    file.seek(start)  # type: ignore[attr-defined]
    count, left = 0, end - start
    while left > 0:
        data = file.read(min(left, 8 * BLOCK_BYTES))  # type: ignore[attr-defined]
        if not data:
            break
        count += data.count(b"\n")
        left -= len(data)
    return count


def _start_count(path: str) -> subprocess.Popen[bytes] | None:
    """`wc -l` counts lines five times as fast as Python; without it the slow way is taken."""
    program = shutil.which("wc")
    if program is None:
        return None
    try:
        return subprocess.Popen(
            [program, "-l"], stdin=open(path, "rb"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None


def _finish_count(counter: subprocess.Popen[bytes] | None) -> int | None:
    if counter is None:
        return None
    out, _ = counter.communicate()
    if counter.stdin is not None:
        counter.stdin.close()
    text = out.split()
    return int(text[0]) if counter.returncode == 0 and text and text[0].isdigit() else None


def _trigger_blocks(path: str, start: int, end: int) -> list[tuple[int, int]]:
    """Byte ranges between `start` and `end` that hold a trigger word, with one block on both sides, merged."""
    if end <= start:
        return []
    share = (end - start) // BLOCK_BYTES
    cores = min(os.cpu_count() or 1, 4)
    if share < 32 or cores < 2 or not hasattr(os, "fork"):
        found = _search(path, start, end)
    else:
        found = _search_forked(path, start, end, cores)
    ranges: list[tuple[int, int]] = []
    for offset in found:
        low, high = max(start, offset - BLOCK_BYTES), min(end, offset + 2 * BLOCK_BYTES)
        if ranges and low <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return ranges


def _search(path: str, start: int, end: int) -> list[int]:
    """Offsets of the blocks in [start, end) that hold a trigger word. A word on a block's edge is found by overlap."""
    overlap = max(len(word) for word in TRIGGERS)
    buffer = bytearray(BLOCK_BYTES + overlap)
    found: list[int] = []
    with open(path, "rb", buffering=0) as file:
        offset = start
        while offset < end:
            file.seek(offset)
            size = file.readinto(buffer) or 0
            if size == 0:
                break
            limit = min(size, end - offset + overlap)
            if any(buffer.find(word, 0, limit) >= 0 for word in TRIGGERS):
                found.append(offset)
            offset += BLOCK_BYTES
    return found


def _search_forked(path: str, start: int, end: int, cores: int) -> list[int]:
    """`_search` on several cores. The children only read, and leave by `_exit`."""
    step = ((end - start) // cores // BLOCK_BYTES + 1) * BLOCK_BYTES
    children: list[tuple[int, int]] = []
    for low in range(start + step, end, step):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read_end)
                found = _search(path, low, min(low + step, end))
                with os.fdopen(write_end, "wb") as pipe:
                    pipe.write(b"".join(offset.to_bytes(8, "little") for offset in found))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write_end)
        children.append((pid, read_end))
    found = _search(path, start, min(start + step, end))
    for pid, read_end in children:
        with os.fdopen(read_end, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(pid, 0)
        if status != 0:
            # A child that could not work (memory, limits) must not hide an error: do its share here.
            return _search(path, start, end)
        found.extend(int.from_bytes(data[index : index + 8], "little") for index in range(0, len(data), 8))
    return sorted(found)


# -- pipes and compressed files ----------------------------------------------------------------------------------------


def _stream_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """The same gate in one pass: the tail is what is still held back when the stream ends."""
    held: deque[Block] = deque()
    held_bytes = 0
    number = 0
    rest = b""
    open_blocks = 0
    passed = 0
    thinner = _Thinner(MAX_LINES)
    previous: Block | None = None
    for data in read_blocks(source, BLOCK_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut == 0 and len(rest) < 64 * BLOCK_BYTES:
            rest += data
            continue
        block = Block(number, rest + data[:cut])
        rest = data[cut:]
        number += block.data.count(b"\n")
        held.append(block)
        held_bytes += len(block.data)
        while held_bytes > TAIL_BYTES + HEAD_BYTES and len(held) > 1:
            oldest = held.popleft()
            held_bytes -= len(oldest.data)
            near = open_blocks > 0
            hit = oldest.lines_before == 0 or any(word in oldest.data for word in TRIGGERS)
            if hit and previous is not None:
                yield from thinner.thin(*previous)
            if hit or near:
                yield from thinner.thin(*oldest)
                previous = None
            else:
                if previous is not None:
                    passed += len(previous.data)
                previous = oldest
            open_blocks = 1 if hit else open_blocks - 1
    if previous is not None:
        passed += len(previous.data)
    for block in held:
        yield from _numbered(*block)
    if rest:
        yield from _numbered(number, rest)
        number += rest.count(b"\n") + (0 if rest.endswith(b"\n") else 1)
    source.lines = number
    _note(source, thinner, passed)
