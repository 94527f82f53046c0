"""Working or stuck? What a window of process and GPU counters says about a step that hasn't come back.

"CPU above 5 %" is wrong in both directions: it calls a starved worker dead and a spinning one alive. What separates them:

- *demand*: threads running or waiting for a processor (both from schedstat, so neighbours can't hide it), against the
  number learned while this engine made progress. Low demand: blocked, or polling with naps.
- *movement per processor second*: page faults, voluntary switches, stacks that change, counted on the busy threads only
  (a heartbeat thread must not vouch for a spinning one). Demand without movement: spinning.
- on a GPU the host sleeps or spins in a long step and in a hang alike, and utilisation reads 95-100 % in a deadlocked
  kernel: power and memory activity against the band learned while tokens flowed are the tell.

Thresholds were fixed on measured batches of real processes (see docs/detector.md) and are the same in every use.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

FAULTS_PER_CPU_S = 20.0
SWITCHES_PER_CPU_S = 1.0
NAPS_PER_CPU_S = 8000.0
"""More voluntary switches than this per processor second: naps of a polling loop (20 000 and more were measured; threads
that wait for each other in honest work came to some tens). On a busy machine such a loop waits for a processor after
every nap, and its demand looks like work."""
STACKS_MOVING = 2
STACK_LOOKS_TOLD = 3
DEMAND_SHARE = 0.3
DEMAND_MIN = 0.3
CPU_SEEN_S = 0.005
YIELDS_MIN = 50
PAGING_BYTES = 1 << 16
PAGING_FAULTS = 4
STARVED_SHARE = 0.5

GPU_POWER_SHARE = 0.5
GPU_MEMORY_QUIET_PCT = 2.0
GPU_MEMORY_SHARE = 0.25
LEARN_GAIN = 0.1

SCORE_DECAY = 0.85
SCORE_MAX = 6.7
STUCK_BELOW = -3.5
WORKING_ABOVE = 2.5
IDLE_LIAR = 0.3
IDLE_START = -0.3
IDLE_GAIN = 0.05


class Activity(str, Enum):
    """What a process is doing, in one word that a person can read."""

    __hash__ = str.__hash__  # that of Enum is a Python function, and these are looked up at every look

    COMPUTING = "computing"
    STARVED = "starved"
    """Computing, but kept from a processor for more than half of the time."""
    PAGING = "paging"
    SPINNING = "spinning"
    POLLING = "polling"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    EXITED = "exited"
    UNCLEAR = "busy, nothing known to move"
    """One thread computes or spins: only its stacks could tell, and nobody looked at them (often enough)."""
    NO_PROCESSOR = "no processor"
    """Runnable, but so short of processor time that nothing can be said."""
    UNSEEN = "unseen"
    """Its counters can't be read."""


_WEIGHT = {
    Activity.COMPUTING: 1,
    Activity.STARVED: 1,
    Activity.PAGING: 1,
    Activity.SPINNING: -1,
    Activity.POLLING: -1,
    Activity.BLOCKED: -1,
    Activity.STOPPED: -1,
    Activity.EXITED: -1,
    Activity.UNCLEAR: 0,
    Activity.NO_PROCESSOR: 0,
    Activity.UNSEEN: 0,
}


@dataclass(slots=True)
class ProcessSignals:
    """One process over a window of `window_s` seconds. Counters are differences over the window.

    role: `engine` (EngineCore), `worker`, `compiler` (a child that compiles kernels), `server` (never evidence).
    state: the letter of /proc/PID/stat; empty if unknown. `frozen`: its control group is frozen; `traced`: a debugger.
    run_s, wait_s: processor time and run-queue wait, summed over threads. A window of 0 s means: not readable.
    faults, switches, preemptions: minor faults, voluntary and forced switches of the busy threads alone, `cpu_s` their
        processor time. A loop that yields is switched away after some microseconds, again and again.
    busy_threads: threads that ran or wanted to, the fewest at any look of the window; 0 if not counted. Switches are
        movement only among several: an interpreter that spins hands its lock to a heartbeat and takes it back.
    stacks: different stacks seen in the window by `stack_looks` looks.
    """

    pid: int
    role: str = "worker"
    rank: int = -1
    state: str = ""
    window_s: float = 0.0
    run_s: float = 0.0
    wait_s: float = 0.0
    cpu_s: float = 0.0
    faults: int = 0
    switches: int = 0
    busy_threads: int = 0
    preemptions: int = 0
    major_faults: int = 0
    io_bytes: int = 0
    stacks: int = 0
    stack_looks: int = 0
    frozen: bool = False
    traced: bool = False

    @property
    def demand(self) -> float:
        """Threads running or wanting to run, on average over the window."""
        return (self.run_s + self.wait_s) / self.window_s if self.window_s > 0 else 0.0


@dataclass(slots=True)
class GpuSignals:
    """One device now: power draw and the share of time in which its memory was read or written."""

    index: int
    power_w: float
    memory_pct: float


def classify(signals: ProcessSignals, learned_demand: float = 0.0) -> Activity:
    """What the process is doing. `learned_demand` is its demand while it made progress; 0 if that was never seen."""
    state = signals.state
    if state in ("Z", "X"):
        return Activity.EXITED
    if state in ("T", "t") or signals.frozen:
        return Activity.STOPPED
    window_s = signals.window_s
    if window_s <= 0.0:
        return Activity.UNSEEN
    demand = (signals.run_s + signals.wait_s) / window_s
    # An engine of many threads has honest phases of one (sampling, parsing), so the learned number counts up to one
    # thread only; below that it keeps light work from being called blocked.
    bound = DEMAND_SHARE * min(1.0, learned_demand) if learned_demand > 0.0 else DEMAND_MIN
    if demand < bound or demand < 0.05:
        if signals.io_bytes >= PAGING_BYTES or signals.major_faults >= PAGING_FAULTS:
            return Activity.PAGING
        return Activity.POLLING if signals.run_s > 0.002 * window_s else Activity.BLOCKED
    return _at_work(signals)


def _at_work(signals: ProcessSignals) -> Activity:
    """A process that wants processors: does anything move?"""
    cpu_s = signals.cpu_s
    faulting = signals.faults > FAULTS_PER_CPU_S * cpu_s
    if signals.stacks < STACKS_MOVING:
        if not faulting and signals.preemptions > max(YIELDS_MIN, NAPS_PER_CPU_S * cpu_s):
            return Activity.SPINNING
        if cpu_s < CPU_SEEN_S:
            return Activity.NO_PROCESSOR
        if not faulting and signals.switches > NAPS_PER_CPU_S * cpu_s:
            return Activity.POLLING
        switching = signals.switches > SWITCHES_PER_CPU_S * cpu_s
        if not faulting and not switching:
            return Activity.SPINNING
        if not faulting and signals.busy_threads == 1:
            return Activity.SPINNING if signals.stack_looks >= STACK_LOOKS_TOLD else Activity.UNCLEAR
    starved = signals.wait_s > STARVED_SHARE * (signals.run_s + signals.wait_s)
    return Activity.STARVED if starved else Activity.COMPUTING


def weight(activity: Activity) -> int:
    """+1 working, -1 stuck, 0 says nothing."""
    return _WEIGHT[activity]


class IdleCheck:
    """Switches a channel off that reads "working" while the engine has nothing to do: such a sensor lies."""

    __slots__ = ("level",)

    def __init__(self) -> None:
        self.level = IDLE_START

    def idle(self, reading: int) -> None:
        """One reading taken while there was no demand."""
        self.level += IDLE_GAIN * (reading - self.level)

    @property
    def trusted(self) -> bool:
        """Whether the channel may be listened to."""
        return self.level <= IDLE_LIAR


class ProcessChannel:
    """Evidence from the processes of one engine, with the demand learned for each of them."""

    __slots__ = ("activities", "check", "learned")

    def __init__(self) -> None:
        self.learned: dict[int, float] = {}
        self.check = IdleCheck()
        self.activities: dict[int, Activity] = {}

    def learn(self, processes: tuple[ProcessSignals, ...]) -> None:
        """The engine makes progress: this is what its processes look like when it works."""
        for one in processes:
            if one.window_s <= 0.0 or one.role in ("server", "compiler"):
                continue
            demand = (one.run_s + one.wait_s) / one.window_s
            known = self.learned.get(one.pid)
            self.learned[one.pid] = demand if known is None else known + LEARN_GAIN * (demand - known)
        if len(self.learned) > 4 * len(processes) + 16:
            alive = {one.pid for one in processes}
            self.learned = {pid: value for pid, value in self.learned.items() if pid in alive}

    def read(self, processes: tuple[ProcessSignals, ...]) -> int:
        """+1 if any process works, -1 if all that can be judged are stuck, else 0. One honest slow rank is enough."""
        judged = working = unsure = 0
        activities: dict[int, Activity] = {}
        for one in processes:
            if one.role == "server":
                continue
            learned = self.learned.get(one.pid, 0.0)
            activity = classify(one, learned)
            activities[one.pid] = activity
            value = _WEIGHT[activity]
            # A process that never wanted a processor while the engine worked (EngineCore waiting for its workers)
            # can't be missed now: only its work counts.
            if value > 0:
                working += 1
            elif value < 0:
                judged += 1
            else:
                unsure += 1
        self.activities = activities
        if working:
            return 1
        return -1 if judged and not unsure else 0


class GpuChannel:
    """Evidence from power and memory activity, against the band learned while the engine made progress."""

    __slots__ = ("check", "learned")

    def __init__(self) -> None:
        self.learned: dict[int, tuple[float, float]] = {}
        self.check = IdleCheck()

    def learn(self, gpus: tuple[GpuSignals, ...]) -> None:
        """The engine makes progress: learn the power and memory activity of its devices."""
        for one in gpus:
            known = self.learned.get(one.index)
            if known is None:
                self.learned[one.index] = (one.power_w, one.memory_pct)
                continue
            power_w = known[0] + LEARN_GAIN * (one.power_w - known[0])
            memory_pct = known[1] + LEARN_GAIN * (one.memory_pct - known[1])
            self.learned[one.index] = (power_w, memory_pct)

    def read(self, gpus: tuple[GpuSignals, ...]) -> int:
        """+1 if any device works, -1 if all are stuck, 0 if it can't be said (nothing learned, light load)."""
        stuck = 0
        for one in gpus:
            known = self.learned.get(one.index)
            if known is None:
                continue
            power_w, memory_pct = known
            if one.memory_pct > GPU_MEMORY_QUIET_PCT:
                if one.memory_pct >= GPU_MEMORY_SHARE * memory_pct:
                    return 1
            elif one.power_w < GPU_POWER_SHARE * power_w and memory_pct > 2 * GPU_MEMORY_QUIET_PCT:
                stuck += 1
        return -1 if stuck and stuck == len(gpus) else 0


class Score:
    """The memory of the evidence: 3 to 5 seconds of agreement make a judgement, single wrong samples don't.

    "Working" is kept until the score falls below zero: during a long compile the compiler isn't seen in every sample, and
    a moment of doubt must not meet the ceiling of the unknown.
    """

    __slots__ = ("value", "working")

    def __init__(self) -> None:
        self.value = 0.0
        self.working = False
        """Enough agreement that work is going on, and no contradiction since."""

    def add(self, reading: int, seconds: float) -> None:
        """One reading that stands for `seconds`; tuned for one reading a second."""
        if seconds == 1.0:
            value = SCORE_DECAY * self.value + reading
        else:
            value = SCORE_DECAY**seconds * self.value + reading * seconds
        self.value = value = SCORE_MAX if value > SCORE_MAX else -SCORE_MAX if value < -SCORE_MAX else value
        self.working = value > WORKING_ABOVE or (self.working and value > 0.0)

    def reset(self) -> None:
        """Progress was made: nothing is known about the step that runs now."""
        self.value = 0.0
        self.working = False

    @property
    def stuck(self) -> bool:
        """Enough agreement that nothing moves."""
        return self.value < STUCK_BELOW
