"""Looks at one life once a second, in a thread of its own, and hands what it saw to the session's thread.

The looking itself is that of `lifesign watch` (`probes.observer`). Added here is what only an owner needs: whether the
engine has come up, whether it has done real work, and whether the server process itself is stopped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

from lifesign.guard import procs
from lifesign.guard.context import Context
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import CanaryAnswered, Event, Exited, Poll
from lifesign.guard.detector.evidence import ProcessSignals
from lifesign.guard.evidence.devices import engine_gpus
from lifesign.guard.evidence.gpu_faults import EngineGpus
from lifesign.guard.life import Life
from lifesign.guard.pages import EnginePages
from lifesign.guard.probes.gpu import GpuProbe
from lifesign.guard.probes.observer import Observer
from lifesign.guard.probes.tree import EngineTree, refresh
from lifesign.guard.sockets import listeners

LOOK_S = 1.0
WORK_S = 10.0
GPUS_S = 30.0
KEPT_LOOKS = 240


class Sensor:
    """`events` is what the detector is to be told, in order. `detector` is only read, for what was thought last."""

    def __init__(self, life: Life, pages: EnginePages | None, context: Context, detector: Detector) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT_LOOKS)
        self.came_up = False
        self.finished = 0.0
        self.may_ask = True
        self.gpus = EngineGpus()
        """The devices of this engine, as far as they are known: a broken one can be asked for nothing."""
        self._gpus_at_s = 0.0
        self._asking_gpus: threading.Thread | None = None
        self._life, self._pages, self._context, self._detector = life, pages, context, detector
        self._tree = EngineTree(life.top.pid)
        endpoint = pages.endpoint if pages is not None else None
        self._observer = Observer(self._tree, endpoint, gpu=GpuProbe())
        self._serving = False
        self._work_at_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lifesign-sensor", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def serve(self) -> None:
        """The engine serves: from now on its metrics page counts."""
        self._serving = True
        self._observer.start()

    def stop(self) -> None:
        """Stop; waits a moment for a look that is under way."""
        self._stop.set()
        self._thread.join(2.0)
        with suppress(Exception):
            self._observer.close()

    def ask(self, timeout_s: float) -> None:
        """Send the one-token request, in a thread: it may hang for as long as the engine does."""
        pages = self._pages
        if pages is None or not self.may_ask or self._observer.asking:
            self.events.append(CanaryAnswered(0.0))
            return

        def work() -> None:
            try:
                possible, seconds = pages.canary(max(60.0, 4 * timeout_s))
            finally:
                self._observer.asking = False
            if not possible:
                self.may_ask = False
                self._context.note("this engine can't be asked for one token: an idle hang is seen in /proc only")
            if seconds is not None or not possible:
                self.events.append(CanaryAnswered(seconds or 0.0))

        self._observer.asking = True
        threading.Thread(target=work, name="lifesign-canary", daemon=True).start()

    def _work(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            try:
                self._look()
            except Exception as error:  # a broken probe is no reason to be blind for ever, nor to die
                self._context.note(f"sensor: {type(error).__name__}: {error}")
            next_s = max(next_s + LOOK_S, time.monotonic())
            self._stop.wait(max(0.0, next_s - time.monotonic()))

    def _look(self) -> None:
        now_s = self._context.clock()
        if not self._serving:
            refresh(self._tree)
            self._look_for_health()
        self._ask_for_gpus(now_s)
        look = self._observer.look(now_s, self._detector)
        for event in look.events:
            if isinstance(event, Exited):
                continue  # the session learns of ends at once, and with their status
            if isinstance(event, Poll):
                event = self._complete(event)
            self.events.append(event)
        if self._serving and self._pages is not None and now_s >= self._work_at_s:
            self._work_at_s = now_s + WORK_S
            self.finished = self._pages.finished()

    def _ask_for_gpus(self, now_s: float) -> None:
        """In a thread: the tool may hang. Again until the engine serves and its processes are seen on devices."""
        busy = self._asking_gpus is not None and self._asking_gpus.is_alive()
        if self.gpus.complete or busy or now_s < self._gpus_at_s:
            return
        self._gpus_at_s = now_s + GPUS_S
        pids = {member.id.pid for member in self._life.alive()}
        serving = self._serving

        def work() -> None:
            found = engine_gpus(self._context.helpers, pids)
            if found.visible:
                self.gpus = replace(found, complete=serving and bool(found.own))

        self._asking_gpus = threading.Thread(target=work, name="lifesign-gpus", daemon=True)
        self._asking_gpus.start()

    def _complete(self, poll: Poll) -> Poll:
        """A server is no evidence of work, but one that is stopped is as good as gone. The dead are the session's."""
        kept = tuple(one for one in poll.processes if one.state not in ("X", "Z"))
        stat = procs.read_stat(self._life.top.pid)
        if stat is not None and stat.id == self._life.top and stat.state in "Tt":
            kept = (*kept, ProcessSignals(self._life.top.pid, "engine", -1, stat.state))
        if not self._serving:
            return Poll(steps=0, processes=kept, gpus=poll.gpus)
        return replace(poll, processes=kept)

    def _look_for_health(self) -> None:
        """Engines whose log says nothing: up once /health answers *and* the port is one of ours."""
        if self._pages is None or self.came_up:
            return
        pids = [member.id.pid for member in self._life.alive()]
        if listeners(self._pages.endpoint.port, pids) and self._pages.healthy():
            self.came_up = True
