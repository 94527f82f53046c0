"""Judges one executor's workers while EngineCore waits for them: asks the detector, speaks in the log, writes the beacon.

The detector is the same pure core as in the guard and the simulator; what is special here is the place. EngineCore knows
exactly which step is running, how large it is and when it began, so the core runs in its `beacon` tier. And EngineCore
can't do anything but wait meanwhile, so looking costs nothing while a step is late; only what happens once per step has
to be cheap.

Two rules go beyond the core's:
- Where nothing can be seen of a worker (another node, no /proc, a GPU without a sensor), or it works, the wait is never
  shorter than vLLM's own limit. Patience must not kill earlier than no patience at all, unless something is known to be stuck.
- A death is announced with its reason, who, and all stacks *before* vLLM is told, because vLLM then ends the workers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from lifesign.guard.detector.beacon import BeaconState, BeaconWriter
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin, Changed, Kill, Poll
from lifesign.guard.detector.evidence import Activity, GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import StepSize
from lifesign.guard.detector.states import VIEW, Finding
from lifesign.guard.probes.gpu import GpuProbe
from lifesign.guard.probes.touched import SecondOpinion
from lifesign.vllm_plugin.stacks import stacks_of
from lifesign.vllm_plugin.waiting import StuckError, Wait

LOG = logging.getLogger("vllm.lifesign")
TELL_EVERY_S = 0.1
"""A step of a millisecond need not tell the detector a thousand times a second what it knows already."""
LEARN_EVERY_S = 5.0
LEARN_COST_SHARE = 0.0003
"""Looking at /proc while steps run well may take this part of the time, however many threads the workers have."""
BUSY_SHARE = 0.8
REPORT_FACTOR = 2.0
LINES_PER_STEP = 12
NO_PROOF = (Finding.SILENT_TOO_LONG, Finding.WORKING_TOO_LONG)
"""Ends that follow from a time alone; they may not come before vLLM's own limit would."""
DOUBTFUL = (Activity.SPINNING, Activity.UNCLEAR)


class Probe(Protocol):
    """Reads the counters of the workers."""

    def begin(self, now_s: float) -> None:
        """Forget what happened before: it says nothing about the step that is looked at from now on."""

    def sample(self, now_s: float) -> tuple[ProcessSignals, ...]:
        """Each process over the last seconds."""

    def told(self, pid: int, moves: bool, now_s: float) -> None:
        """Somebody looked closely: this process does get somewhere, or doesn't, whatever its counters say."""


class Keeper:
    """The watcher of one executor; see `waiting.Watcher` for when its methods are called."""

    def __init__(
        self,
        detector: Detector,
        probe: Probe,
        beacon: BeaconWriter | None,
        *,
        floor_s: float = 300.0,
        restart_s: Callable[[], float] = lambda: 60.0,
        clock: Callable[[], float] = time.monotonic,
        stacks: Callable[[list[int]], list[str]] = stacks_of,
        opinion: SecondOpinion | None = None,
        gpu: GpuProbe | None = None,
    ) -> None:
        self.detector = detector
        self.probe = probe
        self.beacon = beacon
        self.floor_s = floor_s
        self.restart_s = restart_s
        self.clock = clock
        self.stacks = stacks
        self.opinion = opinion or SecondOpinion()
        self.gpu = gpu if gpu is not None and gpu.available else None
        self._serving = False
        self._step_began_s = -1.0
        self._unhealthy = False
        self._moves = False
        self._report_at_s = 0.0
        self._lines = 0
        self._learn_after_s = 0.0
        self._steps = 0
        self._busy_s = 0.0
        self._tell_after_s = 0.0
        self._window_from_s = clock()
        self._processes: tuple[ProcessSignals, ...] = ()
        self._gpus: tuple[GpuSignals, ...] = ()

    def other_call_done(self) -> None:
        """Before the first step this was part of the start: what a restart costs is known a little better now."""
        if not self._serving:
            self.detector.life.restart_s = self.restart_s()

    # Once per step; these must be cheap.

    def step_sent(self, size: StepSize) -> None:
        """Show the step in the beacon."""
        self._serving = True
        if self.beacon is not None:
            cost = self.detector.cost
            self.beacon.step_started(size.sequences, size.tokens, cost.suspect_limit_s(size), cost.predicted_s(size))

    def step_finished(self, size: StepSize, seconds: float, now_s: float) -> None:
        """Learn from the step; close an episode of ill health. Of very short steps only some are learned from."""
        if self.beacon is not None:
            self.beacon.step_done()
        self._steps += 1
        self._busy_s += seconds
        if seconds < TELL_EVERY_S and now_s < self._tell_after_s:
            return
        self._tell_after_s = now_s + TELL_EVERY_S
        processes, gpus = self._learning_sample(now_s) if now_s >= self._learn_after_s else ((), ())
        poll = Poll(steps=self._steps, step_s=seconds, size=size, demand=True, processes=processes, gpus=gpus)
        self._steps = 0
        self.detector.handle(poll, now_s)
        if self._unhealthy:
            self._recovered(size, seconds)

    def step_failed(self) -> None:
        """Nothing is running any more, as far as the beacon's readers are concerned."""
        if self.beacon is not None:
            self.beacon.abandon()
        self._unhealthy = False

    def off(self) -> None:
        """Take the beacon back: nobody will write it any more, and its readers would see a step that never ends."""
        beacon, self.beacon = self.beacon, None
        if beacon is not None:
            beacon.withdraw()

    def _learning_sample(self, now_s: float) -> tuple[tuple[ProcessSignals, ...], tuple[GpuSignals, ...]]:
        """What the workers and their devices look like while they work, if they did nothing else since the last sample."""
        window_s = now_s - self._window_from_s
        processes = self.probe.sample(now_s)
        gpus = self.gpu.sample() if self.gpu is not None else ()
        cost_s = self.clock() - now_s
        busy = window_s > 0.0 and self._busy_s >= BUSY_SHARE * window_s
        self._window_from_s, self._busy_s = now_s, 0.0
        self._learn_after_s = now_s + max(LEARN_EVERY_S, cost_s / LEARN_COST_SHARE)
        return (processes, gpus) if busy else ((), ())

    # While a step is late.

    def look(self, wait: Wait) -> None:
        """One look at the workers. Raises StuckError when the wait is hopeless."""
        began_s = wait.now_s - wait.age_s
        if abs(began_s - self._step_began_s) > 0.01:
            self._step_began_s = began_s
            self.probe.begin(wait.now_s)
        processes = self._processes = self.probe.sample(wait.now_s)
        self._window_from_s, self._busy_s = wait.now_s, 0.0
        gpus = self._gpus = self.gpu.sample() if self.gpu is not None else ()
        poll = Poll(steps=0, demand=True, running=wait.size, processes=processes, gpus=gpus)
        commands = self.detector.handle(poll, wait.now_s)
        self._moves = (self._unhealthy or bool(commands)) and self._ask_about_spinners(wait.now_s)
        for command in commands:
            if isinstance(command, Changed) and VIEW[command.new] == "UNHEALTHY":
                self._suspected(wait, command)
            elif isinstance(command, Kill):
                self._dead(wait, command)
        if self._unhealthy and wait.age_s >= self._report_at_s:
            self._extended(wait)

    def _ask_about_spinners(self, now_s: float, anyway: bool = False) -> bool:
        """A second opinion about workers that burn processor time without moving; True when one of them gets somewhere.

        `anyway`: this is the last look before a verdict. Then one that is too starved to tell counts as well.
        """
        moves = False
        for one in self._processes:
            if self.detector.activities.get(one.pid) not in DOUBTFUL or not (anyway or self.opinion.may_ask(one.pid)):
                continue
            answer = self.opinion.ask(one.pid)
            if answer is not None:
                self.probe.told(one.pid, answer, now_s)
                moves = moves or answer
            elif anyway and self.opinion.undecided(one.pid):
                moves = True
        return moves

    def _suspected(self, wait: Wait, change: Changed) -> None:
        """HEALTHY became UNHEALTHY, or the reason changed: say so, with the evidence, and wait on."""
        self._unhealthy = True
        self._report_at_s = max(REPORT_FACTOR * wait.age_s, 10.0)
        finding = self._finding()
        self._say("UNHEALTHY", wait, f"{finding}; {self._evidence()}; waiting on")
        self._mark(wait, f"{finding}: {', '.join(change.who) or self._evidence()}")

    def _finding(self) -> str:
        """What to tell of the wait: a second opinion that was just given counts, though the detector hears it next time."""
        finding = self.detector.finding
        return (Finding.LATE_WORKING if self._moves and finding is Finding.LATE else finding).value

    def _extended(self, wait: Wait) -> None:
        """Still no reply, still a reason to wait: say so at doubling intervals."""
        self._report_at_s = REPORT_FACTOR * wait.age_s
        finding = self._finding()
        self._say("UNHEALTHY", wait, f"{finding}; {self._evidence()}; the wait is extended")
        self._mark(wait, f"{finding}: {self._evidence()}")

    def _mark(self, wait: Wait, reason: str) -> None:
        if self.beacon is not None:
            self.beacon.extended(max(self.detector.limit_s, self._report_at_s), self._stuck_rank(), reason)

    def _recovered(self, size: StepSize, seconds: float) -> None:
        self._unhealthy = False
        self._lines = 0
        LOG.info(
            "lifesign: HEALTHY again: the step of %d sequences and %d tokens finished after %.1f s",
            size.sequences,
            size.tokens,
            seconds,
        )
        if self.beacon is not None:
            self.beacon.set_state(BeaconState.STEPPING)

    def _dead(self, wait: Wait, kill: Kill) -> None:
        """Announce the death, stacks included, and raise; or start over where only vLLM's own limit may decide."""
        # A device that looks idle is no proof: what it does between kernels nobody sees.
        unproven = (*NO_PROOF, Finding.STUCK_TOO_LONG) if self.detector.life.backend == "gpu" else NO_PROOF
        too_early = kill.why in unproven and wait.age_s < self.floor_s
        if too_early or (kill.why is Finding.STUCK_TOO_LONG and self._ask_about_spinners(wait.now_s, anyway=True)):
            self._start_over(wait.now_s)
            return
        who = ", ".join(kill.who) or self._evidence()
        reason = f"{kill.why.value}: {who}"
        LOG.error("lifesign: DEAD: %s has not come back after %.1f s (%s)", _describe(wait), wait.age_s, reason)
        if self.beacon is not None:
            self.beacon.stuck_rank = self._stuck_rank()
            self.beacon.set_state(BeaconState.DEAD, reason)
        for line in self.stacks([one.pid for one in self._processes if one.pid > 0]):
            LOG.error("lifesign: %s", line)
        raise StuckError(f"lifesign: DEAD after {wait.age_s:.1f} s: {reason}")

    def _start_over(self, now_s: float) -> None:
        """Judge the same wait anew, with all that was learned about costs, processes and devices."""
        detector = self.detector
        learned = detector.process_channel, detector.gpu_channel
        detector.handle(Begin(**_life_of(detector)), now_s)
        detector.process_channel, detector.gpu_channel = learned

    def _say(self, word: str, wait: Wait, text: str) -> None:
        """One line of the log; a step may not fill it."""
        self._lines += 1
        if self._lines > LINES_PER_STEP:
            return
        cost = self.detector.cost
        LOG.warning(
            "lifesign: %s: %s has taken %.1f s so far (expected %.1f s, looked at after %.1f s): %s",
            word,
            _describe(wait),
            wait.age_s,
            cost.predicted_s(wait.size),
            cost.suspect_limit_s(wait.size),
            text,
        )

    def _evidence(self) -> str:
        """What each worker was doing in the last window, for a person."""
        activities = self.detector.activities
        parts = []
        for one in self._processes:
            activity = activities.get(one.pid)
            word = activity.value if activity is not None else "unseen"
            touched = self.opinion.last.get(one.pid)
            if touched is not None and activity in DOUBTFUL:
                word = "working" if touched.working else word
                word += f", touched {touched.bytes / 2**20:.1f} MiB of memory in {touched.cpu_s:.1f} processor seconds"
            parts.append(
                f"{one.role} {one.rank} (pid {one.pid}): {word}, state {one.state or '?'}, {one.demand:.2f} threads runnable"
            )
        if self.gpu is not None:
            parts = parts[:8] + [
                f"GPU {one.index}: {one.power_w:.0f} W, memory {one.memory_pct:.0f} %" for one in self._gpus
            ]
        return ", ".join(parts[:16]) or "nothing can be seen of the workers"

    def _stuck_rank(self) -> int:
        """The first rank that doesn't work, preferring one that is stopped or gone; -1 when all do."""
        activities = self.detector.activities
        for one in self._processes:
            if one.state in ("T", "t", "Z", "X"):
                return one.rank
        for one in self._processes:
            activity = activities.get(one.pid)
            if activity is not None and activity.value in ("spinning", "polling", "blocked"):
                return one.rank
        return -1


def _describe(wait: Wait) -> str:
    return f"{wait.method} of {wait.size.sequences} sequences and {wait.size.tokens} tokens (reply of rank {wait.rank})"


def _life_of(detector: Detector) -> dict[str, Any]:
    """The running life as arguments of `Begin`, with what was learned as the prior."""
    life = detector.life
    return {
        "backend": life.backend,
        "tier": life.tier,
        "serving": True,
        "restart_s": life.restart_s,
        "prior": detector.cost.costs(),
    }
