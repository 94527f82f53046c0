"""Which vLLM is this? The whole plugin, through its entry point, on look-alikes of several releases.

The look-alikes are packages called `vllm` that a test writes: as much of the executor as the plugin looks at, in the shape
of 0.27 and later, in the shape of 0.19, and in shapes that no release has. The real ones are in test_plugin_engine.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lifesign.vllm_plugin.shim import shimmed_environment

RING = """
import time
from collections import deque

class Buffer:
    max_chunks = 10

class MessageQueue:
    def __init__(self):
        self.messages = deque()
        self.current_idx = 0
        self.local_socket = object()
        self._is_local_reader = True
        self.buffer = Buffer()

    def dequeue(self, timeout=None, indefinite=False):
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while not self.messages or self.messages[0][0] > time.monotonic():
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(0.01)
        self.current_idx = (self.current_idx + 1) % 10
        return self.messages.popleft()[1]

    @staticmethod
    def recv(socket, timeout):
        raise TimeoutError
"""

COMMON = """
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

class Executor:
    def __init__(self):
        self._init_executor()

    def _init_executor(self):
        self.workers = []
        self.response_mqs = [MessageQueue()]
        self.futures_queue = deque()

    def execute_model(self, scheduled, non_block=False):
        return self.collective_rpc("execute_model", args=(scheduled,), non_block=non_block, unique_reply_rank=0, timeout=0.6)

    def will_answer(self, delay, value):
        self.response_mqs[0].messages.append((time.monotonic() + delay, value))
"""

CARRIES = """
class FutureWrapper(Future):
    def __init__(self, futures_queue, get_response, aggregate=lambda x: x):
        self.futures_queue = futures_queue
        self.get_response = get_response
        self.aggregate = aggregate
        super().__init__()
        self.futures_queue.appendleft(self)

    def result(self, timeout=None):
        while not self.done():
            self.futures_queue.pop()._wait()
        return super().result()

    def _wait(self):
        try:
            self.set_result(self.aggregate(self.get_response()))
        except Exception as e:
            self.set_exception(e)

class MultiprocExecutor(Executor):
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False, unique_reply_rank=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        def get_response():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return self.response_mqs[0].dequeue(timeout=left)
            except TimeoutError as e:
                raise TimeoutError(f"RPC call to {method} timed out.") from e
        future = FutureWrapper(self.futures_queue, get_response=get_response)
        return future if non_block else future.result()
"""

PAIRS = """
class FutureWrapper(Future):
    def __init__(self, futures_queue, aggregate=lambda x: x):
        self.futures_queue = futures_queue
        self.aggregate = aggregate
        super().__init__()

    def result(self, timeout=None):
        while not self.done():
            future, get_response = self.futures_queue.pop()
            future.wait_for_response(get_response)
        return super().result()

    def wait_for_response(self, get_response):
        try:
            self.set_result(self.aggregate(get_response()))
        except Exception as e:
            self.set_exception(e)

class MultiprocExecutor(Executor):
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False, unique_reply_rank=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        def get_response():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return self.response_mqs[0].dequeue(timeout=left)
            except TimeoutError as e:
                raise TimeoutError(f"RPC call to {method} timed out.") from e
        if non_block:
            future = FutureWrapper(self.futures_queue)
            self.futures_queue.appendleft((future, get_response))
            return future
        while self.futures_queue:
            future, get_one = self.futures_queue.pop()
            future.wait_for_response(get_one)
        return get_response()
"""

UNIPROC = """
class UniProcExecutor:
    def _init_executor(self):
        pass
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False, single_value=False):
        return "in process"
"""

SCRIPT = """
import json, logging, multiprocessing, os, sys
logging.basicConfig(stream=sys.stderr)
multiprocessing.current_process().name = "EngineCore"
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
before = MultiprocExecutor.collective_rpc
from lifesign.vllm_plugin import register
register()
register()
executor = MultiprocExecutor()
class Scheduled:
    num_scheduled_tokens = {"a": 1}
    total_num_scheduled_tokens = 1
out = {"untouched": MultiprocExecutor.collective_rpc is before}
executor.will_answer(0.0, "first")
out["prompt"] = executor.execute_model(Scheduled())
executor.will_answer(1.4, "late")
executor.will_answer(1.5, "later")
try:
    one = executor.execute_model(Scheduled(), non_block=True)
    two = executor.execute_model(Scheduled(), non_block=True)
    out["late"] = [one.result(), two.result()]
except TimeoutError as error:
    out["late"] = str(error)
try:
    out["other"] = executor.collective_rpc("check_health", timeout=0.2)
except TimeoutError as error:
    out["other"] = str(error)
try:
    executor.execute_model(Scheduled())
    out["after"] = "went on"
except Exception as error:
    out["after"] = type(error).__name__
print(json.dumps(out))
"""


def write_vllm(folder: Path, executor: str, ring: str = RING) -> Path:
    """A package called vllm in `folder`."""
    files = {
        "__init__.py": "",
        "envs.py": "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS = 1\n",
        "platforms.py": "class P:\n    def is_cpu(self):\n        return True\ncurrent_platform = P()\n",
        "v1/__init__.py": "",
        "v1/executor/__init__.py": "",
        "v1/executor/multiproc_executor.py": COMMON + executor,
        "v1/executor/uniproc_executor.py": UNIPROC,
        "distributed/__init__.py": "",
        "distributed/device_communicators/__init__.py": "",
        "distributed/device_communicators/shm_broadcast.py": ring,
    }
    for name, text in files.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run_script(folder: Path, **environment: str) -> tuple[dict[str, Any], str]:
    """What the script found with this vllm, and what was logged."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM_", "LIFESIGN_"))}
    clean["PYTHONPATH"] = str(folder)
    clean["LIFESIGN_BEACON_DIR"] = str(folder / "beacons")
    env = {**shimmed_environment(clean, folder / "shim"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


@pytest.mark.parametrize("executor", [CARRIES, PAIRS], ids=["0.27 and later", "0.19"])
def test_known_shapes_wait_beyond_the_limit(executor: str, tmp_path: Path) -> None:
    found, log = run_script(write_vllm(tmp_path, executor), LIFESIGN_PATIENCE="1")
    assert not found["untouched"]
    assert found["prompt"] == "first"
    assert found["late"] == ["late", "later"]
    assert "timed out" in found["other"], "calls outside of steps keep vLLM's limit"
    assert found["after"] == "RefusedError", "the reply to check_health is still owed"
    assert "left as it is" not in log


@pytest.mark.parametrize("executor", [CARRIES, PAIRS], ids=["0.27 and later", "0.19"])
def test_switched_off_the_limit_is_vllms_and_nothing_is_wrapped(executor: str, tmp_path: Path) -> None:
    found, log = run_script(write_vllm(tmp_path, executor))
    assert found["untouched"]
    assert found["late"] == "RPC call to execute_model timed out."
    assert "lifesign" not in log


STRANGE = {
    "other futures": (CARRIES.replace("futures_queue, get_response, aggregate", "get_response, futures_queue, aggregate")
                      .replace("FutureWrapper(self.futures_queue, get_response=get_response)", "FutureWrapper(get_response, self.futures_queue)"), RING),
    "other call": (CARRIES.replace("self, method, timeout=None, args=()", "self, method, args=(), timeout=None"), RING),
    "other ring": (CARRIES, RING.replace("def dequeue(self, timeout=None, indefinite=False)", "def dequeue(self, timeout=None, forever=False)")),
    "other socket": (CARRIES, RING.replace("def recv(socket, timeout)", "def recv(timeout)")),
}  # fmt: skip


@pytest.mark.parametrize("what", STRANGE)
def test_an_unknown_shape_gets_one_warning_and_is_left_alone(what: str, tmp_path: Path) -> None:
    executor, ring = STRANGE[what]
    found, log = run_script(write_vllm(tmp_path, executor, ring), LIFESIGN_PATIENCE="1")
    assert found["untouched"]
    assert found["prompt"] == "first"
    assert found["late"] == "RPC call to execute_model timed out."
    assert log.count("vLLM is left as it is") == 1


def test_a_ring_without_the_parts_that_make_resuming_safe_is_left_alone(tmp_path: Path) -> None:
    ring = RING.replace("self.current_idx = 0\n", "pass\n").replace(
        "self.current_idx = (self.current_idx + 1) % 10\n", "pass\n"
    )
    found, log = run_script(write_vllm(tmp_path, CARRIES, ring), LIFESIGN_PATIENCE="1")
    assert found["late"] == "RPC call to execute_model timed out."
    assert log.count("vLLM is left as it is") == 1
    assert "current_idx" in log
