"""The probe against a /proc of our own making, where every counter is known, and against a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from lifesign.guard.probes.process import ProcessProbe, Target, is_frozen
from lifesign.guard.probes.stacks import StackProbe, fingerprints


class FakeProc:
    """A /proc with one process whose threads can be moved on."""

    def __init__(self, root: Path, pid: int = 7) -> None:
        self.root, self.pid = root, pid
        self.threads: dict[str, list[int]] = {}
        self.state, self.start_ticks, self.tracer = "R", 1000, 0
        self.schedstat = True

    def thread(self, name: str, run_ms: int, wait_ms: int, faults: int = 0, switches: int = 0) -> None:
        old = self.threads.setdefault(name, [0, 0, 0, 0])
        self.threads[name] = [a + b for a, b in zip(old, (run_ms, wait_ms, faults, switches), strict=True)]

    def write(self) -> None:
        base = self.root / str(self.pid)
        base.mkdir(exist_ok=True)
        (base / "stat").write_text(self.stat(self.state, 0, 0))
        (base / "status").write_text(f"Name:\tx\nTracerPid:\t{self.tracer}\n")
        (base / "io").write_text("rchar: 1\nread_bytes: 0\nwrite_bytes: 0\n")
        for name, (run_ms, wait_ms, faults, switches) in self.threads.items():
            where = base / "task" / name
            where.mkdir(parents=True, exist_ok=True)
            (where / "stat").write_text(self.stat(self.state, faults, run_ms))
            (where / "status").write_text(
                f"Name:\tx\nnonvoluntary_ctxt_switches:\t99\nvoluntary_ctxt_switches:\t{switches}\n"
            )
            if self.schedstat:
                (where / "schedstat").write_text(f"{run_ms * 1_000_000} {wait_ms * 1_000_000} 5\n")

    def stat(self, state: str, faults: int, run_ms: int) -> str:
        ticks = run_ms * os.sysconf("SC_CLK_TCK") // 1000
        fields = [state, "1", "1", "1", "0", "-1", "0", str(faults), "0", "3", "0", str(ticks), "0"]
        fields += ["0", "0", "20", "0", "1", "0", str(self.start_ticks), "0", "0"]
        return f"{self.pid} (odd ) name) " + " ".join(fields)


def test_counts_busy_threads_alone(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.thread("7", 0, 0)
    proc.thread("8", 0, 0, switches=500)
    proc.write()
    probe = ProcessProbe(proc=str(tmp_path))
    target = [Target(7, "worker", 1)]
    assert probe.sample(target, 0.0)[0].window_s == 0.0
    for second in range(1, 4):
        proc.thread("7", 400, 500, faults=100, switches=1)
        proc.thread("8", 1, 1, switches=50)  # a heartbeat
        proc.write()
        signals = probe.sample(target, float(second))[0]
    assert signals.window_s == 3.0
    assert round(signals.run_s, 3) == 1.203
    assert round(signals.wait_s, 3) == 1.503
    assert round(signals.cpu_s, 3) == 1.2
    assert (signals.faults, signals.switches, signals.busy_threads) == (300, 3, 1)
    assert (signals.role, signals.rank, signals.state) == ("worker", 1, "R")


def test_a_new_step_cuts_the_window(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.thread("7", 0, 0)
    proc.write()
    probe = ProcessProbe(proc=str(tmp_path))
    probe.sample([Target(7)], 0.0)
    proc.thread("7", 900, 0, faults=1000)
    proc.write()
    assert probe.sample([Target(7)], 1.0)[0].faults == 1000
    probe.begin(1.5)
    proc.thread("7", 900, 0, faults=1000)
    proc.write()
    # The interval that straddles the beginning belongs to both steps: it says nothing.
    assert probe.sample([Target(7)], 2.0)[0].window_s == 0.0
    proc.thread("7", 900, 0)
    proc.write()
    signals = probe.sample([Target(7)], 3.0)[0]
    assert (signals.window_s, signals.faults) == (1.0, 0)


def test_a_reused_pid_is_somebody_else(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.thread("7", 0, 0)
    proc.write()
    probe = ProcessProbe(proc=str(tmp_path))
    assert probe.sample([Target(7, start_ticks=1000)], 0.0)[0].state == "R"
    proc.start_ticks = 2000
    proc.write()
    assert probe.sample([Target(7, start_ticks=1000)], 1.0)[0].state == "X"
    assert probe.sample([Target(7)], 2.0)[0].state == "X"
    assert probe.sample([Target(9999)], 2.0)[0].state == "X"


def test_without_schedstat_the_wait_is_unknown(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.schedstat = False
    proc.thread("7", 0, 0)
    proc.write()
    probe = ProcessProbe(proc=str(tmp_path))
    probe.sample([Target(7)], 0.0)
    proc.thread("7", 500, 0)
    proc.write()
    signals = probe.sample([Target(7)], 1.0)[0]
    assert round(signals.run_s, 2) == 0.5
    assert signals.wait_s == 0.0
    assert not probe.waits_known


def test_a_debugger_is_seen(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.thread("7", 0, 0)
    proc.state, proc.tracer = "T", 55
    proc.write()
    probe = ProcessProbe(proc=str(tmp_path))
    signals = probe.sample([Target(7)], 0.0)[0]
    assert (signals.state, signals.traced) == ("T", True)
    proc.tracer = 0
    proc.write()
    assert not probe.sample([Target(7)], 1.0)[0].traced


def test_stacks_of_busy_threads_count(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.thread("7", 0, 0)
    proc.thread("8", 0, 0)
    proc.write()
    probe = ProcessProbe(proc=str(tmp_path))
    probe.sample([Target(7)], 0.0)
    for second, mark in enumerate((1, 1, 1), start=1):
        probe.saw_stacks(7, {"7": mark, "8": second}, second - 0.5)
        proc.thread("7", 900, 0)
        proc.write()
        signals = probe.sample([Target(7)], float(second))[0]
    assert (signals.stacks, signals.stack_looks) == (1, 3)
    probe.saw_stacks(7, {"7": 2}, 3.5)
    proc.thread("7", 900, 0)
    proc.write()
    assert probe.sample([Target(7)], 4.0)[0].stacks == 2


def test_fingerprints_ignore_lines_and_survive_rubbish() -> None:
    def dump(line: int, name: str) -> bytes:
        return f'[{{"os_thread_id": 5, "frames": [{{"filename": "a.py", "name": "{name}", "line": {line}}}]}}]'.encode()

    assert fingerprints(dump(1, "f")) == fingerprints(dump(2, "f"))
    assert fingerprints(dump(1, "f")) != fingerprints(dump(1, "g"))
    for rubbish in (b"", b"{", b"3", b'["x"]', b"[{}]" * 2):
        assert fingerprints(rubbish) == {}


def test_stack_probe_gives_up_on_a_process_that_is_gone() -> None:
    probe = StackProbe()
    if not probe.available:
        assert not probe.request(os.getpid())
        return
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    for _ in range(3):
        assert probe.request(gone.pid)
        end_s = time.monotonic() + 20.0
        while probe._running is not None and time.monotonic() < end_s:
            assert probe.poll() is None
            time.sleep(0.05)
    assert not probe.request(gone.pid)
    probe.close()


def test_stack_probe_takes_more_than_a_pipe_holds(tmp_path: Path) -> None:
    """A worker has dozens of threads with deep stacks: py-spy prints megabytes, and nobody reads while it runs."""
    tool = tmp_path / "py-spy"
    frames = [{"filename": "/usr/lib/python3/site-packages/vllm/x.py", "name": f"f{at}"} for at in range(40)]
    threads = [{"os_thread_id": at, "frames": frames} for at in range(500)]
    (tmp_path / "told.json").write_text(json.dumps(threads))
    assert (tmp_path / "told.json").stat().st_size > 1 << 20
    tool.write_text(f"#!/bin/sh\nexec cat {tmp_path}/told.json\n")
    tool.chmod(0o755)
    probe = StackProbe(str(tool))
    assert probe.request(os.getpid())
    running = probe._running
    assert running is not None
    assert running.wait(3.0) == 0, "it must not wait for us"
    found = probe.poll()
    assert found is not None
    assert (found[0], len(found[1])) == (os.getpid(), 500)
    probe.close()


def test_own_process_is_real() -> None:
    probe = ProcessProbe()
    start_s = time.monotonic()
    probe.sample([Target(os.getpid(), "worker", 0)], start_s)
    total = 0
    while time.process_time() < 0.2 or total < 1:
        total += sum(range(20000))
    signals = probe.sample([Target(os.getpid(), "worker", 0)], max(time.monotonic(), start_s + 0.01))[0]
    assert signals.state == "R"
    assert signals.run_s > 0.0
    assert not is_frozen(os.getpid())
