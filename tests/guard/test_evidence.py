"""The collectors: what they find, what they hide, and that hostile input costs neither time nor secrets."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lifesign.guard import procs
from lifesign.guard.blackbox import capture_in_background
from lifesign.guard.evidence import kernel, memory, redact, requests, stacks, versions
from lifesign.guard.helpers import HelperResult, Helpers
from lifesign.guard.life import Life

from .harness import wait_until


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("OPENAI_API_KEY", True),
        ("--api-key", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("DB_PASSWORD", True),
        ("--max-num-batched-tokens", False),
        ("--tokenizer", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("VLLM_WORKER_MULTIPROC_METHOD", False),
        ("MAX_TOKENS", False),
    ],
)
def test_secret_names(name: str, secret: bool) -> None:
    assert redact.is_secret_name(name) is secret


def test_secrets_leave_neither_environment_nor_command() -> None:
    secret = "hf_" + "a1B2" * 8
    shown = redact.redact_environment(
        {"HF_TOKEN": secret, "URL": f"http://u:{'p' * 12}@h/", "PLAIN": secret, "OK": "1"}
    )
    assert secret not in str(shown)
    assert "pppp" not in str(shown)
    assert shown["OK"] == "1"
    command = redact.redact_command(
        ["vllm", "serve", "m", "--api-key", "k1", "k2", "--hf-token=abc", "--max-num-seqs", "4"]
    )
    assert command[4:6] == ["<redacted: 2 characters>"] * 2
    assert "abc" not in " ".join(command)
    assert command[-2:] == ["--max-num-seqs", "4"]


def test_prompts_are_cut_and_the_rest_of_the_line_stays() -> None:
    line = "INFO Received request cmpl-1: prompt: 'my secret story', params: SamplingParams(n=1), prompt_token_ids: [1, 2, 3], lora_request: None.\n"
    shown = redact.redact_line(line)
    assert "secret story" not in shown
    assert "[1, 2, 3" not in shown
    assert "params: SamplingParams(n=1)" in shown
    assert "15 characters of a prompt" in shown
    assert redact.redact_line(line, keep_prompts=True) == line
    plain = "ERROR torch.OutOfMemoryError: CUDA out of memory.\r\n"
    assert redact.redact_line(plain) == plain


def test_hostile_lines_cost_no_time() -> None:
    started = time.process_time()
    for text in (
        "hf_" * 100_000,
        "://" + "a:" * 200_000,
        "prompt: '" * 50_000,
        "eyJ" + "." * 300_000,
        "Bearer " * 60_000,
    ):
        assert len(redact.redact_line(text)) < 40_000
        requests.in_flight(["Dumping scheduler output " + "req_id=" * 60_000 + text, "Received request " + text])
    assert time.process_time() - started < 5.0


KERNEL_LINES = [
    b"4,1201,99000111,-;Memory cgroup out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB\n SUBSYSTEM=x\n",
    b"4,1202,99000222,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n",
    b"6,1203,99000333,-;usb 1-1: new device\n",
]


def test_kernel_records_become_lines_and_events() -> None:
    lines = [kernel.format_record(record) for record in KERNEL_LINES]
    report = kernel.report_of(lines)
    assert report.xids == (kernel.Xid(79, "0000:3b:00", 4242, 0.0),)
    assert report.oom_kills == ((4242, "VLLM::Worker_TP"),)
    assert lines[0].startswith("[   99.000111] Memory cgroup out of memory")
    assert kernel.format_record(b"garbage") == ""
    assert kernel.report_of(["NVRM: Xid (PCI:" + "0" * 100_000]).xids == ()


class Device:
    """/dev/kmsg as the kernel serves it: one record a read, EAGAIN at the end; an errno in the list is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[bytes | int] = []
        self.now_s = 0.0
        monkeypatch.setattr(kernel.os, "read", self.read)
        self.tail = kernel.KernelTail(lambda: self.now_s, _fd=1_000_000)

    def read(self, fd: int, size: int) -> bytes:
        assert fd == 1_000_000
        if not self.records:
            raise BlockingIOError
        record = self.records.pop(0)
        if isinstance(record, int):
            raise OSError(record, os.strerror(record))
        return record

    def say(self, text: str) -> None:
        self.records.append(f"4,1,{int(self.now_s * 1e6)},-;{text}\n".encode())


def test_the_last_message_is_heard_however_much_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    for index in range(2500):
        device.say(f"noise {index}")
    device.say("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    device.say("Out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB")
    report = device.tail.read(Helpers())
    assert [one.number for one in report.xids] == [79]
    assert report.oom_kills == ((4242, "VLLM::Worker_TP"),)
    assert report.note == ""
    assert len(report.lines) == kernel.MAX_LINES
    assert report.dropped == 2502 - kernel.MAX_LINES
    assert "Killed process" in report.lines[-1]
    assert report.lines[0].endswith("noise 502"), "what had to go is the oldest"


def test_an_early_message_outlives_the_noise_and_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device.now_s = 10.0
    device.say("NVRM: Xid (0000:3b:00): 48, pid=77, An uncorrectable double bit error")
    device.tail.drain()
    device.now_s = 500.0
    for index in range(3 * kernel.RECORDS_PER_DRAIN):
        device.say(f"noise {index}")
    device.tail.drain()
    assert len(device.records) == 2 * kernel.RECORDS_PER_DRAIN, "one tick has a bound"
    report = device.tail.read(Helpers())
    assert report.xids == (kernel.Xid(48, "0000:3b:00", 77, 10.0),)
    assert "Xid" in report.lines[0]
    assert report.note == ""


@pytest.mark.parametrize(
    ("number", "word"), [(errno.EPIPE, "missed"), (errno.EINVAL, "missed"), (errno.EIO, "broke off")]
)
def test_what_was_missed_is_said(monkeypatch: pytest.MonkeyPatch, number: int, word: str) -> None:
    device = Device(monkeypatch)
    device.records.append(number)
    device.say("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    device.tail.drain()
    device.tail.drain()
    report = device.tail.read(Helpers())
    assert word in report.note
    assert [one.number for one in report.xids] == [79], "reading goes on"


def test_a_kernel_that_never_stops_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.os, "read", lambda fd, size: b"6,1,1000000,-;again\n")
    report = kernel.KernelTail(lambda: 0.0, _fd=1_000_000).read(Helpers())
    assert "without end" in report.note
    assert report.dropped == kernel.RECORDS_AT_END - kernel.MAX_LINES


def test_dmesg_in_its_place_tells_of_the_end_and_of_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    tool = tmp_path / "dmesg"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def told(first_s: float) -> kernel.KernelReport:
        lines = [f"[{first_s:12.6f}] NVRM: Xid (PCI:0000:01:00): 48, old"]
        lines += [f"[{now_s + 5:12.6f}] noise {index}" for index in range(3000)]
        lines.append(f"[{now_s + 9:12.6f}] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
        (tmp_path / "said").write_text("\n".join(lines) + "\n")
        tool.write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
        tool.chmod(0o755)
        return kernel.KernelTail(_error="No such file", _opened_s=now_s).read(Helpers())

    whole = told(now_s - 60)
    assert [(one.number, one.pci) for one in whole.xids] == [(79, "0000:3b:00")]
    assert whole.note == ""
    assert whole.lines[-1].endswith("fallen off the bus.")
    wrapped = told(now_s + 4)
    assert "overwritten" in wrapped.note


def test_a_device_is_the_same_however_it_is_written() -> None:
    for text in ("0000:3b:00", "00000000:3B:00.0", "0000:3B:00.0", "3b:00.0"):
        assert kernel.pci_address(text) == "0000:3b:00"
    assert kernel.pci_address("0001:3b:00") != kernel.pci_address("0000:3b:00")


def test_without_the_kernel_log_the_note_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    tail = kernel.KernelTail(_error="Permission denied")
    report = tail.read(Helpers())
    assert "CAP_SYSLOG" in report.note
    assert report.lines == ()


def test_memory_of_both_cgroup_versions(tmp_path: Path) -> None:
    v2 = tmp_path / "v2"
    v2.mkdir()
    (v2 / "memory.max").write_text("max\n")
    (v2 / "memory.current").write_text("1024\n")
    (v2 / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\n")
    before = memory.read_memory(v2)
    assert before["memory.max"] == "max"
    assert before["events.oom_kill"] == 2
    (v2 / "memory.events").write_text("oom_kill 3\n")
    assert memory.oom_kills(before, memory.read_memory(v2)) == 1
    v1 = tmp_path / "v1"
    v1.mkdir()
    (v1 / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert memory.read_memory(v1)["events.oom_kill"] == 5
    assert memory.oom_kills({}, {}) == 0
    assert memory.read_memory(None) == {}


def test_only_kills_near_the_end_of_a_life_explain_it(tmp_path: Path) -> None:
    """A compiler that was killed during the start is no reason for a worker's SIGKILL hours later."""
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 2\n")
    before = memory.read_memory(tmp_path)
    watch = memory.OomWatch(tmp_path)
    watch.look(0.0)
    events.write_text("oom_kill 3\n")
    watch.look(1.0)
    watch.look(10.0)
    late = watch.complete(memory.read_memory(tmp_path), 7200.0)
    assert late["events.oom_kill"] == 3
    assert memory.oom_kills(before, late) == 0
    assert memory.oom_kills(before, watch.complete(memory.read_memory(tmp_path), 10.0 + memory.NEAR_S)) == 1
    events.write_text("oom_kill 5\n")
    assert memory.oom_kills(before, watch.complete(memory.read_memory(tmp_path), 7200.0)) == 2, "the last moment counts"
    assert memory.oom_kills({}, memory.read_memory(tmp_path)) == 0, "without a first reading nothing is known"
    nothing = memory.OomWatch(None)
    nothing.look(0.0)
    assert nothing.complete({}, 1.0) == {}


DUMP = (
    "(EngineCore pid=1) ERROR 11-30 09:22:18 [dump_input.py:79] Dumping scheduler output for model execution: "
    "SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id={id},prompt_token_ids_len={n},prefill_token_ids_len=None,"
    "mm_features=[],sampling_params=SamplingParams(n=1, temperature={t}), block_ids=([1],))], "
    "scheduled_cached_reqs=CachedRequestData(req_ids=[{cached}], resumed=[]))"
)


def test_a_request_is_recognised_by_the_clients_id_its_text_or_its_shape() -> None:
    chosen = requests.in_flight([DUMP.format(id="cmpl-order-77-0-aaaabbbb", n=5, t=1, cached="")])
    assert list(chosen.values()) == ["id:cmpl-order-77-0"]
    again = requests.in_flight([DUMP.format(id="cmpl-order-77-0-ccccdddd", n=5, t=1, cached="")])
    assert list(again.values()) == list(chosen.values())
    shape = [
        requests.in_flight([DUMP.format(id=f"cmpl-{'0' * 15}{index}-0-aaaabbb{index}", n=900, t=0.5, cached="")])
        for index in (1, 2)
    ]
    assert list(shape[0].values()) == list(shape[1].values())
    assert next(iter(shape[0].values())).startswith("shape:900 tokens:")
    other = requests.in_flight([DUMP.format(id=f"cmpl-{'0' * 16}-0-aaaabbbb", n=900, t=0.7, cached="")])
    assert list(other.values()) != list(shape[0].values())


def test_logged_text_beats_shape_and_never_shows() -> None:
    lines = [
        "INFO Received request cmpl-0000000000000001-0: prompt: 'poisonous words', params: SamplingParams(n=1), lora_request: None.",
        DUMP.format(id="cmpl-0000000000000001-0-aaaabbbb", n=900, t=1, cached="'cmpl-f00-0-12345678'"),
    ]
    found = requests.in_flight(lines)
    assert found["cmpl-0000000000000001-0-aaaabbbb"].startswith("text:")
    assert "cmpl-f00-0-12345678" in found
    assert "poison" not in str(found)
    assert requests.in_flight(["nothing here"]) == {}


@pytest.fixture
def sleeper() -> object:
    process = subprocess.Popen([sys.executable, "-c", "import time\ndef here(): time.sleep(60)\nhere()"])
    yield process
    process.kill()
    process.wait()


def test_stacks_of_a_running_and_of_a_stopped_process(sleeper: subprocess.Popen[bytes]) -> None:
    proc = procs.identify(sleeper.pid)
    assert proc is not None
    helpers = Helpers()
    deadline = time.monotonic() + 10
    while "here" not in (text := dict(stacks.python_stacks(helpers, [proc]))[proc]) and time.monotonic() < deadline:
        if "no Python stack" in text and "ermission" in text:
            pytest.skip("py-spy may not look here")
    assert "here" in text
    os.kill(sleeper.pid, signal.SIGSTOP)
    while (stat := procs.read_stat(sleeper.pid)) is not None and stat.state != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    view = stacks.kernel_view(proc)
    assert "state T" in view
    assert "wchan" in view
    os.kill(sleeper.pid, signal.SIGCONT)


def test_without_pyspy_the_text_says_so(monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    proc = procs.identify(sleeper.pid)
    assert proc is not None
    assert "pip install" in dict(stacks.python_stacks(Helpers(), [proc]))[proc]
    assert "ended" in stacks.kernel_view(procs.ProcId(sleeper.pid, 1))


class PySpy:
    """Stands in for the tool: hangs for some processes until it is let go, answers at once for the others."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, hanging: set[int], states: dict[int, str] | None = None
    ) -> None:
        self.hanging, self.calls = hanging, {}
        self.let_go = threading.Event()
        self.now_s = 0.0

        def stat(pid: int) -> object:
            return procs.Stat(pid, "python", (states or {}).get(pid, "S"), 1, 1, 1, 1, 0, 0)

        monkeypatch.setattr(stacks, "find_py_spy", lambda: "/bin/py-spy")
        monkeypatch.setattr(stacks.procs, "read_stat", stat)

    def run(self, argv: list[str], timeout_s: float) -> HelperResult:
        pid = int(argv[argv.index("--pid") + 1])
        self.calls[pid] = (argv, timeout_s)
        if pid in self.hanging:
            assert self.let_go.wait(30), "nobody took the good stack in the meantime"
            return HelperResult(None, "", "py-spy gave no answer")
        return HelperResult(0, f"Thread {pid}: here\n")

    def ask(self, pids: list[int]) -> Iterator[tuple[procs.ProcId, str]]:
        tool: Any = self
        return stacks.python_stacks(tool, [procs.ProcId(pid, 1) for pid in pids], lambda: self.now_s)


def test_a_stack_is_there_before_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = PySpy(monkeypatch, set(range(1, 10)))
    told = spy.ask(list(range(1, 11)))
    proc, text = next(told)  # nine hang: the tenth must come all the same
    assert (proc.pid, text) == (10, "Thread 10: here\n")
    spy.let_go.set()
    rest = dict(told)
    assert len(rest) == 9
    assert all(text.startswith("no Python stack: py-spy gave no answer") for text in rest.values())


def test_all_stacks_together_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = PySpy(monkeypatch, set())
    told = spy.ask([1, 2, 3])
    next(told)
    assert spy.calls[1][1] == stacks.PYSPY_TIMEOUT_S
    list(told)
    late = PySpy(monkeypatch, set())
    times = iter([0.0, stacks.STACKS_S - 1.0, stacks.STACKS_S - 0.1])
    tool: Any = late
    monkeypatch.setattr(stacks, "MAX_PARALLEL", 1)
    got = dict(stacks.python_stacks(tool, [procs.ProcId(1, 1), procs.ProcId(2, 1)], lambda: next(times)))
    assert late.calls[1][1] == 1.0
    assert 2 not in late.calls
    assert "no time left" in got[procs.ProcId(2, 1)]


def test_what_is_in_the_kernel_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {1: "S", 2: "T", 3: "t", 4: "D", 5: "R", 6: "Z"}
    spy = PySpy(monkeypatch, set(), states)
    got = dict(spy.ask(list(states)))
    assert {pid for pid, (argv, _) in spy.calls.items() if "--nonblocking" in argv} == {2, 3, 4}
    assert set(spy.calls) == {1, 2, 3, 4, 5}
    assert "has ended" in got[procs.ProcId(6, 1)]


def test_a_capture_cut_off_holds_what_was_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spy = PySpy(monkeypatch, {1})
    life = Life("1-x", 1, procs.ProcId(1, 1), lambda: 0.0)
    for pid in (1, 2):
        life.join(procs.ProcId(pid, 1), 1, "worker", f"Worker_TP{pid}")
    tool: Any = spy
    capture = capture_in_background(tool, life, tmp_path, "test", engine_url=None, clock=lambda: 0.0)
    good = tmp_path / "stacks" / "Worker_TP2-2.txt"
    wait_until(lambda: good.exists() and good.read_text(), "the stack that was ready", 20.0)
    assert good.read_text() == "Thread 2: here\n"
    assert not capture.done.is_set(), "the other one still hangs"
    spy.let_go.set()
    assert capture.done.wait(30)
    assert capture.no_stack == [procs.ProcId(1, 1)]


def test_faulthandler_is_used_only_where_it_is_on() -> None:
    code = "import sys, time\nprint('up', flush=True)\ntime.sleep(60)"
    for options, works in ((["-X", "faulthandler"], True), ([], False)):
        process = subprocess.Popen(
            [sys.executable, *options, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        proc = procs.identify(process.pid)
        assert proc is not None
        assert stacks.abort_for_stack(proc) is works
        if not works:
            assert process.poll() is None
            process.kill()
        _, errors = process.communicate(timeout=10)
        assert (b"Fatal Python error: Aborted" in errors) is works


def test_versions_come_from_the_engines_own_python(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\nprint()\n")
    script.chmod(0o755)
    assert versions.interpreter_of([str(script)]) == sys.executable
    found = versions.versions(Helpers(), [str(script), "serve"])
    assert found["engine"]["executable"] == sys.executable
    assert versions.interpreter_of(["/bin/true"]) is None
    assert "note" in versions.versions(Helpers(), ["/bin/true"])
