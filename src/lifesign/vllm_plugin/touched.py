"""Does a process that burns processor time get anywhere? How much memory it touches tells honest work from a spin.

Page faults and voluntary switches, the cheap signs of movement, can both be absent from honest work: a real vLLM worker
with one compute thread was measured at no page fault and no switch for four seconds on end, in the middle of a long
prefill. Read like that it spins, and it would be killed. But honest work walks through weights and activations, and a
spin stays where it is. The kernel knows: clear the "referenced" marks of the process's pages (/proc/PID/clear_refs), wait,
and count the pages that are marked again (/proc/PID/smaps_rollup). See docs/patience.md for what was measured.

Walking the page tables takes about 0.1 s per GiB of small pages and holds up the process's own memory management
meanwhile. So this is a second opinion, asked for only about a process that looks stuck, and rarely.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import NamedTuple

WATCH_S = 1.0
WORKING_BYTES = 12 << 20
"""More touched in a second is work. Measured: a spinning vLLM worker 1 MiB, a bare Python loop up to 7, a working one 25 to 75."""
PAUSE_FACTOR = 40.0
"""Between two looks pass at least this many times the time that the last one took: at most 2.5 % of a late step."""
PAUSE_MIN_S = 4.0


class Touched(NamedTuple):
    """Bytes touched within `window_s` seconds of watching, and the seconds that the kernel spent on the answer."""

    bytes: int
    window_s: float
    cost_s: float

    @property
    def working(self) -> bool:
        """Whether that is more than a spin touches."""
        return self.bytes >= WORKING_BYTES * self.window_s


def touched_in(
    pid: int,
    seconds: float = WATCH_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Touched | None:
    """How much memory the process touches in `seconds`; None where the kernel doesn't say or we may not ask."""
    began_s = clock()
    try:
        handle = os.open(f"/proc/{pid}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(handle, b"1")
    except OSError:
        return None
    finally:
        os.close(handle)
    cleared_s = clock()
    sleep(seconds)
    asked_s = clock()
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            if line.startswith("Referenced:"):
                kib = int(line.split()[1])
                done_s = clock()
                return Touched(kib << 10, max(seconds, asked_s - cleared_s), (cleared_s - began_s) + (done_s - asked_s))
    return None


class SecondOpinion:
    """Asks `touched_in` about processes that look stuck, at most as often as its cost allows."""

    def __init__(
        self, measure: Callable[[int], Touched | None] = touched_in, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.measure = measure
        self.clock = clock
        self.last: dict[int, Touched] = {}
        self._next_s: dict[int, float] = {}

    def may_ask(self, pid: int) -> bool:
        """Whether enough time has passed since the last look at this process."""
        return self.clock() >= self._next_s.get(pid, 0.0)

    def ask(self, pid: int) -> bool | None:
        """Whether the process gets somewhere; None where it can't be said."""
        answer = self.measure(pid)
        cost_s = answer.cost_s if answer is not None else 0.0
        self._next_s[pid] = self.clock() + max(PAUSE_MIN_S, PAUSE_FACTOR * cost_s)
        if answer is None:
            self.last.pop(pid, None)
            return None
        self.last[pid] = answer
        return answer.working
