"""Reads from /proc what the processes of an engine did in the last seconds; gives `ProcessSignals`, judges nothing.

Everything is counted per thread, because a process is not one thing: a heartbeat thread that naps and wakes must not
vouch for a main thread that spins. A thread is *busy* in an interval when it ran or waited for a processor for a fifth
of what the busiest thread did; page faults and switches are read for busy threads alone, which also keeps a look cheap
(a worker has up to a hundred threads, nearly all of them asleep).

The window slides, and `begin` cuts it: evidence about a step must not come from the step before it.
Where the kernel keeps no schedstat (gVisor, some containers) processor time comes from `stat`, in clock ticks, and the
wait for a processor is unknown.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from lifesign.guard.detector.evidence import STACK_LOOKS_TOLD, STACKS_MOVING, ProcessSignals

WINDOW_S = 5.0
THREADS_KEPT = 1024
BUSY_SHARE = 0.2
BUSY_MIN = 0.05
"""Threads that want less than this part of the interval are asleep, whoever else is."""
QUIET_DEMAND = 0.3
READ_BYTES = 8192
INTERVALS_KEPT = 64
STACKS_KEPT = 8
STACK_WINDOW_S = 15.0
"""Stacks are taken seldom, so they are believed longer than counters."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Target(NamedTuple):
    """A process to look at. `start_ticks` 0: whoever has the pid now (and from then on only that one)."""

    pid: int
    role: str = "worker"
    rank: int = -1
    start_ticks: int = 0


@dataclass(slots=True)
class Interval:
    """What one process did between two looks."""

    from_s: float
    to_s: float
    run_s: float = 0.0
    wait_s: float = 0.0
    cpu_s: float = 0.0
    faults: int = 0
    switches: int = 0
    busy_threads: int = 0
    preemptions: int = 0
    major_faults: int = 0
    io_bytes: int = 0


@dataclass(slots=True)
class Tracked:
    """A process that was seen before: counters at the last look, and the intervals of the window."""

    start_ticks: int
    at_s: float
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    details: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    io_bytes: int = -1
    major_faults: int = 0
    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=INTERVALS_KEPT))
    stacks: deque[tuple[float, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=STACKS_KEPT))
    wait_known: bool = True


class ProcessProbe:
    """Looks at the processes of one engine. Owned by one thread. Never raises: what can't be read is left out."""

    def __init__(self, window_s: float = WINDOW_S, proc: str = "/proc") -> None:
        self.window_s = window_s
        self._proc = proc
        self._tracked: dict[int, Tracked] = {}
        self._begun_s = float("-inf")
        self._told: dict[int, tuple[float, bool]] = {}

    def begin(self, now_s: float) -> None:
        """Progress was made: what happened before now says nothing about the step that runs now."""
        self._begun_s = now_s
        for one in self._tracked.values():
            one.intervals.clear()
            one.stacks.clear()
        self._told.clear()

    def told(self, pid: int, moves: bool, until_s: float) -> None:
        """Somebody looked closely (see `touched`): until `until_s` the process is known to move, or not to."""
        self._told[pid] = (until_s, moves)

    def saw_stacks(self, pid: int, fingerprints: dict[str, int], now_s: float) -> None:
        """Somebody took the stacks of the process (by thread). A busy thread whose stack changes is moving."""
        tracked = self._tracked.get(pid)
        if tracked is not None:
            tracked.stacks.append((now_s, fingerprints))

    def sample(self, targets: list[Target], now_s: float) -> tuple[ProcessSignals, ...]:
        """One look at every target, also at one that is gone (state X). The first look has states but no counters."""
        found = tuple(self._one(target, now_s) for target in targets)
        if len(self._tracked) > 2 * len(targets) + 8:
            alive = {target.pid for target in targets}
            self._tracked = {pid: one for pid, one in self._tracked.items() if pid in alive}
        return found

    def states(self, targets: list[Target]) -> tuple[ProcessSignals, ...]:
        """Only whether each target is there, stopped or gone: one file per process, no counters."""
        found = []
        for target in targets:
            stat = _stat_fields(f"{self._proc}/{target.pid}/stat")
            tracked = self._tracked.get(target.pid)
            expected = target.start_ticks or (tracked.start_ticks if tracked else 0)
            signals = ProcessSignals(target.pid, target.role, target.rank, stat[0] if stat else "X")
            if stat and expected and int(stat[19]) != expected:
                signals.state = "X"
            if signals.state in ("T", "t"):
                signals.traced = signals.state == "t" or self._number(target.pid, b"TracerPid:") > 0
            found.append(signals)
        return tuple(found)

    @property
    def waits_known(self) -> bool:
        """Whether the kernel says how long threads waited for a processor."""
        return all(one.wait_known for one in self._tracked.values())

    def _one(self, target: Target, now_s: float) -> ProcessSignals:
        pid = target.pid
        signals = ProcessSignals(pid, target.role, target.rank)
        stat = _stat_fields(f"{self._proc}/{pid}/stat")
        start_ticks = int(stat[19]) if stat else 0
        tracked = self._tracked.get(pid)
        expected = target.start_ticks or (tracked.start_ticks if tracked else 0)
        if not stat or (expected and start_ticks != expected):
            signals.state = "X"
            return signals
        signals.state = stat[0]
        if stat[0] in "Zz":
            return signals
        if tracked is None:
            tracked = self._tracked[pid] = Tracked(start_ticks, now_s)
            self._advance(pid, tracked, now_s, first=True)
        elif now_s > tracked.at_s:
            self._advance(pid, tracked, now_s, first=False)
        self._sum_up(tracked, signals, now_s)
        until_s, moves = self._told.get(pid, (float("-inf"), False))
        if now_s <= until_s and signals.stacks < STACKS_MOVING:
            # The detector's words for "somebody looked closely": stacks that differ, or looks that saw only one.
            signals.stacks, signals.stack_looks = (STACKS_MOVING if moves else 1), STACK_LOOKS_TOLD
        if stat[0] in "Tt":
            signals.traced = stat[0] == "t" or self._number(pid, b"TracerPid:") > 0
        elif signals.window_s > 0.0 and signals.run_s == 0.0 and signals.wait_s == 0.0:
            signals.frozen = is_frozen(pid, self._proc)
        return signals

    def _advance(self, pid: int, tracked: Tracked, now_s: float, first: bool) -> None:
        """Read all threads' times and the busy ones' details; append the interval since the last look."""
        length_s = now_s - tracked.at_s
        times, known = self._times(pid)
        interval = Interval(tracked.at_s, now_s)
        wants: list[tuple[float, str, float]] = []
        for thread, (run_s, wait_s) in times.items():
            old = tracked.times.get(thread)
            # A thread that wasn't there before was born since.
            old_run_s, old_wait_s = old if old is not None else (0.0, 0.0)
            ran_s, waited_s = max(0.0, run_s - old_run_s), max(0.0, wait_s - old_wait_s)
            interval.run_s += ran_s
            interval.wait_s += waited_s
            wants.append((ran_s + waited_s, thread, ran_s))
        bound_s = max(BUSY_MIN * length_s, BUSY_SHARE * max((want for want, _, _ in wants), default=0.0))
        details: dict[str, tuple[int, int, int]] = {}
        for want_s, thread, ran_s in wants:
            if not first and want_s < bound_s:
                continue
            now = self._details(pid, thread)
            if now is None:
                continue
            details[thread] = now
            interval.busy_threads += 1
            then = tracked.details.get(thread)
            if then is not None:
                interval.cpu_s += ran_s
                interval.faults += max(0, now[0] - then[0])
                interval.switches += max(0, now[1] - then[1])
                interval.preemptions += max(0, now[2] - then[2])
        # A thread that was not busy begins anew when it becomes so: what it did in its naps must not count as movement.
        tracked.details = details
        if (interval.run_s + interval.wait_s) < QUIET_DEMAND * length_s or first:
            self._disk(pid, tracked, interval, first)
        tracked.times, tracked.at_s, tracked.wait_known = times, now_s, known
        if not first and length_s > 0.0 and interval.from_s >= self._begun_s:
            tracked.intervals.append(interval)

    def _disk(self, pid: int, tracked: Tracked, interval: Interval, first: bool) -> None:
        """Reads from disk, and faults that had to: a process that pages in weights computes nothing and isn't stuck."""
        io_bytes = self._number(pid, b"read_bytes:", "io") + self._number(pid, b"write_bytes:", "io")
        stat = _stat_fields(f"{self._proc}/{pid}/stat")
        major = int(stat[9]) if stat else tracked.major_faults
        if not first and tracked.io_bytes >= 0:
            interval.io_bytes = max(0, io_bytes - tracked.io_bytes)
            interval.major_faults = max(0, major - tracked.major_faults)
        tracked.io_bytes, tracked.major_faults = io_bytes, major

    def _sum_up(self, tracked: Tracked, signals: ProcessSignals, now_s: float) -> None:
        intervals = tracked.intervals
        while intervals and intervals[0].to_s <= now_s - self.window_s:
            intervals.popleft()
        if not intervals:
            return
        signals.window_s = now_s - intervals[0].from_s
        signals.busy_threads = intervals[0].busy_threads
        for one in intervals:
            signals.run_s += one.run_s
            signals.wait_s += one.wait_s
            signals.cpu_s += one.cpu_s
            signals.faults += one.faults
            signals.switches += one.switches
            signals.preemptions += one.preemptions
            signals.busy_threads = min(signals.busy_threads, one.busy_threads)
            signals.major_faults += one.major_faults
            signals.io_bytes += one.io_bytes
        stacks = tracked.stacks
        while stacks and stacks[0][0] <= now_s - STACK_WINDOW_S:
            stacks.popleft()
        signals.stack_looks = len(stacks)
        for thread in tracked.details:
            signals.stacks = max(signals.stacks, len({marks[thread] for _, marks in stacks if thread in marks}))

    def _times(self, pid: int) -> tuple[dict[str, tuple[float, float]], bool]:
        """Processor time and run-queue wait of every thread in seconds, and whether the wait is known."""
        base = f"{self._proc}/{pid}/task"
        try:
            threads = os.listdir(base)[:THREADS_KEPT]
        except OSError:
            return {}, True
        times: dict[str, tuple[float, float]] = {}
        known = True
        for thread in threads:
            fields = _read(f"{base}/{thread}/schedstat").split()
            if len(fields) >= 2:
                times[thread] = (int(fields[0]) / 1e9, int(fields[1]) / 1e9)
                continue
            stat = _stat_fields(f"{base}/{thread}/stat")
            if stat:
                known = False
                times[thread] = ((int(stat[11]) + int(stat[12])) * _TICK_S, 0.0)
        return times, known

    def _details(self, pid: int, thread: str) -> tuple[int, int, int] | None:
        """Minor faults, voluntary and forced switches of a thread since it began."""
        base = f"{self._proc}/{pid}/task/{thread}"
        stat = _stat_fields(f"{base}/stat")
        if not stat:
            return None
        status = _read(f"{base}/status")
        voluntary = _number_after(status, b"\nvoluntary_ctxt_switches:")
        return int(stat[7]), voluntary, _number_after(status, b"\nnonvoluntary_ctxt_switches:")

    def _number(self, pid: int, name: bytes, file: str = "status") -> int:
        return _number_after(b"\n" + _read(f"{self._proc}/{pid}/{file}"), b"\n" + name)


def is_frozen(pid: int, proc: str = "/proc") -> bool:
    """Whether the process's control group is frozen (both versions of control groups)."""
    for line in _read(f"{proc}/{pid}/cgroup").decode("utf-8", "replace").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if ".." in path:
            continue
        if number == "0" and not names:
            for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                if b"frozen 1" in _read(f"{root}{path}/cgroup.events"):
                    return True
        elif "freezer" in names.split(",") and _read(f"/sys/fs/cgroup/freezer{path}/freezer.state").strip() in (
            b"FROZEN",
            b"FREEZING",
        ):
            return True
    return False


def _stat_fields(path: str) -> list[str]:
    """The fields of a stat file from the state on (so field 22 of proc(5) is at 19); empty if it can't be read."""
    fields = _read(path).rpartition(b")")[2].split()
    return [one.decode("ascii", "replace") for one in fields] if len(fields) > 20 else []


def _number_after(text: bytes, name: bytes) -> int:
    at = text.find(name)
    if at < 0:
        return 0
    words = text[at + len(name) : at + len(name) + 40].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(handle)
