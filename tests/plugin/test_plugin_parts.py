"""The plugin's small parts against real processes and files: the door, the shim, stacks, series."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import lifesign
from lifesign.errors import UsageError
from lifesign.guard.detector.beacon import BeaconState, BeaconWriter, Worker, read_beacon
from lifesign.guard.detector.policy import StepCost
from lifesign.vllm_plugin import stacks
from lifesign.vllm_plugin.assembly import compilers_of, restart_cost_s, seconds_since_start, workers_of
from lifesign.vllm_plugin.metrics import BeaconCollector
from lifesign.vllm_plugin.shim import shimmed_environment, write_shim
from lifesign.vllm_plugin.uniproc import Steps, wrap_uniproc

SRC = str(Path(lifesign.__file__).resolve().parent.parent)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python with nothing of ours in the environment but what is given."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LIFESIGN_", "PYTHON"))}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextlib.contextmanager
def child(code: str) -> Iterator[int]:
    """A child process that runs `code` after printing a line; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print('go', flush=True)\n" + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SRC},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


# The door


def test_register_does_nothing_and_imports_nothing_unless_asked() -> None:
    code = """
        import sys
        before = set(sys.modules)
        from lifesign.vllm_plugin import register
        register()
        new = sorted(name for name in set(sys.modules) - before if name.startswith(("lifesign", "vllm", "multiprocessing", "logging")))
        print(new)
    """
    done = run_python(code, PYTHONPATH=SRC)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['lifesign', 'lifesign.vllm_plugin']"
    for off in ("0", "", "false", "OFF"):
        assert run_python(code, PYTHONPATH=SRC, LIFESIGN_PATIENCE=off).stdout == done.stdout


def test_what_runs_inside_an_engine_imports_the_standard_library_alone() -> None:
    code = """
        import sys
        import lifesign.vllm_plugin.assembly, lifesign.vllm_plugin.hooks, lifesign.vllm_plugin.keeper
        import lifesign.vllm_plugin.metrics, lifesign.vllm_plugin.stacks, lifesign.guard.probes.touched, lifesign.vllm_plugin.uniproc
        roots = {name.partition(".")[0] for name in sys.modules}
        print(sorted(root for root in roots if root not in sys.stdlib_module_names and root[0] != "_" and root != "lifesign"))
    """
    done = run_python(code, PYTHONPATH=SRC)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_register_without_vllm_warns_once_and_lives() -> None:
    code = """
        import logging
        logging.basicConfig()
        from lifesign.vllm_plugin import register
        register()
        print("alive")
    """
    done = run_python(code, PYTHONPATH=SRC, LIFESIGN_PATIENCE="true")
    assert done.stderr.count("vLLM is left as it is") == 1
    done = run_python(code, PYTHONPATH=SRC, LIFESIGN_PATIENCE="1")
    assert done.stdout.strip() == "alive"
    assert done.stderr.count("vLLM is left as it is") == 1


# The shim


def test_a_foreign_python_finds_the_entry_point_and_nothing_else_of_ours(tmp_path: Path) -> None:
    environment = shimmed_environment({"PYTHONPATH": "/somewhere"}, tmp_path / "shim")
    code = """
        import importlib.metadata as m, json, sys
        points = m.entry_points(group="vllm.general_plugins")
        names = [p.name for p in points if p.name == "lifesign"]
        print(json.dumps([names, [p for p in points if p.name == "lifesign"][0].load().__name__, m.version("lifesign")]))
    """
    done = run_python(code, PYTHONPATH=environment["PYTHONPATH"])
    assert json.loads(done.stdout) == [["lifesign"], "register", lifesign.__version__]
    assert environment["PYTHONPATH"].endswith(os.pathsep + "/somewhere")
    assert sorted(os.listdir(tmp_path / "shim")) == ["lifesign", f"lifesign-{lifesign.__version__}.dist-info"]
    again = shimmed_environment(environment, tmp_path / "shim")
    assert again == environment, "writing twice changes nothing"


def test_a_shim_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="Name a folder that can be written"):
        write_shim(tmp_path / "file" / "shim")


# Stacks


ARMED = """
    import time
    from lifesign.vllm_plugin.stacks import answer_dump_requests
    answer_dump_requests()
    def a_function_of_the_test():
        print("armed", flush=True)
        time.sleep(60)
    a_function_of_the_test()
"""


def test_the_signal_is_sent_only_to_those_that_catch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    with child("import time; time.sleep(60)") as pid:
        lines = stacks.stacks_of([pid])
        time.sleep(0.1)
        assert not stacks.catches_dump_signal(pid)
        assert stacks.state_of(pid) in ("S", "R"), "a process without a handler must survive being asked"
        assert any(f"thread {pid} " in line for line in lines)


def test_an_armed_worker_prints_its_own_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    said = tmp_path / "stderr"
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(ARMED)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": SRC},
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"armed\n"
        assert stacks.catches_dump_signal(process.pid)
        assert "its Python stacks are printed" in stacks.stacks_of([process.pid])[0]
        deadline_s = time.monotonic() + 20.0
        while b"a_function_of_the_test" not in said.read_bytes() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert b"a_function_of_the_test" in said.read_bytes()


@pytest.mark.skipif(stacks.find_py_spy() is None, reason="py-spy is not installed")
def test_py_spy_shows_a_stopped_process_too() -> None:
    with child("def stuck_here():\n    import time; time.sleep(60)\nstuck_here()") as pid:
        os.kill(pid, signal.SIGSTOP)
        began_s = time.monotonic()
        text = "\n".join(stacks.stacks_of([pid]))
        assert time.monotonic() - began_s < stacks.BUDGET_S + stacks.PY_SPY_TIMEOUT_S
        if "py-spy:" not in text.splitlines()[0]:
            pytest.skip("py-spy may not read other processes here")
        assert "stuck_here" in text


def test_a_process_that_is_gone_is_one_line() -> None:
    assert stacks.stacks_of([2**22 - 3]) != []


def test_threads_that_do_the_same_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    code = """
        import threading, time
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print("up", flush=True)
        while True:
            pass
    """
    with child(code) as pid:
        time.sleep(0.5)
        lines = stacks.stacks_of([pid])
    assert f"{pid} " in lines[1], "the main thread comes first"
    alike = [line for line in lines if " and 16 more: state S" in line or " and 17 more: state S" in line]
    assert alike, lines
    assert len(lines) <= 6


def test_what_a_process_calls_itself_cannot_write_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    code = """
        import ctypes, time
        ctypes.CDLL(None).prctl(15, b"a\\x1b[31m\\nb", 0, 0, 0)
        print("named", flush=True)
        time.sleep(60)
    """
    with child(code) as pid:
        time.sleep(0.3)
        text = "".join(stacks.stacks_of([pid]))
    assert "\x1b" not in text


# Assembly


def test_workers_are_named_by_rank_and_pid() -> None:
    proc = type("Proc", (), {"pid": os.getpid()})()
    executor = type("Executor", (), {"workers": [type("Handle", (), {"rank": 3, "proc": proc})(), object()]})()
    found = workers_of(executor)
    assert [(worker.rank, worker.pid) for worker in found] == [(3, os.getpid())]
    assert found[0].start_ticks > 0
    assert workers_of(object()) == []


def test_what_a_restart_costs_is_measured_and_bounded() -> None:
    assert seconds_since_start(os.getpid()) > 0.0
    assert seconds_since_start(2**22 - 3) == 0.0
    assert 5.0 <= restart_cost_s() <= 3600.0


def test_compilers_below_a_worker_are_found(tmp_path: Path) -> None:
    fake = tmp_path / "cc1plus"
    fake.write_bytes(Path("/bin/sleep").read_bytes())
    fake.chmod(0o755)
    with child(
        f"import subprocess, time\nsubprocess.Popen(['{fake}', '30'])\nsubprocess.Popen(['sleep', '30'])\ntime.sleep(30)"
    ) as pid:
        for _ in range(50):
            found = compilers_of(pid)
            if found:
                break
            time.sleep(0.1)
        names = [Path(f"/proc/{one}/comm").read_text().strip() for one in found]
        for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(one), signal.SIGKILL)
    assert names == ["cc1plus"]


# Series


def series_of(collector: BeaconCollector) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in collector.collect():
        for sample in family.samples:
            labels = ",".join(v for k, v in sorted(sample.labels.items()) if k != "engine_pid")
            found[sample.name + (f"/{labels}" if labels else "")] = sample.value
    return found


def test_series_show_a_running_step_and_its_age(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    beacon = BeaconWriter("cpu", tmp_path)
    beacon.step_started(64, 80, 5.0, 1.5)
    time.sleep(0.05)
    found = series_of(BeaconCollector(tmp_path, frozenset({os.getpid()})))
    assert found["lifesign_engine_state/stepping"] == 1.0
    assert found["lifesign_engine_state/dead"] == 0.0
    assert found["lifesign_step_sequences"] == 64
    assert found["lifesign_step_tokens"] == 80
    assert found["lifesign_step_age_seconds"] >= 0.05
    assert found["lifesign_step_limit_seconds"] == 5.0
    assert found["lifesign_stuck_rank"] == -1
    beacon.step_done()
    found = series_of(BeaconCollector(tmp_path, frozenset({os.getpid()})))
    assert found["lifesign_steps_done_total"] == 1
    assert found["lifesign_step_age_seconds"] == 0
    beacon.close()


def test_series_of_strangers_and_of_rubbish_are_not_shown(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    beacon = BeaconWriter("cpu", tmp_path)
    (tmp_path / "12345678.beacon").write_bytes(b"rubbish")
    (tmp_path / "name.beacon").write_bytes(b"")
    assert "lifesign_steps_done_total" not in series_of(BeaconCollector(tmp_path, frozenset({2**22 - 3})))
    assert BeaconCollector(tmp_path / "absent", frozenset()).readings() == []
    beacon.close()


# The in-process executor


class FakeUniProc:
    """As much of vLLM's in-process executor as is wrapped."""

    def __init__(self) -> None:
        self.answer: Any = None

    def _init_executor(self) -> None:
        return

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False
    ) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_in_process_steps_are_in_the_beacon(tmp_path: Path) -> None:
    cls = type("Fresh", (FakeUniProc,), {})
    wrap_uniproc(cls)
    wrap_uniproc(cls)
    executor = cls()
    beacon = BeaconWriter("cpu", tmp_path)
    beacon.set_workers([Worker(0, os.getpid())])
    executor.__dict__["_lifesign_beacon"] = Steps(beacon, StepCost("cpu"))
    scheduled = type("S", (), {"num_scheduled_tokens": {"a": 5}, "total_num_scheduled_tokens": 5})()

    def reading() -> Any:
        found = read_beacon(beacon.path)
        assert found is not None
        return found

    executor.answer = None
    assert executor.collective_rpc("execute_model", args=(scheduled,)) is None
    assert reading().stepping
    assert reading().step_tokens == 5
    later: Future[Any] = Future()
    executor.answer = later
    future = executor.collective_rpc("sample_tokens", args=(None,))
    assert future is later
    assert reading().stepping, "the step ends when its result is asked for"
    later.set_result("tokens")
    assert future.result() == "tokens"
    assert not reading().stepping
    assert reading().state is BeaconState.IDLE
    executor.answer = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        executor.collective_rpc("execute_model", args=(scheduled,))
    assert not reading().stepping
    executor.answer = "other"
    assert executor.collective_rpc("list_loras") == "other"
    assert reading().steps_started == 2
    beacon.close()


SCHEDULED = type("S", (), {"num_scheduled_tokens": {"a": 5}, "total_num_scheduled_tokens": 5})()


def in_process(tmp_path: Path) -> tuple[Any, BeaconWriter, Steps]:
    cls = type("Fresh", (FakeUniProc,), {})
    wrap_uniproc(cls)
    executor = cls()
    beacon = BeaconWriter("cpu", tmp_path)
    steps = executor.__dict__["_lifesign_beacon"] = Steps(beacon, StepCost("cpu"))
    return executor, beacon, steps


def broken(*args: Any, **more: Any) -> Any:
    raise KeyError("a bug of ours")


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("beacon", "step_started"),
        ("cost", "suspect_limit_s"),
        ("beacon", "step_done"),
        ("cost", "observe"),
        ("module", "step_size"),
        ("module", "ends_step"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_fault_of_ours_in_a_step_changes_nothing_for_vllm(
    where: str,
    name: str,
    later: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from lifesign.vllm_plugin import uniproc

    executor, beacon, _ = in_process(tmp_path)
    monkeypatch.setattr({"beacon": beacon, "cost": StepCost, "module": uniproc}[where], name, broken)
    for number in range(3):
        future: Future[Any] = Future()
        executor.answer = future if later else f"tokens {number}"
        answer = executor.collective_rpc("execute_model", args=(SCHEDULED,))
        assert answer is executor.answer
        if later:
            future.set_result(f"tokens {number}")
            assert answer.result() == f"tokens {number}"
    executor.answer = ValueError("vLLM's own")
    with pytest.raises(ValueError, match="vLLM's own"):
        executor.collective_rpc("execute_model", args=(SCHEDULED,))
    assert caplog.text.count("no progress beacon from now on") == 1
    assert not beacon.path.exists(), "a step that it shows would never end"


def test_a_fault_of_ours_does_not_hide_an_error_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, beacon, _ = in_process(tmp_path)
    monkeypatch.setattr(beacon, "abandon", broken)
    executor.answer = ValueError("vLLM's own")
    with pytest.raises(ValueError, match="vLLM's own"):
        executor.collective_rpc("execute_model", args=(SCHEDULED,))


@pytest.mark.parametrize("end", ["error", "cancelled", "late error", "asked too early"])
def test_a_step_that_ends_with_an_error_is_not_shown_as_running(end: str, tmp_path: Path) -> None:
    executor, beacon, steps = in_process(tmp_path)
    future: Future[Any] = Future()
    executor.answer = future
    if end == "error":
        future.set_exception(ValueError("vLLM's own"))
    elif end == "cancelled":
        future.cancel()
    answer = executor.collective_rpc("execute_model", args=(SCHEDULED,))
    assert answer is future
    if end == "late error":
        future.set_exception(ValueError("vLLM's own"))
        with pytest.raises(ValueError, match="vLLM's own"):
            answer.result()
    elif end == "asked too early":
        with pytest.raises(Exception):  # noqa: B017, PT011 - TimeoutError is another class in Python 3.10
            answer.result(0.0)
    reading = read_beacon(beacon.path)
    assert reading is not None
    assert reading.stepping == (end == "asked too early")
    assert reading.steps_done == (0 if reading.stepping else 1)
    assert steps.noting
    beacon.close()


@pytest.mark.parametrize("name", ["begin_beacon", "_attach_steps"])
def test_a_fault_of_ours_does_not_keep_an_engine_from_starting(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lifesign.vllm_plugin import hooks, uniproc

    hooks.leave_alone.cache_clear()
    beacon = BeaconWriter("cpu", tmp_path)
    monkeypatch.setattr(uniproc, "begin_beacon", lambda: beacon)
    monkeypatch.setattr(uniproc, name, broken)
    begun: list[Any] = []
    cls = type("Fresh", (FakeUniProc,), {"_init_executor": lambda self: begun.append(self)})
    wrap_uniproc(cls)
    executor = cls()
    executor._init_executor()
    assert begun == [executor]
    assert caplog.text.count("vLLM is left as it is") == 1
    executor.answer = "tokens"
    assert executor.collective_rpc("execute_model", args=(SCHEDULED,)) == "tokens"
    assert beacon.path.exists() == (name == "begin_beacon"), "one that stays at STARTING misleads whoever reads it"
    beacon.withdraw()
    beacon.withdraw()
