"""How the production detector looks at a simulated engine: once a second, through the same events as in production.

What a probe would read is made up here from what really happens: counters of a process that computes, spins, polls or
is blocked; power and memory activity of a device; wrong samples, lying and missing sensors. While an engine finishes
step after step, only every twentieth look is played: each of them would see progress and start all clocks anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lifesign.drill.sim.traces import Engine, Piece, Stretch
from lifesign.drill.sim.world import MAX_SEQUENCES
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Begin, Changed, Command, Degraded, Event, Exited, Kill, Note, Poll, Tier
from lifesign.guard.detector.evidence import GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import Prior, StepSize
from lifesign.guard.detector.states import State

LOOK_S = 1.0
CALM_LOOK_S = 20.0
IDLE_LOOK_S = 15.0
IDLE_CLOSE_LOOKS = 40
WINDOW_S = 4.0
COMPILER_SEEN = 0.9


@dataclass(slots=True)
class Seen:
    """What came of it: kills (time, cause), suspicions (time, cause), the first DEGRADED."""

    kills: list[tuple[float, str]] = field(default_factory=list)
    suspicions: list[tuple[float, str]] = field(default_factory=list)
    degraded_s: list[float] = field(default_factory=list)


class Signals:
    """The possible readings of one engine, made once."""

    def __init__(self, engine: Engine) -> None:
        threads = engine.kind.threads
        self.threads = threads
        run_s = WINDOW_S * threads * 0.8
        self.working = (
            ProcessSignals(1, "worker", 0, "R", WINDOW_S, run_s, run_s / 8, run_s, int(9000 * run_s), int(2 * run_s)),
        )
        self.spinning = (ProcessSignals(1, "worker", 0, "R", WINDOW_S, WINDOW_S * 0.95, 0.05, WINDOW_S * 0.95),)
        self.polling = (ProcessSignals(1, "worker", 0, "S", WINDOW_S, 0.1, 0.02, 0.1, 0, 3000),)
        self.blocked = (ProcessSignals(1, "worker", 0, "S", WINDOW_S),)
        self.stopped = (ProcessSignals(1, "worker", 0, "T", WINDOW_S),)
        self.host = self.spinning if engine.spin_sync else self.blocked
        compiler = ProcessSignals(2, "compiler", -1, "R", WINDOW_S, WINDOW_S * 3, 0.5, WINDOW_S * 3, 200000, 40)
        self.compiling = (*self.host, compiler)
        self.gpu_working = (GpuSignals(0, 320.0, 45.0),)
        self.gpu_stuck = (GpuSignals(0, 130.0, 0.0),)
        self.gpu_idle = (GpuSignals(0, 90.0, 0.0),)

    def starved(self, share: float) -> tuple[ProcessSignals, ...]:
        """A worker that gets only `share` of the processor time it wants."""
        wanted_s = WINDOW_S * self.threads * 0.9
        run_s = wanted_s * share
        return (
            ProcessSignals(
                1, "worker", 0, "R", WINDOW_S, run_s, wanted_s - run_s, run_s, int(9000 * run_s), int(2 * run_s)
            ),
        )


class Eyes:
    """The detector of this product, looking at one engine of the simulation.

    tier: `beacon` sees the running step and its size; `outside` sees counters alone. gpu: whether device counters can
    be read. hook: called with every event that the detector is told (for recording).
    """

    def __init__(
        self,
        engine: Engine,
        tier: Tier = "beacon",
        gpu: bool = True,
        patience: float = 0.3,
        hook: Callable[[Event, float], None] | None = None,
    ) -> None:
        self.engine = engine
        self.tier = tier
        self.gpu = gpu
        self.hook = hook
        # Not the engine's own numbers: how often somebody looks must not change what happens.
        self._rng = random.Random(f"{engine.name}/eyes")
        self.seen = Seen()
        self.signals = Signals(engine)
        self.detector = Detector(Settings(patience=patience))
        kind = engine.kind
        error = engine.prior_error
        prior = Prior(kind.base_s * error, kind.per_token_s * error, kind.per_sequence_s * error)
        self._begin = Begin(
            backend="gpu" if kind.gpu else "cpu",
            tier=tier,
            serving=True,
            restart_s=kind.restart_s,
            max_size=StepSize(MAX_SEQUENCES, MAX_SEQUENCES + kind.max_tokens),
            prior=prior,
        )
        self._began = False
        self._quiet_until_s = 0.0
        self._look_s = LOOK_S
        self._steps = 0
        self._step_s = 0.0
        self._size: StepSize | None = None
        self._idle_looks = 0
        self._noted = False

    def see(self, stretch: Stretch) -> None:
        """Look at everything that happens in the stretch."""
        if self._quiet_until_s == math.inf:
            return
        if not self._began:
            self._began = True
            self._tell(self._begin, 0.0, "step")
        if not stretch.busy:
            self._idle(stretch)
            return
        self._idle_looks = 0
        if self._look_s > stretch.start_s + LOOK_S:
            # Looks that were left out while nothing happened: the real ones come every second.
            self._look_s -= math.floor(self._look_s - stretch.start_s)
        if stretch.steps > 1:
            self._run(stretch)
            return
        running = StepSize(stretch.sequences, stretch.sequences + stretch.prefill)
        for piece in stretch.pieces:
            self._look_through(piece, running)
        if stretch.steps:
            self._finish(1, stretch.step_s, running)
            self._noted = False

    def _finish(self, steps: int, step_s: float, size: StepSize) -> None:
        self._steps += steps
        self._step_s, self._size = step_s, size

    def _idle(self, stretch: Stretch) -> None:
        piece = stretch.pieces[0]
        if self._look_s < stretch.start_s:
            self._look_s = stretch.start_s
        while self._look_s < stretch.end_s:
            now_s = self._look_s
            self._idle_looks += 1
            self._look_s += LOOK_S if self._idle_looks < IDLE_CLOSE_LOOKS else IDLE_LOOK_S
            if not piece.paused and now_s >= self._quiet_until_s:
                self._look(piece, now_s, None)

    def _run(self, stretch: Stretch) -> None:
        piece = stretch.pieces[0]
        size = StepSize(stretch.sequences, stretch.sequences + stretch.prefill)
        while self._look_s < stretch.end_s:
            now_s = self._look_s
            if now_s >= stretch.start_s + stretch.step_s:
                self._finish(max(1, int(LOOK_S / stretch.step_s)), stretch.step_s, size)
                self._look_s = max(now_s + LOOK_S, min(now_s + CALM_LOOK_S, stretch.end_s - 2.0 * LOOK_S))
            else:
                self._look_s = now_s + LOOK_S
            if now_s >= self._quiet_until_s:
                self._look(piece, now_s, size)
        if stretch.end_s - stretch.step_s > self._look_s - LOOK_S:
            self._finish(1, stretch.step_s, size)

    def _look_through(self, piece: Piece, running: StepSize) -> None:
        if piece.paused:
            # The observer is suspended with its host.
            while self._look_s < piece.end_s:
                self._look_s += LOOK_S
            return
        if piece.logged and not self._noted and self._look_s >= self._quiet_until_s:
            self._noted = True
            self._tell(Note("compile", 600.0), self._look_s, piece.cause)
        while self._look_s < piece.end_s:
            now_s = self._look_s
            self._look_s += LOOK_S
            if now_s >= self._quiet_until_s:
                self._look(piece, now_s, running)

    def _look(self, piece: Piece, now_s: float, running: StepSize | None) -> None:
        if piece.fault == "exit":
            self._tell(Exited("worker 0", 1, None, 9), now_s, piece.cause)
            return
        blind = piece.scrape_bad and self.tier == "outside"
        zero_token = piece.fault == "zero-token"
        poll = Poll(
            steps=None if blind else self._steps,
            demand=running is not None or self._steps > 0,
            step_s=self._step_s,
            size=self._size,
            running=running if self.tier == "beacon" and not zero_token else None,
        )
        if not blind:
            self._steps, self._size, self._step_s = 0, None, 0.0
        self._read(poll, piece, running is not None)
        self._tell(poll, now_s, piece.cause)

    def _read(self, poll: Poll, piece: Piece, busy: bool) -> None:
        """Fill in what the sensors show."""
        engine, signals, fault = self.engine, self.signals, piece.fault
        if engine.sensor_none:
            if fault == "stop":
                poll.processes = signals.stopped
            return
        rng = self._rng
        stuck = bool(fault) and fault != "gradual"
        works = busy and not stuck and not (piece.opaque and piece.opaque_stuck)
        if engine.sensor_lies:
            works = True
        elif rng.random() < engine.world.evidence_wrong:
            works = not works
        if fault == "stop":
            poll.processes = signals.stopped
        elif engine.kind.gpu:
            compiler = piece.compiling and rng.random() < COMPILER_SEEN
            poll.processes = signals.compiling if compiler else signals.host
        elif works:
            starved = piece.starved < 1.0 and busy
            poll.processes = signals.starved(piece.starved) if starved else signals.working
        elif fault == "livelock" or fault == "partition":
            poll.processes = signals.spinning
        elif fault == "zero-token":
            poll.processes = signals.polling
        else:
            poll.processes = signals.blocked if busy or not engine.sensor_lies else signals.working
        if engine.kind.gpu and self.gpu:
            # A compile leaves the device as still as a hang does.
            still = piece.compiling and not engine.sensor_lies
            quiet = signals.gpu_stuck if busy else signals.gpu_idle
            poll.gpus = signals.gpu_working if works and not still else quiet

    def _tell(self, event: Event, now_s: float, cause: str) -> None:
        if self.hook is not None:
            self.hook(event, now_s)
        for command in self.detector.handle(event, now_s):
            self._note_command(command, now_s, cause)

    def _note_command(self, command: Command, now_s: float, cause: str) -> None:
        if isinstance(command, Changed):
            if command.new in (State.SUSPECT, State.SLOW, State.STOPPED, State.BLIND):
                self.seen.suspicions.append((now_s, cause))
        elif isinstance(command, Degraded) and command.on:
            self.seen.degraded_s.append(now_s)
        elif isinstance(command, Kill):
            self.seen.kills.append((now_s, cause))
            engine = self.engine
            if now_s >= engine.fault_s and engine.fault != "gradual":
                self._quiet_until_s = math.inf
                return
            self._quiet_until_s = max(now_s, engine.disturbed_until_s()) + engine.kind.restart_s
            self._steps, self._size = 0, None
            self._tell(self._again(), now_s, cause)

    def _again(self) -> Begin:
        """The same engine after a restart: the detector keeps what it learned."""
        return replace(self._begin, prior=None)
