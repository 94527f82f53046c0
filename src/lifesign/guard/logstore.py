"""The engine's log on disk: numbered segments of one life, compressed once they are full, bounded in total.

`000001.log` holds the start-up (version, settings, first errors) and is kept as long as the life is; when the budget is
spent the oldest of the *later* segments goes. A disk that is full or read-only never stops anything: what could not be
saved is counted, the last bytes stay in memory, and writing is tried again every few seconds.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lifesign.text import is_whole

SEGMENT_BYTES = 64 << 20
KEEP_BYTES = 1 << 30
RING_BYTES = 8 << 20
RETRY_S = 5.0
COPY_BYTES = 1 << 20


class Place(NamedTuple):
    """Where a chunk of log was written."""

    segment: int
    offset: int
    length: int


def segment_path(folder: Path, number: int, compressed: bool = False) -> Path:
    """`000003.log`, or `000003.log.zst`."""
    return folder / f"{number:06d}.log{'.zst' if compressed else ''}"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Every segment that is there, oldest first; the plain file where both forms exist (compression unfinished)."""
    found: dict[int, Path] = {}
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            stem = path.name.split(".", 1)[0]
            if is_whole(stem) and path.name.endswith((".log", ".log.zst")):
                found.setdefault(int(stem), path)
    return sorted(found.items())


def read_segment(path: Path, offset: int = 0, limit: int | None = None) -> Iterator[bytes]:
    """The content of a segment from `offset` on, in chunks, at most `limit` bytes. Raises OSError."""
    if path.suffix != ".zst":
        with path.open("rb") as file:
            file.seek(offset)
            yield from _limited(lambda: file.read(COPY_BYTES), limit)
        return
    import zstandard

    try:
        with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            skip = offset
            while skip > 0 and (chunk := reader.read(min(skip, COPY_BYTES))):
                skip -= len(chunk)
            yield from _limited(lambda: reader.read(COPY_BYTES), limit)
    except zstandard.ZstdError as error:
        raise OSError(f"{path.name}: {error}") from error


def _limited(read: Callable[[], bytes], limit: int | None) -> Iterator[bytes]:
    left = limit
    while (left is None or left > 0) and (chunk := read()):
        if left is not None:
            chunk = chunk[:left]
            left -= len(chunk)
        yield chunk


@dataclass
class Losses:
    """What could not be kept, in bytes, and why."""

    unsaved_bytes: int = 0
    unshown_bytes: int = 0
    disk_error: str = ""


class SegmentWriter:
    """Appends to the segments of one life.

    on_open is called with the number and descriptor of each new segment, on_full with the number of one that was closed
    full (and may now be compressed).
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        keep_bytes: int = KEEP_BYTES,
        on_open: Callable[[int, int], None] = lambda number, fd: None,
        on_full: Callable[[int], None] = lambda number: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.losses = Losses()
        self.total_bytes = 0
        self._segment_bytes = segment_bytes
        self._keep_bytes = keep_bytes
        self._on_open = on_open
        self._on_full = on_full
        self._clock = clock
        self._fd = -1
        self._number = max((number for number, _ in segments(folder)), default=0)
        self._offset = 0
        self._retry_at_s = 0.0
        self._ring: deque[bytes] = deque()
        self._ring_bytes = 0

    def write(self, data: bytes) -> Place | None:
        """Append; gives where it stands on disk, or None when it could only be kept in memory."""
        self._remember(data)
        self.total_bytes += len(data)
        if self._fd < 0 and not self._open():
            self.losses.unsaved_bytes += len(data)
            return None
        view, place = memoryview(data), Place(self._number, self._offset, len(data))
        try:
            while view:
                written = os.write(self._fd, view)
                self._offset += written
                view = view[written:]
        except OSError as error:
            self._failed(error)
            self.losses.unsaved_bytes += len(view)
            return None
        self.losses.disk_error = ""
        if self._offset >= self._segment_bytes:
            self._rotate()
        return place

    def tail(self, limit_bytes: int = RING_BYTES) -> bytes:
        """The last bytes of the log, from memory: there even when the disk took nothing."""
        return b"".join(self._ring)[-limit_bytes:]

    def sync(self) -> None:
        """Make what was written durable."""
        if self._fd >= 0:
            with suppress(OSError):
                os.fsync(self._fd)

    def close(self) -> None:
        """Sync and close; writing afterwards opens a new segment."""
        self.sync()
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def _remember(self, data: bytes) -> None:
        self._ring.append(data)
        self._ring_bytes += len(data)
        while self._ring_bytes > RING_BYTES and len(self._ring) > 1:
            self._ring_bytes -= len(self._ring.popleft())

    def _open(self) -> bool:
        if self._clock() < self._retry_at_s:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = segment_path(self.folder, self._number + 1)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        except OSError as error:
            self._failed(error)
            return False
        self._number += 1
        self._offset = 0
        self._on_open(self._number, self._fd)
        return True

    def _failed(self, error: OSError) -> None:
        self.losses.disk_error = error.strerror or str(error)
        self._retry_at_s = self._clock() + RETRY_S
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _rotate(self) -> None:
        full = self._number
        self._close()  # no sync: it can take seconds, and the next line waits; what compresses the segment syncs
        self._on_full(full)
        self._prune()

    def _prune(self) -> None:
        """Keep the first segment and the newest ones within the budget."""
        sizes = []
        for number, path in segments(self.folder):
            with suppress(OSError):
                sizes.append((number, path.stat().st_size))
        total = sum(size for _, size in sizes)
        for number, size in sizes[1:-1]:
            if total <= self._keep_bytes:
                return
            for compressed in (False, True):
                with suppress(OSError):
                    segment_path(self.folder, number, compressed).unlink()
            total -= size


def compress_segment(folder: Path, number: int) -> None:
    """Replace a full segment by its compressed form. The plain file goes only when the other one is complete on disk."""
    import zstandard

    plain, packed = segment_path(folder, number), segment_path(folder, number, compressed=True)
    partial = packed.with_name(packed.name + ".part")
    try:
        with plain.open("rb") as source, partial.open("wb") as target:
            zstandard.ZstdCompressor(level=3).copy_stream(source, target)
            target.flush()
            os.fsync(target.fileno())
        partial.rename(packed)
        plain.unlink()
    except OSError:  # full disk: the plain segment stays, nothing is lost
        with suppress(OSError):
            partial.unlink()
