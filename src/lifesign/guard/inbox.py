"""Signals as readable events for the main loop, so that nothing ever happens inside a signal handler."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""SIGHUP: the terminal is gone, and with it whoever would look after an engine that was started again."""
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
OTHERS = (signal.SIGCHLD, signal.SIGWINCH)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor carries the number; the handler only has to exist."""


class Inbox:
    """Catches the signals that guard understands; `fd` becomes readable, `read` gives their numbers in order."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}

    def open(self) -> None:
        """Install the handlers. Main thread only. A SIGHUP that was ignored (nohup) stays ignored."""
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in (*STOPPING, *PASSED_ON, *OTHERS):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, _nothing)

    def read(self) -> list[int]:
        """Numbers of the signals that came since the last call."""
        numbers: list[int] = []
        with suppress(BlockingIOError):
            while data := os.read(self.fd, 4096):
                numbers += data
        return numbers

    def close(self) -> None:
        """Put the handlers back."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        for fd in (self.fd, self._write_fd):
            os.close(fd)
