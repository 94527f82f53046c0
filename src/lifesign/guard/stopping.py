"""Ending a life within the grace period, whatever the engine does. Pure: asked at any time what to send to whom.

vLLM needs this. SIGTERM while it starts is ignored or dead-locks it, a stream in mid-step keeps it "waiting for
connections to close" for minutes, and a killed server leaves its EngineCore behind (measured on 0.32.0). So the
signal goes to the top process first, its children get a little time once it is gone, and what is left at the deadline
gets SIGKILL, again and again until nothing runs.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

STARTUP_PATIENCE_S = 5.0
CHILDREN_S = 4.0
MARGIN_S = 2.0


@dataclass
class Stopper:
    """The plan of one stop. `ready`: whether requests may be in flight; before that there is nothing to drain."""

    started_s: float
    grace_s: float
    ready: bool
    number: int = signal.SIGTERM
    _asked: bool = False
    _top_gone_s: float | None = field(default=None)
    _hurried: bool = False

    @property
    def kill_at_s(self) -> float:
        """When patience ends. A margin of the grace period stays for collecting and leaving."""
        patience_s = max(0.0, self.grace_s - min(MARGIN_S, self.grace_s / 4))
        if not self.ready:
            patience_s = min(patience_s, STARTUP_PATIENCE_S)
        at_s = self.started_s + patience_s
        return at_s if self._top_gone_s is None else min(at_s, self._top_gone_s + CHILDREN_S)

    def hurry(self) -> None:
        """A second request to stop: no more patience."""
        self._hurried = True

    def next(self, now_s: float, *, top_alive: bool, others_alive: bool) -> tuple[int | None, int | None]:
        """(signal for the top process, signal for the other members) to send at `now_s`; None means none."""
        if not top_alive and self._top_gone_s is None:
            self._top_gone_s = now_s
        if self._hurried or now_s >= self.kill_at_s:
            return (signal.SIGKILL if top_alive else None, signal.SIGKILL if others_alive else None)
        if not self._asked:
            self._asked = True
            return (self.number if top_alive else None, None)
        return (None, None)
