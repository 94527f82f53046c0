"""A vLLM plugin for tests only: makes the next steps of a worker slow, endless or asleep.

Loaded in every vLLM process, it wraps the worker's `execute_model`. It acts while the file named by LIFESIGN_TEST_STALL
exists; the file says how, as JSON: `mode` (compute, spin, sleep), `seconds` per step, `steps`, `rank` (absent: all).

- compute: honest work, layers of fresh matrices; pages are touched, memory comes and goes, as in a real large step.
- spin: a loop that does nothing, as in a livelock: 100 % CPU, and nothing moves.
- sleep: blocked in the kernel.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import time
from typing import Any

FILE = "LIFESIGN_TEST_STALL"


def stall(mode: str, seconds: float) -> None:
    """Keep this thread for `seconds` in the given way."""
    until_s = time.monotonic() + seconds
    if mode == "sleep":
        time.sleep(seconds)
    elif mode == "spin":
        while time.monotonic() < until_s:
            pass
    elif mode == "compute":
        import torch

        while time.monotonic() < until_s:
            layer = torch.rand(512, 2048)
            for _ in range(4):
                layer = torch.relu(layer @ torch.rand(2048, 2048)) + 1e-3
    else:
        raise ValueError(mode)


def register() -> None:
    """Entry point: wrap the worker, in worker processes alone."""
    path = os.environ.get(FILE)
    name = multiprocessing.current_process().name
    if not path or not name.startswith("VllmWorker"):
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    real = WorkerWrapperBase.execute_model
    if getattr(real, "stalls", False):
        return
    done = {"steps": 0}

    @functools.wraps(real)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                order = json.load(file)
            mine = order.get("rank") is None or name == f"VllmWorker-{order['rank']}"
            if mine and done["steps"] < order.get("steps", 1):
                done["steps"] += 1
                stall(order["mode"], order["seconds"])
        return real(self, *args, **kwargs)

    execute_model.stalls = True  # type: ignore[attr-defined]
    WorkerWrapperBase.execute_model = execute_model  # type: ignore[method-assign]
