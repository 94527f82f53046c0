"""What the world may know of the guard at any moment: state, counters, answers to probes. Shared between threads.

`/livez` and `/readyz` answer two different questions. Ready: may a request be sent here now? Live: is anything gained by
ending this container? A slow engine is live; an engine that guard is about to start again is live; only from the moment
it is found dead until guard has decided (and for good when guard is about to leave) is it not.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lifesign import __version__

Phase = Literal["starting", "serving", "stopping", "dead", "backoff", "held", "ended"]
PHASES: tuple[Phase, ...] = ("starting", "serving", "stopping", "dead", "backoff", "held", "ended")
RECENT_INCIDENTS = 20
_LATENCY_BUCKETS = (0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 900, 3600)


class Metrics:
    """The series of guard. Its own registry: nothing of the process that runs us leaks in."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self.deaths = Counter("lifesign_deaths", "Engine deaths by diagnosed cause.", ["cause", "subtype"], **options)
        self.starts = Counter("lifesign_starts", "Engine starts.", **options)
        self.restarts = Counter("lifesign_restarts", "Engine starts that followed a death.", **options)
        self.suspicions = Counter("lifesign_suspicions", "Times the engine was suspected.", **options)
        self.withdrawn = Counter("lifesign_suspicions_withdrawn", "Suspicions that progress cleared.", **options)
        self.phase = Gauge("lifesign_guard_phase", "1 for what guard is doing now.", ["phase"], **options)
        self.engine_state = Gauge("lifesign_engine_state", "1 for what the detector believes.", ["state"], **options)
        self.ready = Gauge("lifesign_ready", "1 while requests may be sent here.", **options)
        self.held = Gauge("lifesign_held", "1 while no further start is allowed.", **options)
        self.suspicion_s = Histogram(
            "lifesign_suspicion_latency_seconds",
            "From the last progress to the suspicion.",
            buckets=_LATENCY_BUCKETS,
            **options,
        )
        self.detection_s = Histogram(
            "lifesign_detection_latency_seconds",
            "From the last progress (or the end of a process) to the death being called.",
            buckets=_LATENCY_BUCKETS,
            **options,
        )
        self.step_s = Gauge("lifesign_step_age_seconds", "Age of the running step.", **options)
        self.step_limit_s = Gauge("lifesign_step_limit_seconds", "Age at which a step becomes suspect.", **options)
        self.start_s = Gauge("lifesign_start_seconds", "What the last start took until ready.", **options)
        self.log_bytes = Gauge("lifesign_log_bytes", "Bytes of engine log in this life.", **options)
        self.log_lost_bytes = Gauge("lifesign_log_unsaved_bytes", "Bytes that the disk did not take.", **options)
        self.poison = Counter("lifesign_poison_requests", "Requests in flight in two deaths.", **options)
        Gauge("lifesign_build_info", "Version of lifesign.", ["version"], **options).labels(__version__).set(1)
        for phase in PHASES:
            self.phase.labels(phase).set(0)

    def page(self) -> bytes:
        """The page in Prometheus text format."""
        return generate_latest(self.registry)


class Board:
    """State for readers in other threads. Writers replace values; a reader gets a consistent copy."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._lock = threading.Lock()
        self._incidents: list[dict[str, Any]] = []
        self._values: dict[str, Any] = {
            "phase": "starting",
            "engine": "STARTING",
            "view": "HEALTHY",
            "ready": False,
            "lost": False,
            "since": time.time(),
            "life": 0,
            "restarts": 0,
            "reason": "",
        }
        self.update(phase="starting")

    def update(self, **values: Any) -> None:
        """Change values; gauges follow."""
        with self._lock:
            if values.get("phase", self._values["phase"]) != self._values["phase"]:
                values.setdefault("since", time.time())
            self._values.update(values)
            current = dict(self._values)
        for phase in PHASES:
            self.metrics.phase.labels(phase).set(1 if phase == current["phase"] else 0)
        self.metrics.held.set(1 if current["phase"] == "held" else 0)
        self.metrics.ready.set(1 if self.readyz()[0] == 200 else 0)
        if "engine" in values:
            self.metrics.engine_state.clear()
            self.metrics.engine_state.labels(current["engine"]).set(1)

    def add_incident(self, summary: dict[str, Any]) -> None:
        """Remember an incident for `/state`."""
        with self._lock:
            self._incidents = [*self._incidents[-(RECENT_INCIDENTS - 1) :], summary]

    def snapshot(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        with self._lock:
            return {
                "schema": "lifesign.state/1",
                "lifesign_version": __version__,
                **self._values,
                "incidents": list(self._incidents),
            }

    def get(self, name: str) -> Any:
        """One value."""
        with self._lock:
            return self._values.get(name)

    def livez(self) -> tuple[int, str]:
        """(HTTP status, one line)."""
        with self._lock:
            phase, engine, view = self._values["phase"], self._values["engine"], self._values["view"]
        if phase in ("dead", "ended") or (view == "DEAD" and phase in ("starting", "serving")):
            return 503, f"DEAD ({phase})"
        return 200, f"{view} ({phase}, engine {engine})"

    def readyz(self) -> tuple[int, str]:
        """(HTTP status, one line)."""
        with self._lock:
            values = dict(self._values)
        if values["phase"] != "serving" or not values["ready"]:
            return 503, f"not ready ({values['phase']})"
        if values["lost"]:
            return 503, "not ready (an engine process is gone)"
        if values["view"] != "HEALTHY":
            return 503, f"{values['view']} (engine {values['engine']})"
        return 200, "ready"
