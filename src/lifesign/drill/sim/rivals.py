"""The detectors that others use, on the same traces: fixed limits, adaptive limits, counters.

Each is given its best case: it learns from true step completions, sees an exit at once, and its clock never stutters.
Sources: fixed 40 s and 300 s are vLLM's before and since 0.9.0; 60 s is the proposed health ping (a ping waits behind
the running step, so it is a step timeout); Jacobson/Karels as in RFC 6298; phi accrual after Hayashibara 2004 with
Akka's normal model (pause 3 s) at threshold 8; max-seen x 5 as in NVRx; the token counter is the public gonka recipe.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from lifesign.drill.sim.traces import Engine, Piece, Stretch
from lifesign.guard.detector.policy import LIMIT_CAP_S, simple_limit_s

PHI_QUANTILE = 5.61
"""Standard deviations at phi = 8 under the normal model."""
LEARN_AT_MOST = 200
EXIT_SEEN_S = 1.0


class Rival(ABC):
    """A detector with one deadline, counted from the last progress that it can see."""

    needs_call = False
    """Only looks while a call to the workers is out: a scheduler that schedules nothing is invisible to it."""
    shortest_s = 4.0
    """No limit of any rival is shorter: such a stretch needs no closer look."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.quiet_until_s = 0.0

    def see(self, stretch: Stretch) -> list[float]:
        """When it kills during this stretch. After a kill the engine is away until it is restarted."""
        if stretch.end_s - stretch.start_s < self.shortest_s:
            self.learn(stretch)
            return []
        kills = exits(stretch) if stretch.pieces[-1].fault == "exit" else []
        if stretch.busy and not kills and not self.passes(stretch):
            start_s = max(self.since_s(stretch), self.quiet_until_s)
            while start_s < stretch.end_s:
                kill_s = self.kill_s(stretch, start_s)
                if kill_s is None or kill_s > stretch.end_s:
                    break
                kills.append(kill_s)
                # It is started again once the disturbance that it died in is over.
                piece = piece_at(stretch, kill_s)
                ends_s = piece.end_s if piece.cause in ("pause", "compile", "opaque") else kill_s
                self.quiet_until_s = max(kill_s, ends_s) + self.engine.kind.restart_s
                start_s = self.quiet_until_s
        self.learn(stretch)
        return kills

    def since_s(self, stretch: Stretch) -> float:
        """When the progress was that it last saw."""
        return stretch.start_s

    def passes(self, stretch: Stretch) -> bool:
        """Whether there is nothing to see for it: a run of short steps, or a stall with no call to the workers out."""
        if stretch.steps > 1:
            return True
        return self.needs_call and any(one.fault == "zero-token" for one in stretch.pieces)

    def kill_s(self, stretch: Stretch, start_s: float) -> float | None:
        """When it kills if nothing moves from `start_s` on; it may be after the end of the stretch."""
        return start_s + self.limit_s(stretch)

    @abstractmethod
    def limit_s(self, stretch: Stretch) -> float:
        """Its deadline now."""

    def learn(self, stretch: Stretch) -> None:  # noqa: B027 - most have nothing to learn
        """Take note of how the stretch ended."""


class Fixed(Rival):
    """A constant limit on the call to the workers."""

    needs_call = True

    def __init__(self, engine: Engine, constant_s: float) -> None:
        super().__init__(engine)
        self.constant_s = constant_s

    def limit_s(self, stretch: Stretch) -> float:
        return self.constant_s


class SimplePolicy(Rival):
    """The documented simple policy: a limit that knows the backend and the batch, and kills when it expires."""

    needs_call = True

    def limit_s(self, stretch: Stretch) -> float:
        return simple_limit_s("gpu" if self.engine.kind.gpu else "cpu", stretch.sequences)


class SimplePolicyExtended(SimplePolicy):
    """The same, extended by another limit whenever it expires and the worker burns more than 5 % of a CPU; cap 1800 s."""

    def kill_s(self, stretch: Stretch, start_s: float) -> float | None:
        limit_s = self.limit_s(stretch)
        waited_s = limit_s
        while start_s + waited_s <= stretch.end_s and waited_s < LIMIT_CAP_S:
            if not burns_cpu(self.engine, piece_at(stretch, start_s + waited_s)):
                break
            waited_s = min(waited_s + limit_s, LIMIT_CAP_S)
        return start_s + waited_s


def exits(stretch: Stretch) -> list[float]:
    """When an exit is noticed: within a second, by everybody."""
    start_s = stretch.start_s
    for piece in stretch.pieces:
        if piece.fault == "exit":
            return [start_s + EXIT_SEEN_S]
        start_s = piece.end_s
    return []


def piece_at(stretch: Stretch, at_s: float) -> Piece:
    """The piece of the stretch in which `at_s` lies."""
    return next((one for one in stretch.pieces if one.end_s >= at_s), stretch.pieces[-1])


def burns_cpu(engine: Engine, piece: Piece) -> bool:
    """What "CPU above 5 %" reads, as the policy means it: the worker process, over a short while."""
    gpu = engine.kind.gpu
    if piece.paused or piece.fault in ("stop", "blocked", "exit"):
        return False
    if piece.fault in ("livelock", "zero-token") or piece.compiling:
        return True
    if piece.fault == "partition":
        return engine.spin_sync if gpu else True
    if piece.opaque and piece.opaque_stuck:
        return engine.spin_sync
    if piece.starved < 0.05:
        return False
    return engine.spin_sync if gpu else True


class JacobsonKarels(Rival):
    """Smoothed mean plus four deviations, floor 10 s."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.mean_s = -1.0
        self.deviation_s = 0.0

    def limit_s(self, stretch: Stretch) -> float:
        return 300.0 if self.mean_s < 0 else max(10.0, self.mean_s + 4.0 * self.deviation_s)

    def learn(self, stretch: Stretch) -> None:
        if not stretch.steps:
            return
        for _ in range(1 if stretch.steps == 1 else min(stretch.steps, 24)):
            if self.mean_s < 0:
                self.mean_s, self.deviation_s = stretch.step_s, stretch.step_s / 2
                continue
            error_s = stretch.step_s - self.mean_s
            self.deviation_s = 0.75 * self.deviation_s + 0.25 * abs(error_s)
            self.mean_s += 0.125 * error_s


class PhiAccrual(Rival):
    """Normal model of the time between marks of progress as an observer sees them once a second; window about 200."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.mean_s, self.square = 1.0, 1.1
        self.count = 0

    def limit_s(self, stretch: Stretch) -> float:
        if self.count < 10:
            return 300.0
        deviation_s = max(0.1, math.sqrt(max(0.0, self.square - self.mean_s**2)))
        return self.mean_s + 3.0 + PHI_QUANTILE * deviation_s

    def learn(self, stretch: Stretch) -> None:
        if not stretch.steps:
            return
        seconds = stretch.end_s - stretch.start_s
        marks = min(LEARN_AT_MOST, max(1, int(min(stretch.steps, seconds))))
        gap_s = max(1.0, seconds / marks) if marks == 1 else max(1.0, stretch.step_s)
        for _ in range(marks if self.count < LEARN_AT_MOST else 1):
            self.count += 1
            gain = max(1.0 / LEARN_AT_MOST, 1.0 / (self.count + 1))
            if self.count > LEARN_AT_MOST and marks > 1:
                # Many equal intervals at once: the same sum, in closed form.
                gain = 1.0 - (1.0 - gain) ** marks
            self.mean_s += gain * (gap_s - self.mean_s)
            self.square += gain * (gap_s * gap_s - self.square)


class MaxSeen(Rival):
    """The largest interval seen so far, times five; an hour until 20 were seen."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.largest_s = 0.0
        self.count = 0

    def limit_s(self, stretch: Stretch) -> float:
        return 3600.0 if self.count < 20 else max(10.0, 5.0 * self.largest_s)

    def learn(self, stretch: Stretch) -> None:
        if stretch.steps:
            self.count += stretch.steps
            self.largest_s = max(self.largest_s, max(1.0, stretch.step_s))


class TokenCounter(Rival):
    """The token counters of the metrics page stand still for 120 s while there is demand."""

    shortest_s = 0.0

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.moved_s = 0.0

    def limit_s(self, stretch: Stretch) -> float:
        return 120.0

    def since_s(self, stretch: Stretch) -> float:
        return self.moved_s

    def passes(self, stretch: Stretch) -> bool:
        return stretch.steps > 1 and not stretch.pieces[-1].scrape_bad

    def learn(self, stretch: Stretch) -> None:
        # Idleness isn't demand; a silent step or a late page hides the progress.
        hidden = stretch.silent or stretch.pieces[-1].scrape_bad
        if not stretch.busy or (stretch.steps and not hidden):
            self.moved_s = stretch.end_s


def rivals(engine: Engine) -> dict[str, Rival]:
    """One of each, by the name under which the table shows it."""
    return {
        "fixed 40 s": Fixed(engine, 40.0),
        "fixed 300 s": Fixed(engine, 300.0),
        "health ping 60 s": Fixed(engine, 60.0),
        "simple policy": SimplePolicy(engine),
        "simple policy + CPU>5% extension": SimplePolicyExtended(engine),
        "Jacobson/Karels": JacobsonKarels(engine),
        "phi accrual": PhiAccrual(engine),
        "max seen x 5": MaxSeen(engine),
        "token counter 120 s": TokenCounter(engine),
    }
