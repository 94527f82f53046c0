"""The whole guard around a fake engine: deaths, stops, restarts, exit codes, bundles, and nothing left behind."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import zstandard

from lifesign.guard import procs

from .harness import ENGINE, LIFESIGN, PATIENCE_S, guard, wait_until

ROLES = {"api": "signal", "core": "core-died-no-trace", "worker": "worker-died-no-trace"}


@pytest.mark.parametrize("role", ROLES)
def test_a_killed_process_is_named_and_the_engine_serves_again(tmp_path: Path, role: str) -> None:
    with guard(tmp_path, engine_args=("--keep-orphans",) if role == "api" else ()) as run:
        run.serving()
        run.kill(role)
        run.serving(2)
        (incident,) = run.incidents()
        assert incident["cause"]["cause"] == "silent-death"
        assert incident["cause"]["subtype"] == ROLES[role]
        assert incident["decision"]["action"] == "restart"
        (killed,) = [one for one in incident["processes"] if one["signal"] == "SIGKILL" and not one["ended_by_guard"]]
        assert killed["role"] == role
        assert all(one["ended"] for one in incident["processes"])
        assert all(one["exit_code"] is not None or one["signal"] for one in incident["processes"])
        assert incident["exit"]["guard_code"] != 0
        run.stop()
        assert run.wait() == 0, "a clean stop after a restart is the engine's own 0"
        assert run.marked() == []
        assert run.tmps() == []


def test_the_bundle_is_complete_and_the_same_in_the_archive(tmp_path: Path) -> None:
    secret = "hf_" + "Zz9Y" * 8
    with guard(
        tmp_path,
        "--max-restarts",
        "0",
        engine_args=("--die", "worker-exception", "--after", "1.5"),
        env={"HF_TOKEN": secret},
    ) as run:
        assert run.wait() == 1, "vLLM exits 0 after this death; guard never does"
        (incident,) = run.incidents()
        folder = incident["folder"]
        assert incident["complete"] is True
        assert incident["exit"] == {"code": 0, "signal": None, "guard_code": 1}
        assert f"{incident['cause']['cause']}/{incident['cause']['subtype']}" == "device-oom/serving"
        report = incident["report"]
        assert report["schema"] == "lifesign.report/1"
        assert report["verdict"]["cause"] == "device-oom"
        (root,) = [line for line in report["verdict"]["evidence"] if line["role"] == "root"][:1]
        assert "OutOfMemoryError" in (folder / root["path"]).read_text().split("\n")[root["line"] - 1]
        for name in (
            "report.txt",
            "report.md",
            "engine.log",
            "guard.log",
            "environment.json",
            "versions.json",
            "command.txt",
            "requests.json",
        ):
            assert (folder / name).stat().st_size > 0, name
        archive = folder.with_name(folder.name + ".tar.zst")
        with archive.open("rb") as raw:
            content = zstandard.ZstdDecompressor().stream_reader(raw).read()
        assert secret.encode() not in content
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            packed = {name.partition("/")[2] for name in tar.getnames() if "/" in name}
        assert packed == {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_survivors_are_pictured_before_they_are_ended(tmp_path: Path) -> None:
    with guard(tmp_path, "--max-restarts", "0", engine_args=("--keep-orphans",)) as run:
        run.serving()
        run.kill("api")
        assert run.wait() == 128 + signal.SIGKILL
        (incident,) = run.incidents()
        stacks = list(incident["folder"].glob("captures/*/stacks/*.txt"))
        views = list(incident["folder"].glob("captures/*/proc/*.txt"))
        assert {path.name.split("-")[0] for path in views} == {"EngineCore", "Worker_TP"}
        if not any("no Python stack" in line for line in incident["left_out"]):
            assert any("fake_engine" in path.read_text() for path in stacks)
        assert run.marked() == []


@pytest.mark.parametrize(
    ("engine_args", "code", "cause", "action"),
    [
        (("--die", "usage"), 2, "user-config", "stop"),
        (("--die", "model"), 1, "model-load", "stop"),
        (("--die", "quick"), 1, "insufficient-log", "hold"),
        (("--die", "api-exit", "--exit-code", "7"), 7, "", "hold"),
    ],
)
def test_a_permanent_fault_is_not_started_for_ever(
    tmp_path: Path, engine_args: tuple[str, ...], code: int, cause: str, action: str
) -> None:
    with guard(tmp_path, engine_args=engine_args) as run:
        assert run.wait(90) == code
        incidents = run.incidents()
        assert len(incidents) == (1 if action == "stop" else 3), "at most four starts"
        assert incidents[-1]["decision"]["action"] == action
        if cause:
            assert incidents[-1]["cause"]["cause"] == cause
        assert run.marked() == []


def test_a_stop_request_is_no_death(tmp_path: Path) -> None:
    with guard(tmp_path) as run:
        run.serving()
        run.stop()
        assert run.wait() == 0
        assert run.incidents() == []
        assert "died" not in run.said
        assert run.marked() == []


@pytest.mark.parametrize("when", ["starting", "serving"])
def test_an_engine_that_ignores_term_is_gone_within_the_grace_period(tmp_path: Path, when: str) -> None:
    grace_s = 4.0
    args = ("--ignore-term", *(("--start-s", "60") if when == "starting" else ()))
    with guard(tmp_path, "--grace", str(grace_s), engine_args=args) as run:
        if when == "serving":
            run.serving()
        else:
            wait_until(lambda: run.pid("worker", missing=0), "the worker")
        asked = time.monotonic()
        run.stop()
        assert run.wait() == 128 + signal.SIGKILL
        assert time.monotonic() - asked < grace_s + 1.0
        assert run.incidents() == []
        assert run.marked() == []


def test_a_stopped_engine_still_ends_in_time(tmp_path: Path) -> None:
    with guard(tmp_path, "--grace", "4") as run:
        run.serving()
        for role in ("api", "core", "worker"):
            run.kill(role, signal.SIGSTOP)
        run.stop()
        assert run.wait(10) == 128 + signal.SIGKILL
        assert run.marked() == []


def test_a_second_request_ends_patience(tmp_path: Path) -> None:
    with guard(tmp_path, "--grace", "60", engine_args=("--ignore-term",)) as run:
        run.serving()
        run.stop(signal.SIGINT)
        run.wait_for("stopping the engine")
        asked = time.monotonic()
        run.stop(signal.SIGINT)
        run.wait(20)
        assert time.monotonic() - asked < 10


def test_a_server_that_stays_without_its_core_is_a_death(tmp_path: Path) -> None:
    """VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1: the server answers 500 for ever."""
    with guard(tmp_path, "--max-restarts", "0", engine_args=("--stay",), http="127.0.0.1:0") as run:
        run.serving()
        assert run.get("/readyz")[0] == 200
        run.kill("core")
        wait_until(lambda: run.get("/readyz")[0] == 503, "/readyz to turn")
        assert run.wait() == 137
        (incident,) = run.incidents()
        assert incident["trigger"] == "lost"
        assert incident["cause"]["subtype"] == "core-died-no-trace"


def test_pages_tell_state_and_counts(tmp_path: Path) -> None:
    with guard(tmp_path, http="127.0.0.1:0", engine_args=("--start-s", "1.5")) as run:
        assert run.get("/readyz")[0] == 503
        run.serving()
        assert run.get("/readyz") == (200, "ready\n")
        run.kill("worker")
        run.serving(2)
        status, page = run.get("/metrics")
        assert status == 200
        assert 'lifesign_deaths_total{cause="silent-death",subtype="worker-died-no-trace"} 1.0' in page
        assert "lifesign_restarts_total 1.0" in page
        assert 'lifesign_guard_phase{phase="serving"} 1.0' in page
        state = json.loads(run.get("/state")[1])
        assert state["schema"] == "lifesign.state/1"
        assert state["incidents"][0]["cause"] == "silent-death"
        assert run.get("/nothing")[0] == 404


def test_a_taken_port_costs_the_pages_and_nothing_else(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with guard(tmp_path, http=f"127.0.0.1:{port}") as run:
            run.serving()
            assert "is taken by another program" in run.said
            run.stop()
            assert run.wait() == 0


def test_one_guard_per_state_folder(tmp_path: Path) -> None:
    with guard(tmp_path) as run:
        run.serving()
        second = subprocess.run(
            [*LIFESIGN, "guard", "--state-dir", str(run.state), "--http", "off", "--", sys.executable, ENGINE],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert second.returncode == 2
        assert "another guard runs" in second.stderr
        assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        (["/no/such/program"], 2, "no such command"),
        (["/etc/passwd"], 2, "execute bit"),
        (["true"], 0, "without ever being an engine"),
        (["sh", "-c", "exit 127"], 127, "not started again"),
    ],
)
def test_bad_commands_get_one_sentence(tmp_path: Path, command: list[str], code: int, sentence: str) -> None:
    with guard(tmp_path, engine=command) as run:
        assert run.wait() == code
        assert sentence in run.said
        assert "Traceback" not in run.said


READY = "INFO:     Application startup complete."
REFUSES = """
from lifesign.errors import UsageError
from lifesign.guard import session
spawn, calls = session.spawn_engine, []
def refuse(*rest):
    calls.append(1)
    if 1 < len(calls) <= {until}:
        raise UsageError("the system has no room for another process")
    return spawn(*rest)
session.spawn_engine = refuse
"""


def test_a_restart_that_the_system_refuses_is_tried_again(tmp_path: Path) -> None:
    """A death may leave the machine short of processes or memory for a while."""
    script = f"echo '{READY}'; test -e '{tmp_path}/died' && exec sleep 600; touch '{tmp_path}/died'; sleep 1; exit 3"
    with guard(tmp_path, engine=["sh", "-c", script], patch=REFUSES.format(until=3)) as run:
        run.wait_for("the engine serves", 2)
        assert run.said.count("no room for another process") == 2
        assert "Traceback" not in run.said
        assert len(run.incidents()) == 1, "what was never started has not died"
        run.stop()
        assert run.wait() == 143


def test_a_system_that_goes_on_refusing_is_given_up(tmp_path: Path) -> None:
    dies = ("--die", "worker-exception", "--after", "0.3")
    with guard(tmp_path, engine_args=dies, patch=REFUSES.format(until=99)) as run:
        assert run.wait() == 2
        assert run.said.count("no room for another process") == 5
        assert run.life()["ended"] is True
        assert "Traceback" not in run.said
    assert run.tmps() == []


def test_signals_of_the_user_reach_the_engine(tmp_path: Path) -> None:
    script = "import signal,time\nsignal.signal(signal.SIGUSR1, lambda *a: print('got it', flush=True))\nprint('up', flush=True)\nwhile True: time.sleep(0.1)"
    with guard(tmp_path, engine=[sys.executable, "-c", script]) as run:
        wait_until(lambda: "up" in run.shown, "the program")
        run.stop(signal.SIGUSR1)
        wait_until(lambda: "got it" in run.shown, "the signal")


def test_a_terminal_stays_a_terminal_and_bytes_stay_bytes(tmp_path: Path) -> None:
    script = (
        "import os,sys\n"
        "print(sys.stdin.readline().strip(), sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)\n"
        "sys.stdout.write('\\x1b[31mred\\x1b[0m\\rbar\\n')\n"
    )
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 77, 0, 0))
    process = subprocess.Popen(
        [
            *LIFESIGN,
            "guard",
            "--state-dir",
            str(tmp_path / "state"),
            "--http",
            "off",
            "--",
            sys.executable,
            "-c",
            script,
        ],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        os.write(master, b"typed\n")
        data = b""
        while b"nothing to guard" not in data:
            data += os.read(master, 4096)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert b"typed True True 77" in data
    assert b"\x1b[31mred\x1b[0m\rbar\r\n" in data
    (log,) = (tmp_path / "state" / "logs").glob("*/000001.log")
    assert log.read_bytes().endswith(b"\x1b[31mred\x1b[0m\rbar\n")


def test_stdout_and_stderr_stay_apart(tmp_path: Path) -> None:
    with guard(tmp_path, engine=["sh", "-c", "echo to-out; echo to-err >&2"]) as run:
        assert run.wait() == 0
        assert run.shown == "to-out\n"
        assert "to-err" in run.said


def test_remedies_are_applied_one_at_a_time(tmp_path: Path) -> None:
    """The fake engine dies of device memory for ever: the remedy is tried, shown, undone, and the engine is held."""
    with guard(tmp_path, "--apply-remedies", engine_args=("--die", "worker-exception", "--after", "0.2")) as run:
        assert run.wait(120) == 1
        incidents = run.incidents()
        applied = [one["decision"]["apply"] for one in incidents]
        assert applied[0] is None, "a plain restart comes first"
        assert applied[1]
        assert applied[1] in " ".join(incidents[2]["command"])
        assert incidents[2]["decision"]["undo"] == applied[1]
        assert incidents[-1]["decision"]["action"] == "hold"
        assert len(incidents) <= 4


def test_logs_of_lives_that_ended_well_are_pruned_too(tmp_path: Path) -> None:
    """Redeploys and clean stops: without a death nothing else would ever remove them."""
    for start in range(3):
        with guard(
            tmp_path, "--log-keep-mib", "1", engine=[sys.executable, "-c", f"print('{start}' * 1_500_000)"]
        ) as run:
            assert run.wait() == 0
    (folder,) = (tmp_path / "state" / "logs").iterdir()
    assert b"222" in (folder / "000001.log").read_bytes()[:100], "the newest stays, whatever its size"


def test_a_new_command_gets_a_new_budget(tmp_path: Path) -> None:
    with guard(tmp_path, engine_args=("--die", "quick")) as run:
        assert run.wait(90) == 1
        assert len(run.incidents()) == 3
    with guard(tmp_path, engine_args=("--die", "quick")) as run:
        assert run.wait(60) == 1
        assert len(run.incidents()) == 4, "the same command: its budget is spent"
    with guard(tmp_path, engine_args=("--die", "quick", "--noise", "1")) as run:
        assert run.wait(90) == 1
        assert len(run.incidents()) == 7


ORPHANING = """
import os, time
for _ in range(40):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    os.wait()
time.sleep(14)
zombies = 0
for name in os.listdir("/proc"):
    if name.isdigit():
        fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
        zombies += fields[0] == "Z" and fields[1] == "1"
print("zombies of pid 1:", zombies, flush=True)
time.sleep(60)
"""


def can_be_pid_1() -> bool:
    done = subprocess.run(["unshare", "-rpf", "--mount-proc", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not can_be_pid_1(), reason="no pid namespace may be made here")
def test_as_pid_1_it_reaps_and_stops(tmp_path: Path) -> None:
    command = [
        *LIFESIGN,
        "guard",
        "--http",
        "off",
        "--state-dir",
        str(tmp_path / "s"),
        "--grace",
        "3",
        "--",
        sys.executable,
        "-c",
        ORPHANING,
    ]
    process = subprocess.Popen(
        ["unshare", "-rpf", "--mount-proc", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "zombies of pid 1: 0\n"
        (child,) = [pid for pid in procs.all_pids() if (stat := procs.read_stat(pid)) and stat.ppid == process.pid]
        asked = time.monotonic()
        os.kill(child, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert time.monotonic() - asked < 5.0
    finally:
        process.kill()
        process.communicate()
