"""What guard says: sentences on stderr and in a small log of its own, never waited for.

Our stderr may be a pipe that nobody reads any more. A guard that blocks there would not see its engine die, so a thread
of its own does the writing, and what it can't get rid of is dropped.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

from lifesign.text import Lang, T

QUEUE_LENGTH = 500
KEPT_LINES = 2000
FILE_BYTES = 1 << 20


def stamp(at_s: float) -> str:
    """`2026-11-30T11:42:07Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


class Voice:
    """Says a text in the chosen language. `lines` keeps what was said in this life, for guard.log of a bundle."""

    def __init__(self, lang: Lang, fd: int = 2) -> None:
        self.lang: Lang = lang
        self.lines: list[str] = []
        self._fd = fd
        self._file: Path | None = None
        self._queue: queue.Queue[bytes] = queue.Queue(QUEUE_LENGTH)
        threading.Thread(target=self._work, name="lifesign-voice", daemon=True).start()

    def keep_in(self, path: Path) -> None:
        """Append everything to this file as well; it starts anew when it has grown to a mebibyte."""
        with suppress(OSError):
            if path.stat().st_size > FILE_BYTES:
                path.replace(path.with_suffix(".log.1"))
        self._file = path

    def say(self, text: T, **values: object) -> None:
        """Tell the user."""
        shown = text.fill(**values).pick(self.lang)
        self.note(shown)
        with suppress(queue.Full):
            self._queue.put_nowait(f"[lifesign] {shown}\n".encode("utf-8", "replace"))

    def note(self, text: str) -> None:
        """Only write it down (one line, control characters removed)."""
        line = f"{stamp(time.time())} {''.join(char if char.isprintable() else ' ' for char in text)[:2000]}"
        self.lines = [*self.lines[-KEPT_LINES:], line]
        if self._file is not None:
            with suppress(OSError), self._file.open("a", encoding="utf-8", errors="replace") as file:
                file.write(line + "\n")

    def flush(self, limit_s: float = 1.0) -> None:
        """Wait until everything is said, at most `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _work(self) -> None:
        while True:
            data = self._queue.get()
            with suppress(OSError):
                while data:
                    data = data[os.write(self._fd, data) :]
            self._queue.task_done()
