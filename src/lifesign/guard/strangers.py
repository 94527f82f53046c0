"""Ended children that no engine and no tool of ours is known by: whose wait status may be taken, and when.

As PID 1, or as a child subreaper, guard is given orphans that it never heard of, and must reap them. But a library may
have started a child of its own and wait for it: what is nobody's is therefore left for a while first.
"""

from __future__ import annotations

from collections.abc import Callable

from lifesign.guard import procs

PATIENCE_S = 10.0


class Strangers:
    """Remembers since when each ended stranger has been seen; by start time too, because pids are reused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[procs.ProcId, float] = {}

    def may_reap(self, pid: int) -> bool:
        """Whether it has waited in vain for whoever started it."""
        proc = procs.identify(pid) or procs.ProcId(pid, 0)
        now_s = self._clock()
        if proc not in self._since_s:  # those that were reaped by their own parent's code are never asked about again
            self._since_s = {one: at_s for one, at_s in self._since_s.items() if now_s - at_s < 2 * PATIENCE_S}
        if now_s - self._since_s.setdefault(proc, now_s) < PATIENCE_S:
            return False
        del self._since_s[proc]
        return True
