"""Guard around a real vLLM: every way to die ends in the right cause and decision, and in an engine that serves again.

One guard lives through all deaths while serving: a start takes half a minute, and what one life leaves behind must not
hurt the next. Requests are made in every life, so that each one counts as progress.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lifesign.drill import vocabulary
from lifesign.drill.cgroup import MemoryCgroup, why_no_memory_cgroup
from lifesign.drill.inject import encode
from lifesign.drill.model import Hog, Hook
from lifesign.guard import procs
from lifesign.vllm_plugin.shim import shimmed_environment

from .. import engine_support
from .harness import GuardRun, guard, wait_until

pytestmark = pytest.mark.engine
START_S = 240.0
DETECT_S = 45.0
SMALL = ("--host", "127.0.0.1", "--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager")


class Engine:
    """Where the engine of a guard answers, and requests to it."""

    def __init__(self) -> None:
        self.python = engine_support.engine_path("path")
        self.model = str(engine_support.engine_path("model"))
        self.port = engine_support.free_port()

    def command(self, *more: str, model: str | None = None, port: int | None = None) -> list[str]:
        vllm = str(self.python.parent / "vllm")
        return [vllm, "serve", model or self.model, "--port", str(port or self.port), *SMALL, *more]

    def ask(self, tokens: int = 4, timeout_s: float = 60.0) -> bool:
        body = {"model": self.model, "prompt": "hi there", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return bool(json.load(answer)["choices"][0]["finish_reason"] == "length")
        except (OSError, ValueError, KeyError):
            return False

    def ask_in_background(self, tokens: int) -> threading.Thread:
        thread = threading.Thread(target=self.ask, args=(tokens, 120.0), daemon=True)
        thread.start()
        time.sleep(0.3)
        return thread


ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@contextmanager
def real(
    folder: Path, engine: Engine, *options: str, command: list[str] | None = None, more: dict[str, str] | None = None
) -> Iterator[GuardRun]:
    with engine_support.one_engine_at_a_time():
        before = set(os.listdir("/dev/shm"))
        with guard(
            folder,
            *options,
            engine=command or engine.command(),
            env={**ENVIRONMENT, **(more or {})},
            http="127.0.0.1:0",
        ) as run:
            yield run
        assert run.marked() == []
        ours = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith(("psm_", "vllm"))}
        assert ours == set(), "shared memory left behind"
        assert run.tmps() == [], "sockets left behind"


def serving(run: GuardRun, count: int) -> None:
    def up() -> bool:
        assert run.process.poll() is None, run.said[-3000:]
        return run.said.count("the engine serves") >= count

    wait_until(up, f"start number {count}", START_S)
    wait_until(lambda: run.pid("worker", missing=0) and run.pid("core", missing=0), "names of the processes")


Deaths = list[tuple[str, str, int, str, str]]
# One guard for each list: the seventh death within an hour would be HELD.
KILLED_AND_STOPPED: Deaths = [
    ("kill worker", "worker", signal.SIGKILL, "silent-death", "worker-died-no-trace"),
    ("kill core", "core", signal.SIGKILL, "silent-death", "core-died-no-trace"),
    ("stop worker", "worker", signal.SIGSTOP, "timeout-hang", "stopped"),
    ("stop core", "core", signal.SIGSTOP, "timeout-hang", "stopped"),
    ("kill server", "api", signal.SIGKILL, "silent-death", "signal"),
]
CRASHED: Deaths = [
    ("crash worker", "worker", signal.SIGSEGV, "silent-death", "segfault-native"),
    ("crash core", "core", signal.SIGSEGV, "silent-death", "segfault-native"),
    ("crash server", "api", signal.SIGSEGV, "silent-death", "segfault-native"),
]


@pytest.mark.parametrize("faults", [KILLED_AND_STOPPED, CRASHED], ids=["killed and stopped", "crashed"])
def test_every_death_while_serving_is_named_and_survived(tmp_path: Path, faults: Deaths) -> None:
    engine = Engine()
    with real(tmp_path, engine, "--grace", "20") as run:
        seen: list[procs.ProcId] = []
        for number, (name, role, signal_number, cause, subtype) in enumerate(faults, 1):
            serving(run, number)
            for _ in range(12):
                assert engine.ask(), f"{name}: the engine doesn't answer in life {number}"
            wait_until(lambda n=number: run.voice_log().count("real work was done") >= n, "progress", 30)
            seen += [proc for one in run.life()["members"] if (proc := procs.identify(one["pid"])) is not None]
            request = engine.ask_in_background(200)
            at = time.monotonic()
            run.kill(role, signal_number)
            wait_until(lambda n=number: len(run.finished_incidents()) >= n, f"the incident of {name!r}", DETECT_S + 60)
            took_s = time.monotonic() - at
            incident = run.incidents()[-1]
            print(f"{name}: {took_s:.1f} s to the finished incident")
            assert f"{incident['cause']['cause']}/{incident['cause']['subtype']}" == f"{cause}/{subtype}", name
            assert incident["decision"]["action"] == "restart", name
            assert incident["exit"]["guard_code"] != 0, name
            # A crashing torch runs `file` on its own libraries; that grandchild's status nobody can read.
            ours = [one for one in incident["processes"] if one["role"] != "other"]
            assert len(ours) >= 3, name
            assert all(one["ended"] and (one["exit_code"] is not None or one["signal"]) for one in ours), name
            if signal_number == signal.SIGSTOP:
                assert list(incident["folder"].glob("captures/*/stacks/*.txt")), name
                assert (incident["folder"] / "events.jsonl").stat().st_size > 0, name
            request.join(30)
        serving(run, len(faults) + 1)
        assert engine.ask()
        still = [proc for proc in seen if procs.is_alive(proc)]
        assert still == [], "processes of earlier lives"
        engine.ask_in_background(200)
        asked = time.monotonic()
        run.stop()
        code = run.wait(30)
        assert time.monotonic() - asked < 21.0
        assert code in (0, 137, 143)
        assert len(run.incidents()) == len(faults), "a stop in mid-stream is no death"


def start_up_fault(engine: Engine, name: str) -> tuple[list[str], Any]:
    if name == "bad flag":
        return engine.command("--no-such-flag"), None
    if name == "missing model":
        return engine.command(model="/srv/no/such/model"), None
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return engine.command(port=taken.getsockname()[1]), taken


@pytest.mark.parametrize(
    ("name", "code", "causes"),
    [
        ("bad flag", 2, ("user-config",)),
        ("missing model", 1, ("model-load", "user-config")),
        ("port in use", 1, ("host-resource",)),
    ],
)
def test_a_start_that_cannot_work_is_not_tried_again(
    tmp_path: Path, name: str, code: int, causes: tuple[str, ...]
) -> None:
    engine = Engine()
    command, held = start_up_fault(engine, name)
    with real(tmp_path, engine, command=command) as run:
        assert run.wait(START_S) == code
        (incident,) = run.incidents()
        assert incident["cause"]["cause"] in causes
        assert incident["decision"]["action"] == "stop"
    if held is not None:
        held.close()


@pytest.mark.parametrize("after_s", [4, 8, 12, 16])
def test_a_stop_during_the_start_is_obeyed(tmp_path: Path, after_s: int) -> None:
    """vLLM 0.32.0 alone dead-locks at 8 to 12 s and ignores the signal at 16 s."""
    engine = Engine()
    with real(tmp_path, engine, "--grace", "10") as run:
        time.sleep(after_s)
        asked = time.monotonic()
        run.stop()
        code = run.wait(20)
        assert time.monotonic() - asked < 11.0
        assert code != 2
        assert run.incidents() == []
        assert "died" not in run.said


@pytest.mark.parametrize(
    ("fault_name", "cause", "within_s"),
    [
        ("oom-serving", "device-oom/serving", 30.0),
        ("livelock", "timeout-hang/stuck", 90.0),
        ("schedules-nothing", "timeout-hang/stuck", 120.0),
    ],
)
def test_faults_inside_a_process(tmp_path: Path, fault_name: str, cause: str, within_s: float) -> None:
    """An exception of the forward pass; a loop that never ends; a loop that runs and does nothing, which vLLM never notices."""
    fault = vocabulary.find(fault_name)
    assert fault.hook is not None
    armed = tmp_path / "armed"
    spec = encode(fault.hook, armed_by=armed, fired=tmp_path / "fired")
    engine = Engine()
    more = {**shimmed_environment(os.environ, tmp_path / "shim"), "LIFESIGN_FAULT": spec}
    with real(tmp_path, engine, "--max-restarts", "0", more=more) as run:
        serving(run, 1)
        for _ in range(12):
            assert engine.ask()
        armed.touch()
        engine.ask_in_background(100)
        wait_until(lambda: (tmp_path / "fired").exists(), "the fault", 30)
        at = time.monotonic()
        assert run.wait(within_s + 60) != 0
        print(f"{fault_name}: {time.monotonic() - at:.1f} s from the fault to the end of guard")
        (incident,) = run.incidents()
        assert f"{incident['cause']['cause']}/{incident['cause']['subtype']}" == cause
        assert incident["decision"]["rule"] == "max-restarts"
        if fault_name == "livelock":
            stacks = "".join(path.read_text() for path in incident["folder"].glob("captures/*/stacks/Worker*.txt"))
            assert "execute_model" in stacks, "the stack of the worker that hangs"
        if fault_name == "schedules-nothing":
            assert list(incident["folder"].glob("captures/*/stacks/EngineCore*.txt"))


@pytest.mark.skipif(why_no_memory_cgroup() is not None, reason=str(why_no_memory_cgroup()))
def test_the_kernel_ends_a_worker_at_the_limit_of_its_control_group(tmp_path: Path) -> None:
    """vLLM's own log knows no more than `died unexpectedly`; the counters of the group know why."""
    hook = Hook("worker.step", (Hog(8192),))
    armed = tmp_path / "armed"
    spec = encode(hook, armed_by=armed, fired=tmp_path / "fired")
    engine = Engine()
    group = MemoryCgroup(4096)
    more = {**shimmed_environment(os.environ, tmp_path / "shim"), "LIFESIGN_FAULT": spec}
    join = f'echo $$ > {group.members} && exec "$@"'
    try:
        with real(
            tmp_path, engine, "--max-restarts", "0", command=["sh", "-c", join, "sh", *engine.command()], more=more
        ) as run:
            serving(run, 1)
            assert engine.ask()
            armed.touch()
            engine.ask_in_background(100)
            assert run.wait(90) != 0
            (incident,) = run.incidents()
            assert f"{incident['cause']['cause']}/{incident['cause']['subtype']}" == "host-oom/cgroup-limit"
            assert incident["decision"]["rule"] == "max-restarts"
    finally:
        group.remove()
