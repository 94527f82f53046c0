"""What `lifesign watch` costs: processor time per second of watching, and the price of each part of a look.

    python bench/watch_cost.py [--threads 64] [--seconds 30]

Watches a process tree of its own making (an EngineCore and two workers with that many sleeping threads each, two of them
busy now and then), once calm and once in the most expensive case, a step that never ends. Prints JSON. The target is less
than one per cent of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path

from lifesign.guard.detector.beacon import BeaconWriter, read_beacon
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.policy import StepCost, StepSize
from lifesign.guard.probes.observer import Observer
from lifesign.guard.probes.process import ProcessProbe, Target
from lifesign.guard.probes.tree import EngineTree, Member

WORKER = """
import sys, threading, time
def sleeper():
    while True:
        time.sleep(60)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=sleeper, daemon=True).start()
print("up", flush=True)
end = time.time() + 600
while time.time() < end:
    t = time.perf_counter()
    while time.perf_counter() - t < 0.002:
        pass
    time.sleep(0.02)
"""


def cpu_s() -> float:
    """Processor time of this process and of its ended children, in seconds."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def watched(tree: EngineTree, seconds: float, steps: bool, writer: BeaconWriter) -> float:
    """Share of a core that watching takes: with steps coming in, or in the middle of a step that never ends."""
    observer, detector = Observer(tree), Detector()
    now_s = time.monotonic()
    detector.handle(observer.begin(), now_s)
    writer.step_started(4, 4)
    used_s, begun_s = 0.0, time.monotonic()
    while (now_s := time.monotonic()) - begun_s < seconds:
        if steps:
            writer.step_done()
            writer.step_started(4, 4)
        before_s = cpu_s()
        for event in observer.look(now_s, detector).events:
            detector.handle(event, now_s)
        used_s += cpu_s() - before_s
        time.sleep(max(0.0, now_s + 1.0 - time.monotonic()))
    observer.close()
    return used_s / seconds


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    os.environ["LIFESIGN_BEACON_DIR"] = tempfile.mkdtemp(prefix="lifesign-bench-")
    command = [sys.executable, "-c", WORKER, str(options.threads)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for one in workers:
            assert one.stdout is not None
            one.stdout.readline()
        writer = BeaconWriter("cpu")
        members = [Member(one.pid, 0, "worker", f"worker {at}", at) for at, one in enumerate(workers)]
        tree = EngineTree(os.getpid(), members, writer.path)
        result: dict[str, float] = {
            "calm_core_share": round(watched(tree, options.seconds, True, writer), 5),
            "stalled_core_share": round(watched(tree, options.seconds, False, writer), 5),
        }
        probe, targets = ProcessProbe(), [Target(one.pid) for one in workers]
        probe.sample(targets, 0.0)
        result |= parts(probe, targets, writer)
    finally:
        for one in workers:
            one.kill()
            one.wait(10)
        writer.close()
        Path(os.environ["LIFESIGN_BEACON_DIR"]).rmdir()
    print(json.dumps({"threads_each": options.threads, "processes": 3, "load": os.getloadavg()[0], **result}))


def parts(probe: ProcessProbe, targets: list[Target], writer: BeaconWriter) -> dict[str, float]:
    """Microseconds of each part, the best of several rounds (the machine may be busy)."""
    cost, size = StepCost("cpu"), StepSize(64, 64)
    path = writer.path
    clock = iter(range(1, 10**9))

    def step() -> None:
        writer.step_started(64, 64, 14.0, 0.4)
        writer.step_done()

    what = {
        "sample_us": (lambda: probe.sample(targets, float(next(clock))), 20),
        "states_us": (lambda: probe.states(targets), 200),
        "beacon_update_us": (step, 2000),
        "beacon_read_us": (lambda: read_beacon(path), 500),
        "cost_observe_us": (lambda: cost.observe(size, 0.3), 2000),
        "cost_limit_us": (lambda: cost.suspect_limit_s(size), 2000),
    }
    return {
        name: round(
            min(timeit.repeat(call, number=number, repeat=9, timer=time.process_time))
            / number
            * 1e6
            / (2 if name == "beacon_update_us" else 1),
            2,
        )
        for name, (call, number) in what.items()
    }


if __name__ == "__main__":
    main()
