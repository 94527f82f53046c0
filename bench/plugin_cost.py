#!/usr/bin/env python3
"""What patience costs per step: the plugin's own work around one call to the workers, and what it adds up to.

    python bench/plugin_cost.py [--steps N] [--rounds N] [--format json]

Measured in this process, without vLLM: a ring that answers at once, `execute_model` and `sample_tokens` as vLLM calls them,
once through the patient hooks (beacon, detector and cost model included) and once directly. The difference is what each
step pays. The share of a step depends on how long a step takes, so the table names the shortest step for which the cost
stays under 0.1 %. The detector learns from a step at most ten times a second (`lesson_us`, counted in). Two things that happen rarely are measured apart: one look at /proc, and one question about touched memory.

Numbers vary with the machine and its other work: take the lowest round, as noise only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lifesign.guard.detector.beacon import BeaconWriter, Worker
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin, Poll
from lifesign.guard.detector.policy import StepSize
from lifesign.guard.probes.touched import touched_in
from lifesign.vllm_plugin.assembly import WorkerProbe
from lifesign.vllm_plugin.hooks import attach, wrap_as
from lifesign.vllm_plugin.keeper import TELL_EVERY_S, Keeper

SHARE = 0.001


class Ring:
    """Answers at once."""

    def __init__(self) -> None:
        self.current_idx = 0
        self.local_socket = object()
        self._is_local_reader = True
        self.buffer = type("Buffer", (), {"max_chunks": 10})()

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        """A reply."""
        return (1, "reply")

    def recv(self, socket: Any, timeout: float | None) -> Any:
        """Never used here."""
        raise TimeoutError


class Future:
    """The little of vLLM's future that a reply goes through."""

    def __init__(self, queue: deque[Any], get_response: Callable[[], Any]) -> None:
        self.get_response = get_response
        queue.appendleft(self)
        self.queue = queue

    def result(self) -> Any:
        """The reply."""
        return self.queue.pop().get_response()


class Executor:
    """The little of vLLM's executor that a call goes through."""

    def __init__(self) -> None:
        self.response_mqs = [Ring()]
        self.futures_queue: deque[Any] = deque()

    def _init_executor(self) -> None:
        return

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: Any = (),
        kwargs: Any = None,
        non_block: bool = False,
        **more: Any,
    ) -> Any:
        """Send nothing; give a future whose response comes from the ring, or its result."""
        ring = self.response_mqs[0]

        def get_response() -> Any:
            _, result = ring.dequeue(timeout=timeout)
            return None if method == "execute_model" else result

        future = Future(self.futures_queue, get_response)
        return future if non_block else future.result()


class Scheduled:
    """A scheduler output as far as its size is asked for."""

    def __init__(self, sequences: int) -> None:
        self.num_scheduled_tokens = {f"request-{number}": 1 for number in range(sequences)}
        self.total_num_scheduled_tokens = sequences


def one_step(executor: Any, scheduled: Scheduled) -> None:
    """One step as EngineCore does it."""
    executor.collective_rpc(
        "execute_model", args=(scheduled,), unique_reply_rank=0, non_block=True, timeout=300.0
    ).result()
    executor.collective_rpc("sample_tokens", args=(None,), unique_reply_rank=0, timeout=300.0)


def best_us(executor: Any, steps: int, rounds: int) -> float:
    """Microseconds per step in the best of `rounds` rounds."""
    scheduled = Scheduled(64)
    best_s = float("inf")
    for _ in range(rounds):
        began_s = time.perf_counter()
        for _ in range(steps):
            one_step(executor, scheduled)
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s / steps * 1e6


def best_ms(call: Callable[[], Any], rounds: int) -> float:
    """Milliseconds of the best of `rounds` calls."""
    best_s = float("inf")
    for _ in range(rounds):
        began_s = time.perf_counter()
        call()
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s * 1e3


def shortest_step_ms(cost_us: float, lesson_us: float) -> float:
    """The shortest step for which all that it pays is under 0.1 % of it. A lesson is given at most every `TELL_EVERY_S`."""
    left = SHARE - lesson_us / 1e6 / TELL_EVERY_S
    if left > 0.0 and cost_us / 1e6 / left < TELL_EVERY_S:
        return cost_us / 1e3 / left
    return (cost_us + lesson_us) / 1e3 / SHARE


def measure(steps: int, rounds: int) -> dict[str, float]:
    """All the numbers; see the module's text."""
    pid = os.getpid()
    with tempfile.TemporaryDirectory() as folder:
        beacon = BeaconWriter("cpu", Path(folder))
        detector = Detector()
        detector.handle(Begin(backend="cpu", tier="beacon", serving=True), time.monotonic())
        probe = WorkerProbe([Worker(0, pid)], ())
        patient = type("PatientExecutor", (Executor,), {})
        wrap_as(patient, "carries")
        executor = patient()
        attach(executor, Keeper(detector, probe, beacon), "carries")
        with_us = best_us(executor, steps, rounds)
        beacon.close()
    lesson = Poll(steps=1, step_s=0.2, size=StepSize(64, 64), demand=True)
    lesson_us = best_ms(lambda: detector.handle(lesson, time.monotonic()), 2000) * 1e3
    without_us = best_us(Executor(), steps, rounds)
    cost_us = with_us - without_us
    touched = [answer for answer in (touched_in(pid, 0.01) for _ in range(3)) if answer is not None]
    return {
        "plain_us": round(without_us, 2),
        "patient_us": round(with_us, 2),
        "cost_us_per_step": round(cost_us, 2),
        "lesson_us": round(lesson_us, 2),
        "shortest_step_ms_under_0.1_percent": round(shortest_step_ms(cost_us, lesson_us), 2),
        "look_ms": round(best_ms(lambda: probe.sample(time.monotonic()), 50), 3),
        "touched_memory_ms": round(min(answer.cost_s for answer in touched) * 1e3, 3) if touched else -1.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="cost of patient waiting per step")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    found = measure(options.steps, options.rounds)
    if options.format == "json":
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:36} {value:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
