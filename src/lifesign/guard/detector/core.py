"""The failure detector: fed with events, it says what the engine is and what should be done. It reads no clock.

The order of trust: a process that exited; progress (step and token counters); demand; evidence from processes and
devices. The learned step cost only decides when to look. What kills is evidence that nothing moves, held against the
cost of a restart R (ski rental: waiting R is at most twice the optimal loss, however stalls are distributed):

    stuck      wall age > max(15 s, 0.3 R)          the wall counts: a spinner on a busy machine earns no credit
    unknown    own age  > max(3 D, R) in [60, 900] s    (1.5 D where the size of the running step can't be seen)
    working    own age  > max(6 D, 4 R) in [600, 3600] s
    stopped    15 s in state T, after one SIGCONT at 5 s; never while a debugger or a frozen control group holds it

D is the learned limit of the running step (`StepCost.suspect_limit_s`).
"""

from __future__ import annotations

from dataclasses import dataclass

from lifesign.guard.detector.clock import EngineClock
from lifesign.guard.detector.events import (
    AskOperator,
    Begin,
    Canary,
    CanaryAnswered,
    Capture,
    Changed,
    Command,
    Event,
    Exited,
    Kill,
    Milestone,
    Note,
    Poll,
    Ready,
    Resume,
    Route,
)
from lifesign.guard.detector.evidence import Activity, GpuChannel, ProcessChannel, ProcessSignals, Score
from lifesign.guard.detector.policy import StepCost, StepSize
from lifesign.guard.detector.slowness import Slowness
from lifesign.guard.detector.states import ON_ENTRY, TRANSITIONS, VIEW, Action, Finding, State

STUCK_KILL_S = 15.0
STUCK_SUSPECT_S = 8.0
UNKNOWN_KILL_S = (60.0, 900.0)
WORKING_KILL_S = (600.0, 3600.0)
BLIND_KILL_MIN_S = 120.0
STOP_SEEN_S = 1.0
STOP_RESUME_S = 5.0
STOP_KILL_S = 15.0
START_PHASE_MIN_S = 300.0
CANARY_AFTER_S = 30.0
WORST_SIZE = StepSize(256, 8192)
STARVED_EXCUSE = 0.5
WHO_KEPT = 8
HALTED_STATES = ("T", "t", "Z", "X")


@dataclass(slots=True)
class Settings:
    """What the owner allows. patience: the part of a restart's cost that a stuck engine is given (0.3; 1 is patient).

    may_resume: a stopped engine may be sent SIGCONT. canary: an idle engine may be asked for one token.
    """

    patience: float = 0.3
    may_resume: bool = False
    canary: bool = False


class Detector:
    """The detector of one engine. Not thread-safe; every call takes some microseconds."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.state = State.STARTING
        self.finding = Finding.STARTING
        self.steps_seen = 0
        self._begin(Begin(), StepCost("gpu"))

    def _begin(self, event: Begin, cost: StepCost) -> None:
        self.life = event
        self.cost = cost
        self.clock = EngineClock()
        self.score = Score()
        self.process_channel = ProcessChannel()
        self.gpu_channel = GpuChannel()
        self.slowness = Slowness()
        self.ready = event.serving
        self.phase = "start"
        self.limit_s = 0.0
        self._limit_steps = -1
        self._limit_size = StepSize(0, 0)
        self._size = StepSize(1, 1)
        self._sized = False
        self._stopped_s = 0.0
        self._resumed = self._asked = False
        self._note_left_s = 0.0
        self._idle_s = 0.0
        self._canary_out = False
        self._blind = False
        self._wait_share = 0.0
        self._routed_here = True

    @property
    def view(self) -> str:
        """The state in the three words that people use: HEALTHY, UNHEALTHY, DEAD."""
        return VIEW[self.state]

    @property
    def starved(self) -> bool:
        """Whether the engine waited for a processor most of the time at the last look."""
        return self._wait_share > STARVED_EXCUSE

    @property
    def activities(self) -> dict[int, Activity]:
        """What each process was doing at the last look, by pid."""
        return self.process_channel.activities

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Take one event at `now_s` (seconds on any clock that only moves forward); gives what follows from it."""
        if type(event) is Poll:
            return self._poll(event, now_s)
        if isinstance(event, Begin):
            return self._new_life(event, now_s)
        if isinstance(event, Exited):
            return self._move(Finding.EXITED, (), (_named_exit(event),))
        if isinstance(event, Milestone):
            self.phase = event.phase
            self.clock.reset()
            self.score.reset()
        elif isinstance(event, Ready):
            self._become_ready()
        elif isinstance(event, Note):
            self._note_left_s = event.seconds
        elif isinstance(event, CanaryAnswered):
            self._canary_out = False
            self._idle_s = 0.0
            self.clock.reset()
        return []

    def _new_life(self, event: Begin, now_s: float) -> list[Command]:
        # The same configuration costs the same: what an earlier life learned is the best prior.
        prior = event.prior
        if prior is None and self.cost.learned and self.life.backend == event.backend:
            prior = self.cost.costs()
        self._begin(event, StepCost(event.backend, prior))
        self.clock.last_s = now_s
        old, self.state = self.state, State.OK if event.serving else State.STARTING
        self.finding = Finding.IN_TIME if event.serving else Finding.STARTING
        if old is self.state:
            return []
        return [Changed(old, self.state, self.finding, 0.0, 0.0, 0.0)]

    def _become_ready(self) -> None:
        self.ready = True
        self.clock.reset()
        self.score.reset()

    def _poll(self, poll: Poll, now_s: float) -> list[Command]:
        if self.state is State.DEAD:
            return []
        processes = poll.processes
        wait_share, odd = self._scan(processes)
        step_s = self.clock.advance(now_s, wait_share)
        halted = self._halted(processes, step_s) if odd or self._stopped_s > 0.0 else None
        steps = poll.steps
        self._blind = steps is None
        if steps:
            if not self.ready:
                self._become_ready()
            commands = self._progress(poll, steps)
            if halted is None and self.finding is Finding.PROGRESS:
                return commands
            return commands + self._move(halted or Finding.PROGRESS, processes)
        if not poll.demand and not self._canary_out and self.ready:
            return self._idle(poll, step_s, halted)
        self._idle_s = 0.0
        if self._note_left_s > 0.0:
            self._note_left_s -= step_s
        self.score.add(self._evidence(poll), step_s)
        if poll.running is not None:
            self._size, self._sized = poll.running, True
        elif not self._sized and self.life.tier == "outside":
            self._size = self.life.max_size or WORST_SIZE
        if self.cost.steps != self._limit_steps or self._size != self._limit_size:
            self._limit_steps, self._limit_size = self.cost.steps, self._size
            self.limit_s = self.cost.suspect_limit_s(self._size)
        finding = halted or self._judge()
        # The table gives the same state again for the same finding (a test holds it to that).
        if finding is self.finding and finding is not Finding.HALTED:
            return []
        return self._move(finding, poll.processes)

    def _progress(self, poll: Poll, steps: int) -> list[Command]:
        self.clock.reset()
        self.score.reset()
        self._idle_s = 0.0
        self._note_left_s = 0.0
        self._canary_out = False
        self.steps_seen += steps
        if poll.demand or poll.running is not None:
            self.process_channel.learn(poll.processes)
            self.gpu_channel.learn(poll.gpus)
        if poll.running is not None:
            self._size, self._sized = poll.running, True
        size = poll.size
        if size is None or poll.step_s <= 0.0 or size.sequences <= 0:
            return []
        if not self._sized:
            self._size = size
        self.cost.observe(size, poll.step_s)
        return self.slowness.observe(self.cost, size, poll.step_s)

    def _idle(self, poll: Poll, step_s: float, halted: Finding | None) -> list[Command]:
        self.clock.reset()
        self.score.reset()
        self._idle_s += step_s
        if halted is None and any(one.window_s > 0.0 for one in poll.processes):
            self.process_channel.check.idle(self.process_channel.read(poll.processes))
        if poll.gpus:
            self.gpu_channel.check.idle(self.gpu_channel.read(poll.gpus))
        commands = self._move(halted or Finding.NO_DEMAND, poll.processes)
        if self.settings.canary and self._idle_s >= CANARY_AFTER_S and not self._canary_out and halted is None:
            self._canary_out = True
            commands.append(Canary(self.cost.suspect_limit_s(StepSize(1, 1))))
        return commands

    def _evidence(self, poll: Poll) -> int:
        channel = self.process_channel
        reading = channel.read(poll.processes) if poll.processes else 0
        if not channel.check.trusted:
            reading = 0
        if self.life.backend == "cpu":
            return reading
        # Beside a GPU the host sleeps or spins in a long step and in a hang alike: only its work counts (compilers).
        if reading > 0:
            return 1
        return self.gpu_channel.read(poll.gpus) if poll.gpus and self.gpu_channel.check.trusted else 0

    def _scan(self, processes: tuple[ProcessSignals, ...]) -> tuple[float, bool]:
        """The part of the runnable time that went by without a processor; whether a process is stopped or gone."""
        run_s = wait_s = 0.0
        odd = False
        for one in processes:
            if one.role != "server":
                run_s += one.run_s
                wait_s += one.wait_s
            if one.state in HALTED_STATES or one.frozen:
                odd = True
        total_s = run_s + wait_s
        self._wait_share = share = wait_s / total_s if total_s > 0.0 else 0.0
        return share, odd

    def _halted(self, processes: tuple[ProcessSignals, ...], step_s: float) -> Finding | None:
        """What the states of the processes say on their own: gone, or stopped and for how long."""
        stopped = held = False
        for one in processes:
            if one.role in ("server", "compiler"):
                continue
            if one.state in ("Z", "X"):
                return Finding.EXITED
            if one.frozen or one.state in ("T", "t"):
                stopped = True
                held = held or one.frozen or one.traced or one.state == "t"
        if not stopped:
            self._stopped_s = 0.0
            self._resumed = self._asked = False
            return None
        self._stopped_s += step_s
        if self._stopped_s >= STOP_KILL_S and not held:
            return Finding.STOPPED_TOO_LONG
        return Finding.HALTED if self._stopped_s >= STOP_SEEN_S else None

    def _judge(self) -> Finding:
        clock, limit_s, restart_s = self.clock, self.limit_s, self.life.restart_s
        stuck = self.score.stuck
        if not self.ready:
            usual_s = (self.life.phase_s or {}).get(self.phase, 0.0)
            late = clock.wall_s > max(3.0 * usual_s, START_PHASE_MIN_S)
            return Finding.START_STUCK if late and stuck else Finding.STARTING
        # Stuck is judged first: starvation and known phases must not excuse what shows that it doesn't move.
        if stuck:
            patience_s = max(STUCK_KILL_S, self.settings.patience * restart_s)
            if self._blind:
                patience_s = max(patience_s, BLIND_KILL_MIN_S)
            if clock.wall_s > patience_s:
                return Finding.STUCK_TOO_LONG
            if clock.wall_s > STUCK_SUSPECT_S:
                return Finding.LATE if clock.own_s > limit_s else Finding.STUCK_EARLY
        works = not stuck and (self.score.working or self._note_left_s > 0.0 or self._wait_share > STARVED_EXCUSE)
        if works:
            patience_s = _within(max(6.0 * limit_s, 4.0 * restart_s), WORKING_KILL_S)
            # Before the costs are learned the limit is a guess, and no reason to end what visibly works.
            if clock.own_s > (patience_s if self.cost.learned else WORKING_KILL_S[1]):
                return Finding.WORKING_TOO_LONG
        elif not stuck:
            factor = 3.0 if self.life.tier == "beacon" else 1.5
            patience_s = _within(max(factor * limit_s, restart_s), UNKNOWN_KILL_S)
            if self._blind:
                patience_s = max(patience_s, BLIND_KILL_MIN_S)
            if clock.own_s > patience_s:
                return Finding.SILENT_TOO_LONG
        if clock.own_s <= limit_s:
            return Finding.IN_TIME
        if works:
            return Finding.LATE_WORKING
        return Finding.LATE_UNSEEN if self._blind else Finding.LATE

    def _culprits(self, processes: tuple[ProcessSignals, ...]) -> tuple[str, ...]:
        """Who stands out: the stopped and gone first, then those that don't work, each as `role rank: activity`."""
        activities = self.process_channel.activities
        named: list[tuple[int, str]] = []
        for one in processes:
            if one.role in ("server", "compiler"):
                continue
            gone = one.frozen or one.state in ("T", "t", "Z", "X")
            activity = activities.get(one.pid)
            if gone:
                activity = Activity.EXITED if one.state in ("Z", "X") else Activity.STOPPED
            if activity is None or activity in (Activity.COMPUTING, Activity.STARVED, Activity.PAGING):
                continue
            rank = f" {one.rank}" if one.rank >= 0 else ""
            order = 0 if gone else 1 if one.role == "worker" else 2
            named.append((order, f"{one.role}{rank} (pid {one.pid}): {activity.value}"))
        named.sort(key=lambda pair: pair[0])
        # If somebody is stopped or gone, the others merely wait for it.
        if named and named[0][0] == 0:
            named = [pair for pair in named if pair[0] == 0]
        return tuple(text for _, text in named)[:WHO_KEPT]

    def _move(
        self, finding: Finding, processes: tuple[ProcessSignals, ...], who: tuple[str, ...] = ()
    ) -> list[Command]:
        old = self.state
        self.finding = finding
        new = TRANSITIONS[old, finding]
        commands: list[Command] = []
        if new is not old:
            self.state = new
            clock = self.clock
            if not who and VIEW[new] != "HEALTHY":
                who = self._culprits(processes)
            commands.append(Changed(old, new, finding, clock.wall_s, clock.own_s, self.limit_s, who))
            commands.extend(self._entry(new, finding, who))
        if finding is Finding.HALTED:
            commands.extend(self._wake(processes))
        return commands

    def _entry(self, state: State, finding: Finding, who: tuple[str, ...]) -> list[Command]:
        commands: list[Command] = []
        for action in ON_ENTRY[state]:
            if action is Action.KILL:
                commands.append(Kill(finding, who))
            elif action is Action.CAPTURE:
                commands.append(Capture(finding))
            else:
                here = action is Action.ROUTE_BACK
                if here is not self._routed_here:
                    self._routed_here = here
                    commands.append(Route(here))
        return commands

    def _wake(self, processes: tuple[ProcessSignals, ...]) -> list[Command]:
        """Once per stop: word to the operator where somebody holds it, else SIGCONT after 5 s if that is allowed."""
        held = [one for one in processes if one.frozen or one.traced or one.state == "t"]
        if held and not self._asked:
            self._asked = True
            how = "a frozen control group" if held[0].frozen else "a debugger"
            return [AskOperator(f"{held[0].role} (pid {held[0].pid}) is held by {how}")]
        if held or self._resumed or not self.settings.may_resume or self._stopped_s < STOP_RESUME_S:
            return []
        self._resumed = True
        return [Resume(tuple(one.pid for one in processes if one.state == "T"))]


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(bounds[1], max(bounds[0], value))


def _named_exit(event: Exited) -> str:
    how = f"signal {event.signal}" if event.signal else "gone" if event.code is None else f"exit code {event.code}"
    return f"{event.who} (pid {event.pid}): {how}"
