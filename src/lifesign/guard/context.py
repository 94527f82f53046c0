"""What the parts of one guard share: settings, folder, tools, signals, voice, board, and the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lifesign.guard.board import Board
from lifesign.guard.helpers import Helpers
from lifesign.guard.inbox import Inbox
from lifesign.guard.notify import Notifier
from lifesign.guard.settings import Settings
from lifesign.guard.statedir import StateDir
from lifesign.guard.voice import Voice


@dataclass
class Context:
    """One per guard. `clock` is monotone, `now` counts seconds since the epoch; `stop_signal` is set once asked to stop."""

    settings: Settings
    state: StateDir
    helpers: Helpers
    inbox: Inbox
    voice: Voice
    board: Board
    notifier: Notifier
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    stop_signal: int | None = None
    stop_asked_s: float | None = None
    stop_requests: int = 0
    timeline: list[tuple[float, str]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Put a turning point on the timeline of this life and into the log of guard."""
        self.timeline = [*self.timeline[-400:], (self.now(), text)]
        self.voice.note(text)

    def ask_to_stop(self, number: int) -> None:
        """Remember a request to stop, and how often it came."""
        self.stop_requests += 1
        if self.stop_signal is None:
            self.stop_signal = number
            self.stop_asked_s = self.clock()
