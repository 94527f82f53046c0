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
from lifesign.guard.probes.metrics import parse_metrics
from lifesign.guard.probes.observer import Observer
from lifesign.guard.probes.tree import EngineTree, ports_of, refresh
from lifesign.guard.settings import serves_vllm
from lifesign.guard.sockets import listeners
from lifesign.text import T

LOOK_S = 1.0
WORK_S = 10.0
GPUS_S = 30.0
PAGE_PATIENCE_S = 10.0
PORTS_ASKED = 8
KEPT_LOOKS = 240


class Sensor:
    """`events` is what the detector is to be told, in order. `detector` is only read, for what was thought last."""

    def __init__(self, life: Life, api_key: str | None, context: Context, detector: Detector) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT_LOOKS)
        self.came_up = False
        self.finished = 0.0
        self.may_ask = True
        self.gpus = EngineGpus()
        """The devices of this engine, as far as they are known: a broken one can be asked for nothing."""
        self._gpus_at_s = 0.0
        self._asking_gpus: threading.Thread | None = None
        self.page = ""
        """Where the engine's pages are, once they were seen to be its own; what is asked there counts from then on."""
        self._life, self._context, self._detector = life, context, detector
        self._key = api_key
        self._pages = EnginePages.at(context.settings.engine_url, api_key)
        self._page_at_s = self._page_since_s = float("-inf")
        self._tree = EngineTree(life.top.pid)
        self._observer = Observer(self._tree, gpu=GpuProbe())
        self._serving = False
        self._said_blind = False
        self._found: EnginePages | None = None
        self._seeking: threading.Thread | None = None
        self._expected = self._pages is not None or serves_vllm(context.settings.command)
        self._work_at_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lifesign-sensor", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def serve(self) -> None:
        """The engine serves: from now on its metrics page counts, once it is known to be its own."""
        self._serving = True

    def stop(self) -> None:
        """Stop; waits a moment for a look that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)
        with suppress(Exception):
            self._observer.close()

    def ask(self, timeout_s: float) -> None:
        """Send the one-token request, in a thread: it may hang for as long as the engine does."""
        pages = self._pages
        if pages is None or not self.page or not self.may_ask or self._observer.asking:
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
        elif not self.page and now_s >= self._page_at_s:
            self._find_page(now_s)
        self._ask_for_gpus(now_s)
        look = self._observer.look(now_s, self._detector)
        for event in look.events:
            if isinstance(event, Exited):
                continue  # the session learns of ends at once, and with their status
            if isinstance(event, Poll):
                event = self._complete(event)
            self.events.append(event)
        if self._serving and self.page and self._pages is not None and now_s >= self._work_at_s:
            self._work_at_s = now_s + WORK_S
            self.finished = self._pages.finished()

    def _find_page(self, now_s: float) -> None:
        """The page that was named, if one of ours listens there: another engine may have the port. Else one of our ports.

        Asked again while there is none: some servers say that they are up a moment before they listen.
        """
        first = self._page_since_s == float("-inf")
        self._page_since_s = now_s if first else self._page_since_s
        waited_s = now_s - self._page_since_s
        self._page_at_s = now_s + (LOOK_S if waited_s < PAGE_PATIENCE_S else WORK_S)
        pids = [member.id.pid for member in self._life.alive()]
        pages = self._pages
        if pages is None or not (self._context.settings.url_is_given or listeners(pages.endpoint.port, pids)):
            pages = self._found
            self._seek_page()
        if pages is not None:
            if self._pages is None or pages.endpoint != self._pages.endpoint:
                self._context.note(f"the engine's own pages are at {pages.endpoint.url}")
            self._pages = pages
            self._observer.attach(pages.endpoint)
            self.page = pages.endpoint.url
        elif waited_s >= PAGE_PATIENCE_S and self._expected and not self._said_blind:
            self._said_blind = True
            self._context.voice.say(_BLIND)

    def _seek_page(self) -> None:
        """Ask the ports of our own processes, in a thread: one may listen and never answer."""
        if self._seeking is not None and self._seeking.is_alive():
            return
        scheme = self._pages.endpoint.scheme if self._pages is not None else "http"

        def work() -> None:
            refresh(tree := EngineTree(self._life.top.pid))
            self._found = vllm_page(ports_of(tree), scheme, self._key)

        self._seeking = threading.Thread(target=work, name="lifesign-page", daemon=True)
        self._seeking.start()

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


def vllm_page(ports: list[int], scheme: str, api_key: str | None) -> EnginePages | None:
    """The first of these ports of this machine where a vLLM server shows its metrics."""
    for port in ports[:PORTS_ASKED]:
        pages = EnginePages.at(f"{scheme}://127.0.0.1:{port}", api_key)
        if pages is not None and parse_metrics(pages.metrics_text(), 0.0).is_vllm:
            return pages
    return None


_BLIND = T(
    "no metrics page of this engine can be found: its progress can't be seen, only its processes; give --engine-url",
    "找不到这个引擎自己的 metrics 页面：看不到推理进度，只能看进程；请用 --engine-url 指定",
)
