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

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from lifesign.text import is_whole

WATCH_S = 1.0
LONGEST_S = 4.0
CPU_WANTED_S = 1.0
CPU_NEEDED_S = 0.4
"""A starved process is watched longer, and nothing is said of one that got less processor time than this."""
WORKING_BYTES = 12 << 20
"""More touched in a processor second is work. Measured: a spinning vLLM worker 1 MiB, a bare Python loop up to 7, a working
vLLM worker 25 to 75."""
FLOOR_BYTES = 8 << 20
"""What a spin touches doesn't shrink with its processor time: the bound for starved processes doesn't either."""
PAUSE_FACTOR = 40.0
"""Between two looks pass at least this many times the time that the last one took: at most 2.5 % of a late step."""
PAUSE_MIN_S = 4.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Touched(NamedTuple):
    """Bytes touched while the process got `cpu_s` of processor time, and the seconds that the kernel spent on the answer."""

    bytes: int
    cpu_s: float
    cost_s: float

    @property
    def working(self) -> bool | None:
        """Whether that is more than a spin touches; None when it got too little processor time to tell."""
        if self.cpu_s < CPU_NEEDED_S:
            return None
        return self.bytes >= max(FLOOR_BYTES, WORKING_BYTES * min(1.0, self.cpu_s))


def touched_in(
    pid: int,
    seconds: float = WATCH_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Touched | None:
    """How much memory the process touches in `seconds` (a starved one: up to `LONGEST_S`); None where we can't ask."""
    began_s = clock()
    if not _clear_marks(pid):
        return None
    cleared_s = clock()
    cpu_before_s = _cpu_s(pid)
    watched_s = 0.0
    while True:
        sleep(seconds)
        watched_s += seconds
        cpu_s = _cpu_s(pid) - cpu_before_s
        if cpu_s >= CPU_WANTED_S or watched_s + seconds > LONGEST_S:
            break
    asked_s = clock()
    marked = _marked_bytes(pid)
    if marked is None:
        return None
    return Touched(marked, cpu_s, (cleared_s - began_s) + (clock() - asked_s))


def _clear_marks(pid: int) -> bool:
    try:
        handle = os.open(f"/proc/{pid}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(handle, b"1")
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _marked_bytes(pid: int) -> int | None:
    text = small_text(f"/proc/{pid}/smaps_rollup")
    _, found, rest = text.partition("\nReferenced:")
    words = rest.split(None, 1)
    return int(words[0]) << 10 if found and words and is_whole(words[0]) else None


def _cpu_s(pid: int) -> float:
    """Processor seconds of the process so far; 0 when it is gone."""
    fields = small_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S if len(fields) > 12 else 0.0


def small_text(path: str) -> str:
    """A small /proc file; empty when it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(16384)
    except OSError:
        return ""


class SecondOpinion:
    """Asks `touched_in` about processes that look stuck, at most as often as its cost allows."""

    def __init__(
        self, measure: Callable[[int], Touched | None] = touched_in, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.measure = measure
        self.clock = clock
        self.last: dict[int, Touched] = {}
        self._next_s: dict[int, float] = {}

    def next_s(self, pid: int) -> float:
        """When the process may be looked at again."""
        return self._next_s.get(pid, 0.0)

    def may_ask(self, pid: int) -> bool:
        """Whether enough time has passed since the last look at this process."""
        return self.clock() >= self.next_s(pid)

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

    def undecided(self, pid: int) -> bool:
        """Whether the last look at the process worked, but it got too little processor time to say anything."""
        answer = self.last.get(pid)
        return answer is not None and answer.working is None


class TouchProbe:
    """Second opinions in the background, one at a time, for an observer that may not wait. `poll` never waits."""

    def __init__(self, opinion: SecondOpinion | None = None) -> None:
        self.opinion = opinion or SecondOpinion()
        self._thread: threading.Thread | None = None
        self._answer: tuple[int, bool, float] | None = None
        self._void = False

    def forget(self) -> None:
        """Another step runs now: a look that is still under way says nothing about it."""
        self._void = self._thread is not None

    def request(self, pid: int) -> bool:
        """Begin to look at `pid`; False while another look is under way, or when it is too early for the next one."""
        if self._thread is not None or not self.opinion.may_ask(pid):
            return False
        self._answer = None
        self._void = False
        self._thread = threading.Thread(target=self._ask, args=(pid,), name="lifesign-touched", daemon=True)
        self._thread.start()
        return True

    def _ask(self, pid: int) -> None:
        moves = self.opinion.ask(pid)
        if moves is not None:
            # It counts until the next look can have an answer: silence between two looks is no evidence.
            counts_s = self.opinion.next_s(pid) - self.opinion.clock() + LONGEST_S + WATCH_S
            self._answer = (pid, moves, counts_s)

    def poll(self) -> tuple[int, bool, float] | None:
        """(pid, whether it gets somewhere, for how many seconds that counts) once a look has ended; else None."""
        thread = self._thread
        if thread is None or thread.is_alive():
            return None
        self._thread = None
        return None if self._void else self._answer
