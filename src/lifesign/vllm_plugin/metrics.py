"""The beacon as Prometheus series, on the same /metrics page as vLLM's own.

vLLM's gauges leave the engine with a step's output, so they freeze with it. These are read from the beacon at each
scrape, in the process that answers the scrape: a step that hangs shows a growing age.

    lifesign_engine_state{engine_pid,state}       1 for the state in force (starting, idle, stepping, unhealthy, dead, closed)
    lifesign_steps_started_total, lifesign_steps_done_total, lifesign_busy_seconds_total
    lifesign_step_age_seconds                     of the running step; 0 between steps
    lifesign_step_sequences, lifesign_step_tokens its size
    lifesign_step_limit_seconds, lifesign_step_predicted_seconds
    lifesign_wait_extensions                      how often the running step's limit was extended
    lifesign_stuck_rank                           the rank that looks stuck; -1 for none

A collector reads files and holds no state: it works with one API server and with several (prometheus multi-process
mode), and a scrape can't fail because of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lifesign.guard.detector.beacon import SUFFIX, BeaconReading, BeaconState, beacon_dir, read_beacon
from lifesign.text import is_whole

ENGINES_KEPT = 64


def parent_of(pid: int) -> int:
    """The parent's pid; 0 when it can't be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


class BeaconCollector:
    """Reads the beacons of this server's engines at each scrape. `family` is the parent pids that an engine may have."""

    def __init__(self, directory: Path, family: frozenset[int]) -> None:
        self.directory = directory
        self.family = family

    def describe(self) -> list[Any]:
        """Nothing: names need no check against other collectors, and registering must not read files."""
        return []

    def readings(self) -> list[BeaconReading]:
        """The beacons of engines that this server (or its launcher) started."""
        found = []
        try:
            for path in sorted(self.directory.glob(f"*{SUFFIX}"))[:1000]:
                name = path.name[: -len(SUFFIX)]
                if not is_whole(name) or (int(name) not in self.family and parent_of(int(name)) not in self.family):
                    continue
                reading = read_beacon(path)
                if reading is not None:
                    found.append(reading)
        except OSError:
            return found
        return found[:ENGINES_KEPT]

    def collect(self) -> Iterator[Any]:
        """The series; see the module's text."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        label = ["engine_pid"]
        readings = self.readings()
        now_ns = time.monotonic_ns()
        state = GaugeMetricFamily("lifesign_engine_state", "1 for the state in force", labels=["engine_pid", "state"])
        for reading in readings:
            for each in BeaconState:
                state.add_metric([str(reading.pid), each.name.lower()], 1.0 if each is reading.state else 0.0)
        yield state
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=label)
            for reading in readings:
                counter.add_metric([str(reading.pid)], float(getattr(reading, value)))
            yield counter
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=label)
            for reading in readings:
                number = getattr(reading, value) if reading.stepping or value == "stuck_rank" else 0
                gauge.add_metric([str(reading.pid)], float(number))
            yield gauge
        age = GaugeMetricFamily("lifesign_step_age_seconds", "Age of the running step, 0 between steps", labels=label)
        for reading in readings:
            age.add_metric([str(reading.pid)], reading.step_age_s(now_ns))
        yield age


_COUNTERS = (
    ("lifesign_steps_started", "Steps handed to the workers", "steps_started"),
    ("lifesign_steps_done", "Steps whose result came back", "steps_done"),
    ("lifesign_busy_seconds", "Time spent in finished steps", "busy_s"),
)
_GAUGES = (
    ("lifesign_step_sequences", "Sequences in the running step", "step_sequences"),
    ("lifesign_step_tokens", "Tokens scheduled in the running step", "step_tokens"),
    ("lifesign_step_limit_seconds", "Age at which the running step is looked at", "limit_s"),
    ("lifesign_step_predicted_seconds", "Expected duration of the running step", "predicted_s"),
    ("lifesign_wait_extensions", "How often the wait for the running step was extended", "extensions"),
    ("lifesign_stuck_rank", "Rank that looks stuck, -1 for none", "stuck_rank"),
)


def publish() -> None:
    """Put the series on this server's /metrics page. Raises what the imports or the directory raise."""
    import prometheus_client

    collector = BeaconCollector(beacon_dir(), frozenset({os.getpid(), os.getppid()} - {0, 1}))
    prometheus_client.REGISTRY.register(collector)
    from vllm.v1.metrics import prometheus as pages

    plain = pages.get_prometheus_registry

    def with_beacons() -> Any:
        registry = plain()
        # In multi-process mode vLLM serves a registry of its own, which knows nothing of the global one.
        if registry is not prometheus_client.REGISTRY:
            registry.register(collector)
        return registry

    pages.get_prometheus_registry = with_beacons
    for user in ("vllm.entrypoints.serve.instrumentator.metrics", "vllm.entrypoints.openai.api_server"):
        module = sys.modules.get(user)
        if getattr(module, "get_prometheus_registry", None) is plain:
            setattr(module, "get_prometheus_registry", with_beacons)  # noqa: B010
