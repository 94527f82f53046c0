"""Puts a keeper together from a real executor: which processes to watch, which backend, what a restart costs.

The beacon appears before the workers do, so that an outside observer sees an engine that is STARTING; the keeper appears
when the workers are there to be watched.
"""

from __future__ import annotations

import importlib
import multiprocessing.util
import os
import time
from typing import Any

from lifesign.guard.detector.beacon import BeaconState, BeaconWriter, Worker, process_start_ticks
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin
from lifesign.guard.detector.evidence import ProcessSignals
from lifesign.guard.detector.policy import Backend
from lifesign.guard.probes.gpu import GpuProbe
from lifesign.guard.probes.process import ProcessProbe, Target
from lifesign.guard.probes.touched import small_text
from lifesign.vllm_plugin.hooks import LOG, process_role
from lifesign.vllm_plugin.keeper import Keeper

RESTART_MIN_S, RESTART_MAX_S = 5.0, 3600.0
VLLM_TIMEOUT_S = 300.0
COMPILERS = frozenset(
    {"cc1", "cc1plus", "g++", "gcc", "c++", "clang", "clang++", "ld", "as", "ninja", "nvcc", "cicc", "ptxas", "hipcc"}
)
CHILDREN_KEPT = 32
TOLD_S = 5.0
"""How long a second opinion counts as evidence."""


def backend_of_vllm() -> Backend:
    """`cpu` or `gpu`: everything that isn't a CPU is judged like a GPU (host threads prove nothing there)."""
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else "gpu"


def vllm_timeout_s() -> float:
    """vLLM's own limit for a step, seconds."""
    from vllm import envs

    value = getattr(envs, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", VLLM_TIMEOUT_S)
    return float(value) if isinstance(value, int | float) and value > 0 else VLLM_TIMEOUT_S


def seconds_since_start(pid: int) -> float:
    """How long a process has been running; 0 when that can't be read."""
    ticks = process_start_ticks(pid)
    if ticks <= 0:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def begin_beacon() -> BeaconWriter | None:
    """The beacon of this process, saying STARTING; None (and a note in the log) where it can't be written."""
    try:
        beacon = BeaconWriter(backend_of_vllm())
    except OSError as error:
        LOG.warning("lifesign: no progress beacon: %s", error)
        return None
    # atexit isn't run in a forked child; this is run in every child of multiprocessing, and in a main process.
    multiprocessing.util.Finalize(None, _close, args=(beacon,), exitpriority=10)
    return beacon


def _close(beacon: BeaconWriter) -> None:
    """Remove the beacon of an engine that ends in order; one that says DEAD stays for whoever comes to look."""
    if beacon.state is not BeaconState.DEAD:
        beacon.close()


def workers_of(executor: Any) -> list[Worker]:
    """The executor's worker processes on this machine, by rank."""
    found: list[Worker] = []
    for handle in getattr(executor, "workers", None) or []:
        pid = getattr(getattr(handle, "proc", None), "pid", None)
        if isinstance(pid, int) and pid > 0:
            found.append(Worker(int(getattr(handle, "rank", len(found))), pid, process_start_ticks(pid)))
    return found


class WorkerProbe:
    """Samples the local workers, and compilers below them; ranks on other nodes appear as processes that can't be seen."""

    def __init__(self, workers: list[Worker], unseen_ranks: tuple[int, ...]) -> None:
        self.inner = ProcessProbe()
        self.workers = [Target(worker.pid, "worker", worker.rank, worker.start_ticks) for worker in workers]
        self.unseen = tuple(ProcessSignals(pid=0, rank=rank) for rank in unseen_ranks)

    def begin(self, now_s: float) -> None:
        """See `keeper.Probe`."""
        self.inner.begin(now_s)

    def sample(self, now_s: float) -> tuple[ProcessSignals, ...]:
        """See `keeper.Probe`."""
        compilers = [Target(pid, "compiler", one.rank) for one in self.workers for pid in compilers_of(one.pid)]
        return self.inner.sample(self.workers + compilers, now_s) + self.unseen

    def told(self, pid: int, moves: bool, now_s: float) -> None:
        """See `keeper.Probe`."""
        self.inner.told(pid, moves, now_s + TOLD_S)


def compilers_of(pid: int) -> list[int]:
    """Descendants of the process that compile something (kernels are built in the first steps)."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < CHILDREN_KEPT:
        above = queue.pop()
        for name in small_text(f"/proc/{above}/task/{above}/children").split()[:CHILDREN_KEPT]:
            queue.append(int(name))
            if small_text(f"/proc/{name}/comm").strip() in COMPILERS:
                found.append(int(name))
    return found


def keeper_for(executor: Any, beacon: BeaconWriter | None) -> Keeper:
    """The keeper of an executor whose workers have started."""
    workers = workers_of(executor)
    if beacon is not None:
        beacon.set_workers(workers)
    ranks = {worker.rank for worker in workers}
    unseen = tuple(rank for rank in range(len(getattr(executor, "response_mqs", None) or [])) if rank not in ranks)
    detector = Detector()
    detector.handle(Begin(backend=backend_of_vllm(), tier="beacon", serving=True), time.monotonic())
    return Keeper(
        detector,
        WorkerProbe(workers, unseen),
        beacon,
        floor_s=vllm_timeout_s(),
        restart_s=restart_cost_s,
        gpu=devices_of(workers) if backend_of_vllm() == "gpu" else None,
    )


def devices_of(workers: list[Worker]) -> GpuProbe:
    """The devices of the workers, read through NVML: vLLM's own copy of it, else the package's."""
    try:
        nvml: Any = importlib.import_module("vllm.third_party.pynvml")
    except ImportError:
        nvml = None
    probe = GpuProbe(nvml)
    probe.keep_only({one.pid for one in workers}, os.environ.get("CUDA_VISIBLE_DEVICES", ""), len(workers))
    LOG.info(
        "lifesign: devices: %s", "power and memory activity count as evidence" if probe.available else probe.reason
    )
    return probe


def restart_cost_s() -> float:
    """What a restart costs: the time from the server's start until now; asked after each call of the start-up."""
    since = seconds_since_start(os.getppid() if process_role() == "engine" else os.getpid())
    return min(RESTART_MAX_S, max(RESTART_MIN_S, since))
