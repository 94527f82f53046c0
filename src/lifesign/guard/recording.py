"""Keeps what the detector was told in the newest two files of a life, so that the moments before a death are there.

`events/LIFE.jsonl` is written, `events/LIFE.old.jsonl` is the file before it; each begins with a checkpoint of the detector
and replays by itself. A disk that takes nothing costs lines, never half a line: what follows begins with a checkpoint again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Command, Event
from lifesign.guard.detector.replay import checkpoint_line, event_line

FILE_BYTES = 4 << 20
RETRY_S = 30.0


class Recording:
    """Records one life of a detector. `note` is told when the disk takes nothing, and when it does again."""

    def __init__(self, folder: Path, life_id: str, detector: Detector, note: Callable[[str], None]) -> None:
        self.detector = detector
        self._path = recording_paths(folder, life_id)[1]
        self._old_path = recording_paths(folder, life_id)[0]
        self._note = note
        self._fd = -1
        self._bytes = 0
        self._retry_s = float("-inf")
        self._failed = False
        self._settings = replace(detector.settings)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """As `Detector.handle`, recorded."""
        head = ""
        full = self._bytes >= FILE_BYTES
        if full or (self._fd < 0 and now_s >= self._retry_s):
            self._open(full)
            head = checkpoint_line(self.detector, now_s)
        elif self._settings != self.detector.settings:
            head = checkpoint_line(self.detector, now_s)
        self._settings = replace(self.detector.settings)
        commands = self.detector.handle(event, now_s)
        if self._fd >= 0:
            self._write((head + event_line(now_s, event, commands)).encode(), now_s)
        elif head:
            self._retry_s = now_s + RETRY_S
        return commands

    def close(self) -> None:
        """The life is over."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def _open(self, full: bool) -> None:
        self.close()
        try:
            if full:
                os.replace(self._path, self._old_path)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._bytes = os.fstat(self._fd).st_size
        except OSError as error:
            self._trouble(error)

    def _write(self, data: bytes, now_s: float) -> None:
        error: OSError | None = None
        try:
            if os.write(self._fd, data) == len(data):
                self._bytes += len(data)
                if self._failed:
                    self._failed = False
                    self._note("events are recorded again")
                return
        except OSError as caught:
            error = caught
        with suppress(OSError):  # what was written of the line must not make the rest unreadable
            os.ftruncate(self._fd, self._bytes)
        self.close()
        self._retry_s = now_s + RETRY_S
        self._trouble(error)

    def _trouble(self, error: OSError | None) -> None:
        if not self._failed:
            self._failed = True
            reason = (error.strerror or str(error)) if error is not None else "the disk takes no whole line"
            self._note(f"events can't be recorded ({reason}): some are missing")


def recording_paths(folder: Path, life_id: str) -> tuple[Path, Path]:
    """The older and the newer file of a life, in the order in which they replay."""
    return folder / f"{life_id}.old.jsonl", folder / f"{life_id}.jsonl"


def newest_events(folder: Path, life_id: str, limit_bytes: int) -> tuple[bytes, int]:
    """(what is recorded of a life, bytes left out at its start): whole lines, the newest. Raises OSError."""
    content = b""
    for path in recording_paths(folder, life_id):
        with suppress(FileNotFoundError):
            content += path.read_bytes()
    if len(content) <= limit_bytes:
        return content, 0
    start = content.find(b"\n", len(content) - limit_bytes - 1) + 1
    checkpoint = content.find(b'"checkpoint":', start)
    if checkpoint >= 0:  # from here on it replays
        start = content.rfind(b"\n", 0, checkpoint) + 1
    return content[start:], start


def drop_recording(folder: Path, life_id: str) -> None:
    """Remove the files of a life."""
    for path in recording_paths(folder, life_id):
        with suppress(OSError):
            path.unlink()
