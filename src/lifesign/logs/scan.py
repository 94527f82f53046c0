"""The gate: of all lines of a source, those that can matter to a diagnosis, with their physical line numbers.

Small sources pass whole. Of a large one, the head (version, configuration), the tail (the last death) and every block
that holds a trigger word are read line by line; what is left is a healthy engine's routine. Why nothing is lost by it:
an event counts as a cause only if the engine did no work after it, every fatal error of vLLM is logged with a trigger
word, and both sides of a trigger block are read too. In an error storm a line that was seen REPEATS times already
(digits apart) is counted, not kept. What was passed over is said in the source's notes.

A plain file is scanned by forked helpers on all cores; memory stays bounded whatever the size.
"""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

from lifesign.logs import search
from lifesign.logs.search import BLOCK_BYTES, TRIGGERS
from lifesign.logs.sources import Source, read_blocks

WHOLE_BYTES = 6 << 20
"""Sources up to this size are read whole."""
HEAD_BYTES = 1 << 20
FORK_BYTES = 32 << 20
"""Stretches longer than this are worth helper processes."""
TAIL_BYTES = 3 << 20
END_BYTES = 256 << 10
"""The very end is kept whole, repeats too."""
MAX_RAW_BYTES = 64_000
REPEATS = 64
MAX_KEYS = 60_000
MAX_LINES = 30_000
"""Lines kept of the part between head and tail."""

_VARIABLE = b"0123456789abcdef"


class Block(NamedTuple):
    """A stretch of whole lines: `start` byte, `lines_before` it, and its bytes."""

    lines_before: int
    data: bytes


def interesting_lines(source: Source, scout: Scout | None = None) -> Iterator[tuple[int, bytes]]:
    """`(line number, raw bytes without the newline)` of the lines of `source` that matter, in order.

    Sets `source.lines` to the number of all lines when it ends.
    """
    path = source.seekable_path
    if path is not None:
        size = os.path.getsize(path)
        if size > WHOLE_BYTES:
            source.bytes_read = size
            yield from _file_lines(source, scout or Scout(path))
            return
    yield from _stream_lines(source)


def _numbered(before: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    rows = data.split(b"\n")
    if rows and not rows[-1]:
        rows.pop()
    if max(map(len, rows), default=0) > MAX_RAW_BYTES:
        rows = [row[:MAX_RAW_BYTES] for row in rows]
    return enumerate(rows, before + 1)


class _Thinner:
    """Drops lines that were seen REPEATS times already, digits and hex letters apart, and counts them."""

    def __init__(self, limit: int) -> None:
        self._seen: dict[int, int] = {}
        self._full: set[int] = set()
        self._limit = limit
        self.dropped = 0

    def thin(self, before: int, data: bytes, kept: list[tuple[int, bytes]]) -> int:
        """Adds the lines of `data` that say something new to `kept`, numbered from `before` + 1; gives the last number."""
        # One pass over the whole block is five times as fast as one per line.
        keys = list(map(hash, data.translate(None, _VARIABLE).split(b"\n")))
        if data.endswith(b"\n"):
            keys.pop()
        last = before + len(keys)
        if self._limit <= 0 or self._full.issuperset(keys):
            self.dropped += len(keys)
            return last
        seen, full = self._seen, self._full
        for number, (row, key) in enumerate(zip(data.split(b"\n"), keys, strict=False), before + 1):
            count = seen.get(key, 0)
            if count >= REPEATS or self._limit <= 0:
                full.add(key)
                self.dropped += 1
                continue
            if count or len(seen) < MAX_KEYS:
                seen[key] = count + 1
            self._limit -= 1
            kept.append((number, row if len(row) <= MAX_RAW_BYTES else row[:MAX_RAW_BYTES]))
        return last


# -- plain files -------------------------------------------------------------------------------------------------------


class Scout:
    """Looks through a large plain file in helper processes: where the trigger words are, and how many lines there are.

    It starts to work when it is made, so that the rest of the program can be loaded meanwhile; `close` ends it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = os.path.getsize(path)
        with open(path, "rb") as file:
            self.head = _whole_lines(file.read(HEAD_BYTES), file)
            self.tail_start = _line_start(file, max(len(self.head), self.size - TAIL_BYTES))
        self._counter = _start_count(path)
        step, cores = _shares(self.tail_start - len(self.head))
        if cores > 1 and search.fast():
            step = self.tail_start - len(self.head)
        self._shares = [
            (low, min(low + step, self.tail_start))
            for low in range(len(self.head), self.tail_start, max(step, BLOCK_BYTES))
        ]
        self._helpers = [_Helper(search.search, path, low, high) for low, high in self._shares] if cores > 1 else []

    def ranges(self) -> list[tuple[int, int]]:
        """Byte ranges between head and tail that hold a trigger word, with one block on both sides, merged."""
        found: list[int] = []
        for number, (low, high) in enumerate(self._shares):
            result = self._helpers[number].result() if self._helpers else None
            # A helper that could not work (memory, limits) must not hide an error: its share is done here.
            found += result if result is not None else search.search(self.path, low, high)
        self._helpers = []
        return _merged(sorted(found), len(self.head), self.tail_start)

    def lines(self) -> int | None:
        """The number of newlines in the file; None when nobody could count them fast."""
        return _finish_count(self._counter)

    def close(self) -> None:
        """Ends what is still running."""
        for helper in self._helpers:
            helper.result()
        self._helpers = []


class Ahead:
    """Scouts that were sent ahead for the large plain files among `paths`; ask with `take`."""

    def __init__(self, paths: list[str]) -> None:
        self._scouts: dict[str, Scout] = {}
        for path in paths[:4]:
            try:
                if path != "-" and os.path.isfile(path) and os.path.getsize(path) > FORK_BYTES:
                    self._scouts[path] = Scout(path)
            except OSError:
                # Reading it will say what is wrong, in a sentence.
                continue

    def take(self, path: str) -> Scout | None:
        """The scout of `path`, once."""
        return self._scouts.pop(path, None)

    def close(self) -> None:
        """Ends the scouts that nobody asked for (the file turned out to be compressed, or reading failed)."""
        for scout in self._scouts.values():
            scout.close()
            scout.lines()
        self._scouts = {}


def _file_lines(source: Source, scout: Scout) -> Iterator[tuple[int, bytes]]:
    head = scout.head
    with open(scout.path, "rb") as file:
        yield from _numbered(0, head)
        before, position = head.count(b"\n"), len(head)
        ranges = scout.ranges()
        thinner = _Thinner(MAX_LINES)
        for start, end in ranges:
            start = _line_start(file, max(position, start))
            before += _count_between(file, position, start)
            position = _line_start(file, max(start, end))
            lines, kept, dropped = _thin_range(scout.path, start, position, thinner)
            thinner.dropped += dropped
            yield from ((before + number, row) for number, row in kept)
            before += lines
        tail_start = max(scout.tail_start, position)
        file.seek(tail_start)
        tail = file.read()
        total = scout.lines()
        tail_lines = tail.count(b"\n")
        before = before + _count_between(file, position, tail_start) if total is None else total - tail_lines
        yield from _tail(before, tail, thinner)
        source.lines = before + tail_lines + (1 if tail and not tail.endswith(b"\n") else 0)
        _note(source, thinner, tail_start - len(head) - sum(end - start for start, end in ranges))
    if source.stream is not None:
        source.stream.close()


def _thin_range(path: str, start: int, end: int, thinner: _Thinner) -> tuple[int, Iterable[tuple[int, bytes]], int]:
    """(number of lines, the lines of [start, end) that say something new numbered from 1, dropped elsewhere).

    A long range (an error storm) is thinned by helpers on all cores, each counting repeats for itself.
    """
    if end - start <= FORK_BYTES or _shares(end - start)[1] < 2:
        lines, kept, _ = _thin_share(path, start, end, thinner)
        return lines, kept, 0
    step, _ = _shares(end - start)
    with open(path, "rb") as file:
        cuts = [start, *(_line_start(file, low) for low in range(start + step, end, step)), end]
    shares = [(low, high) for low, high in pairwise(cuts) if high > low]
    helpers = [_Helper(_thin_share, path, low, high) for low, high in shares]
    total, dropped = 0, 0
    rows: list[tuple[int, bytes]] = []
    for helper, (low, high) in zip(helpers, shares, strict=True):
        result = helper.result()
        lines, kept, lost = result if result is not None else _thin_share(path, low, high)
        rows.extend((total + number, row) for number, row in kept)
        total += lines
        dropped += lost
    return total, rows, dropped


def _thin_share(
    path: str, start: int, end: int, thinner: _Thinner | None = None
) -> tuple[int, list[tuple[int, bytes]], int]:
    """(number of lines, new lines numbered from 1, lines dropped) of the byte range, which begins and ends with a line."""
    own = thinner or _Thinner(MAX_LINES)
    kept: list[tuple[int, bytes]] = []
    lines, position = 0, start
    with open(path, "rb") as file:
        file.seek(start)
        while position < end:
            data = file.read(min(BLOCK_BYTES, end - position))
            if not data:
                break
            if position + len(data) < end:
                data = _whole_lines(data, file)
            position += len(data)
            lines = own.thin(lines, data, kept)
    return lines, kept, own.dropped


class _Helper:
    """A function at work in a forked child, whose result (of plain values) comes back through a pipe."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        read_end, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            # The child only reads files; it must never return into the caller's program.
            try:
                os.close(read_end)
                with os.fdopen(write_end, "wb") as pipe:
                    marshal.dump(function(*args), pipe)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write_end)
        self._pipe: int | None = read_end

    def result(self) -> Any:
        """What the function gave; None when the child failed. Waits for it."""
        if self._pipe is None:
            return None
        with os.fdopen(self._pipe, "rb") as pipe:
            data = pipe.read()
        self._pipe = None
        _, status = os.waitpid(self._pid, 0)
        return marshal.loads(data) if status == 0 and data else None


def _shares(size: int) -> tuple[int, int]:
    """(bytes of one share, number of cores to use) for a stretch of `size` bytes."""
    cores = min(os.cpu_count() or 1, 4)
    if size < FORK_BYTES or cores < 2 or not hasattr(os, "fork"):
        return max(size, BLOCK_BYTES), 1
    return (size // cores // BLOCK_BYTES + 1) * BLOCK_BYTES, cores


def _merged(found: list[int], start: int, end: int) -> list[tuple[int, int]]:
    """Both sides of a block belong to it: C lines without a trigger word stand around the ones that have it."""
    ranges: list[tuple[int, int]] = []
    for offset in found:
        low, high = max(start, offset - BLOCK_BYTES), min(end, offset + 2 * BLOCK_BYTES)
        if ranges and low <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return ranges


def _tail(before: int, tail: bytes, thinner: _Thinner) -> Iterator[tuple[int, bytes]]:
    """The last stretch: repeats are dropped from its first part only, counted afresh."""
    cut = tail.rfind(b"\n", 0, max(0, len(tail) - END_BYTES)) + 1
    if cut:
        fresh = _Thinner(MAX_LINES)
        kept: list[tuple[int, bytes]] = []
        before = fresh.thin(before, tail[:cut], kept)
        yield from kept
        thinner.dropped += fresh.dropped
    yield from _numbered(before, tail[cut:])


def _note(source: Source, thinner: _Thinner, passed_bytes: int) -> None:
    if passed_bytes > 0:
        source.complete = False
        source.notes.append(
            f"{source.name}: {passed_bytes / 1e6:,.0f} MB of routine without an error were passed over (only searched for errors, not for restarts)"
        )
    if thinner.dropped:
        source.notes.append(
            f"{source.name}: {thinner.dropped:,} lines repeat earlier ones; they were counted, not read"
        )


def _whole_lines(data: bytes, file: BinaryIO) -> bytes:
    """`data` completed to the end of its last line."""
    if data.endswith(b"\n") or not data:
        return data
    return data + file.readline(MAX_RAW_BYTES * 16)


def _line_start(file: BinaryIO, offset: int) -> int:
    """The start of the first whole line at or after `offset`."""
    if offset <= 0:
        return 0
    file.seek(offset - 1)
    if file.read(1) == b"\n":
        return offset
    file.readline()
    return file.tell()


def _count_between(file: BinaryIO, start: int, end: int) -> int:
    """Newlines in [start, end)."""
    file.seek(start)
    count, left = 0, end - start
    while left > 0:
        data = file.read(min(left, 8 * BLOCK_BYTES))
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
        with open(path, "rb") as file:
            return subprocess.Popen([program, "-l"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def _finish_count(counter: subprocess.Popen[bytes] | None) -> int | None:
    if counter is None:
        return None
    out, _ = counter.communicate()
    text = out.split()
    return int(text[0]) if counter.returncode == 0 and text and text[0].isdigit() else None


# -- pipes and compressed files ----------------------------------------------------------------------------------------


def _thinned(thinner: _Thinner, block: Block) -> list[tuple[int, bytes]]:
    kept: list[tuple[int, bytes]] = []
    thinner.thin(block.lines_before, block.data, kept)
    return kept


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
                yield from _thinned(thinner, previous)
            if hit or near:
                yield from _thinned(thinner, oldest)
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
