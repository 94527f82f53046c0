"""Puts all eyes together: one look at a running engine becomes one `Poll` for the detector.

Best source first. Progress and the size of the running step come from the beacon, else from the metrics page; demand from
either, else an engine without both is judged by its processes alone. The observer decides nothing, and touches nothing:
no signal, no file of the engine, no request but the canary, and that only where it was asked for. One exception: of a
process that seems to spin the kernel's marks of referenced pages are reset (see `touched`), which takes it some milliseconds.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from lifesign.guard.detector.beacon import BeaconReading, BeaconState, read_beacon
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin, CanaryAnswered, Event, Exited, Note, Poll
from lifesign.guard.detector.evidence import Activity, GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import Backend, StepSize
from lifesign.guard.probes.gpu import GpuProbe
from lifesign.guard.probes.metrics import MOVING, Endpoint, MetricsProbe, MetricsReading, canary
from lifesign.guard.probes.process import ProcessProbe
from lifesign.guard.probes.stacks import StackProbe
from lifesign.guard.probes.touched import TouchProbe
from lifesign.guard.probes.tree import EngineTree, refresh, uses_gpu

CALM_SAMPLE_S = 5.0
REFRESH_S = 10.0
PAGE_OLD_S = 3.5
CLOSER_AFTER_S = 2.0
REFUSED_TOLD = 3
"""A server that was there and refuses so often in a row is gone."""
COMPILER_NOTE_S = 600.0
DOUBTFUL = (Activity.SPINNING, Activity.UNCLEAR)


@dataclass(slots=True)
class Look:
    """What one look saw, beside the events for the detector."""

    events: list[Event] = field(default_factory=list)
    beacon: BeaconReading | None = None
    metrics: MetricsReading | None = None
    processes: tuple[ProcessSignals, ...] = ()
    gpus: tuple[GpuSignals, ...] = ()
    ended: str = ""
    """Who is gone, if the engine's end was seen."""


class Observer:
    """Looks at one engine. Owned by one thread; `close` ends what it started."""

    def __init__(
        self,
        tree: EngineTree | None,
        endpoint: Endpoint | None = None,
        *,
        gpu: GpuProbe | None = None,
        stacks: StackProbe | None = None,
        touches: TouchProbe | None = None,
    ) -> None:
        self.tree = tree
        self.endpoint = endpoint
        self.metrics = MetricsProbe(endpoint) if endpoint is not None else None
        self.process = ProcessProbe()
        self.stacks = stacks if stacks is not None else StackProbe()
        self.touches = touches if touches is not None else TouchProbe()
        self.gpu = gpu
        self._choose_devices()
        self.beacon: BeaconReading | None = None
        self._page: MetricsReading | None = None
        self._steps_done = -1
        self._sampled_s = float("-inf")
        self._refreshed_s = float("-inf")
        self._last_s = float("-inf")
        self._moving = False
        self._compiling = False
        self._processes: tuple[ProcessSignals, ...] = ()
        self.full: tuple[ProcessSignals, ...] = ()
        """The last look at the processes that had counters."""
        self.can_ask = True
        """Whether the server takes our one-token request; one that refuses it is no hang."""
        self.asking = False
        """The owner waits for the answer to a request of its own: there is demand, and a reason to look. The metrics page
        can't say so: it freezes with the engine, often at "0 running"."""
        self._canary: threading.Thread | None = None
        self._canary_s: float | None = None

    def attach(self, endpoint: Endpoint) -> None:
        """A metrics page was found after all (the engine had not come up): fetch it from now on."""
        if self.metrics is None:
            self.endpoint = endpoint
            self.metrics = MetricsProbe(endpoint)
            self.metrics.start()

    @property
    def sees_progress(self) -> bool:
        """Whether steps or counters can be seen; without them only stops and exits are noticed, and demand is unknown."""
        page = self.metrics.last if self.metrics is not None else None
        return self.beacon is not None or (page is not None and any(name in page.values for name in MOVING))

    def start(self) -> None:
        """Begin to fetch the metrics page in the background."""
        if self.metrics is not None:
            self.metrics.start()

    def close(self) -> None:
        """End what was started."""
        if self.metrics is not None:
            self.metrics.close()
        self.stacks.close()

    def begin(self, restart_s: float = 60.0) -> Begin:
        """The event that the detector is told first."""
        self._read_beacon()
        beacon = self.beacon
        backend: Backend = "gpu" if self.tree is not None and uses_gpu(self.tree) else "cpu"
        if beacon is not None:
            backend = "cpu" if beacon.backend == "cpu" else "gpu"
        starting = beacon is not None and beacon.state is BeaconState.STARTING and beacon.steps_done == 0
        return Begin(backend, "beacon" if beacon is not None else "outside", not starting, restart_s)

    def look(self, now_s: float, detector: Detector) -> Look:
        """One look. `detector` is only read: how old the stall is and what was thought of it last."""
        look = Look()
        if self.tree is not None and now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            refresh(self.tree)
            self._choose_devices()
        self._read_beacon()
        steps, step_s, size = self._progress()
        demand = self._demand()
        if steps == 0 and self._moving:
            # The step that runs now began after the last look that saw progress.
            self.process.begin(self._last_s)
            self.touches.forget()
        self._moving = bool(steps)
        self._look_at_processes(now_s, calm=bool(steps) or not demand, detector=detector)
        running = None
        if self.beacon is not None and self.beacon.stepping:
            running = StepSize(self.beacon.step_sequences, self.beacon.step_tokens)
        look.gpus = self.gpu.sample() if self.gpu is not None and self.gpu.available else ()
        look.beacon, look.metrics, look.processes = self.beacon, self._page, self._processes
        self._known_phases(look)
        self._ends(look)
        if self._canary_s is not None:
            look.events.append(CanaryAnswered(self._canary_s))
            self._canary_s = None
        look.events.append(Poll(steps, demand, step_s, size, running, self._processes, look.gpus))
        self._last_s = now_s
        return look

    def _choose_devices(self) -> None:
        """Again at every refresh until it succeeds: an engine that starts has no work on a device yet."""
        if self.gpu is not None and self.tree is not None and self.gpu.available and not self.gpu.chosen:
            self.gpu.choose({one.pid for one in self.tree.members})

    def _read_beacon(self) -> None:
        tree = self.tree
        if tree is None or tree.beacon is None:
            return
        reading = read_beacon(tree.beacon)
        if reading is not None:
            self.beacon = reading
        elif self.beacon is not None and self.beacon.state is not BeaconState.CLOSED and not tree.beacon.exists():
            # The plugin took it back while the engine works on. The step that it showed last would never end.
            self.beacon = tree.beacon = None
            self._steps_done = -1

    def _progress(self) -> tuple[int | None, float, StepSize | None]:
        """(steps since the last look or None if that can't be seen, seconds and size of the last one)."""
        beacon = self.beacon
        if beacon is not None:
            old, self._steps_done = self._steps_done, beacon.steps_done
            self._turn_page()
            if old < 0 or beacon.steps_done < old:
                return 0, 0.0, None
            done = beacon.steps_done - old
            if not done:
                return 0, 0.0, None
            return done, beacon.last_step_s, StepSize(beacon.last_sequences, beacon.last_tokens)
        older, newer = self._page, self._turn_page()
        if self.metrics is None:
            return 0, 0.0, None
        if newer is None or newer.at_s < time.monotonic() - PAGE_OLD_S:
            return None, 0.0, None
        if older is None or newer is older:
            return 0, 0.0, None
        return newer.moved_since(older), 0.0, None

    def _turn_page(self) -> MetricsReading | None:
        if self.metrics is not None and self.metrics.last is not None:
            self._page = self.metrics.last
        return self._page

    def _demand(self) -> bool:
        beacon, page = self.beacon, self._page
        if self.asking:
            return True
        if beacon is not None and (beacon.stepping or beacon.requests_running + beacon.requests_waiting > 0):
            return True
        return page is not None and page.demand

    def _look_at_processes(self, now_s: float, calm: bool, detector: Detector) -> None:
        if self.tree is None:
            return
        targets = self.tree.targets
        found = self.stacks.poll()
        if found is not None:
            self.process.saw_stacks(*found, now_s)
        told = self.touches.poll()
        if told is not None:
            self.process.told(told[0], told[1], now_s + told[2])
        # While all goes well a full look every few seconds is enough to learn what that looks like.
        if calm and self.full and now_s - self._sampled_s < CALM_SAMPLE_S:
            self._processes = self.process.states(targets)
            return
        self._processes = self.process.sample(targets, now_s)
        self._sampled_s = now_s
        if any(one.window_s > 0.0 for one in self._processes):
            self.full = self._processes
        if not calm and detector.clock.wall_s >= CLOSER_AFTER_S:
            self._look_closer(detector)

    def _look_closer(self, detector: Detector) -> None:
        """At one process whose counters can't tell: the one that was looked at least often."""
        doubtful = [
            one
            for one in self._processes
            if one.role not in ("compiler", "server")
            and (detector.activities.get(one.pid) in DOUBTFUL or one.stack_looks > 0)
        ]
        if not doubtful:
            return
        # Beside a GPU the host proves nothing, whatever it touches.
        if detector.life.backend == "cpu":
            self.touches.request(min(doubtful, key=lambda one: self.touches.opinion.next_s(one.pid)).pid)
        if self.stacks.available:
            self.stacks.request(min(doubtful, key=lambda one: one.stack_looks).pid)

    def _known_phases(self, look: Look) -> None:
        """Compilers at work under the engine: a known phase."""
        compiling = any(one.role == "compiler" and one.state not in ("Z", "X", "") for one in look.processes)
        if compiling and not self._compiling:
            look.events.append(Note("compile", COMPILER_NOTE_S))
        self._compiling = compiling

    def _ends(self, look: Look) -> None:
        """Whether a process that the engine can't live without is gone; from afar, whether nobody listens any more."""
        if self.tree is None:
            if self.metrics is not None and self.metrics.refused >= REFUSED_TOLD:
                look.ended = "server"
                look.events.append(Exited("server"))
            return
        gone = {one.pid for one in look.processes if one.state in ("X", "Z") and one.role in ("engine", "worker")}
        if gone:
            first = next(one for one in self.tree.members if one.pid in gone)
            look.ended = first.name
            closed = self.beacon is not None and self.beacon.state is BeaconState.CLOSED
            look.events.append(Exited(first.name, first.pid, 0 if closed else None))

    def send_canary(self, timeout_s: float) -> None:
        """Ask the server for one token, in the background; the answer becomes an event of a later look."""
        endpoint = self.endpoint
        if endpoint is None or (self._canary is not None and self._canary.is_alive()):
            return

        def ask() -> None:
            possible, seconds = canary(endpoint, max(60.0, 4.0 * timeout_s))
            if not possible:
                self.can_ask, seconds = False, 0.0
            self._canary_s = seconds

        self._canary = threading.Thread(target=ask, name="canary", daemon=True)
        self._canary.start()
