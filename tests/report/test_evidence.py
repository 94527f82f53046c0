"""Evidence beside the log (`--with`): the exit status in the words of those who print it, and what proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.facts.exit_status import outside_status
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.model import Report

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "corpus" / "recorded" / "0.32.0"
SERVING = RECORDED / "core-sigstop.log"  # ends in mid-service
DESCRIBE = """Name:         vllm-0
    State:          Running
    Last State:     Terminated
      Reason:       {reason}
      Exit Code:    137
"""
INSPECT = """[
    {{
        "State": {{
            "Status": "{status}",
            "OOMKilled": {oom},
            "ExitCode": {code},
            "Error": "",
"""
PS = 'ab12cd34  vllm/vllm-openai:latest  "vllm serve m"  3 hours ago  {status}  vllm'


def with_evidence(text: str, tmp_path: Path, log: Path = SERVING) -> Report:
    """The report on a log with `text` given as evidence."""
    beside = tmp_path / "status.txt"
    beside.write_text(text + "\n", encoding="utf-8")
    return diagnose_paths([str(log)], extra=[str(beside)])


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("exit code -9", "silent-death/signal"),
        ("exit code 137", "silent-death/signal"),
        ("vllm-1 exited with code 137", "silent-death/signal"),
        ("Exit Code:    137", "silent-death/signal"),
        ("137 false", "silent-death/signal"),
        ("137 oom=false", "silent-death/signal"),
        ("Killed", "silent-death/signal"),
        ("start.sh: line 3:  4711 Killed                  vllm serve m", "silent-death/signal"),
        ("vllm.service: Main process exited, code=killed, status=9/KILL", "silent-death/signal"),
        ("vllm.service: Main process exited, code=dumped, status=6/ABRT", "silent-death/signal"),
        ("Aborted (core dumped)", "silent-death/signal"),
        ("exit code -6", "silent-death/signal"),
        ("Bus error (core dumped)", "host-resource/shm-too-small"),
        ("exit code 135", "silent-death/signal"),
        (PS.format(status="Exited (137) 2 minutes ago"), "silent-death/signal"),
        (DESCRIBE.format(reason="Error"), "silent-death/signal"),
        (INSPECT.format(status="exited", oom="false", code=137), "silent-death/signal"),
        ("exit code -11", "silent-death/segfault-native"),
        ("exit code 139", "silent-death/segfault-native"),
        ("137 true", "host-oom/cgroup-limit"),
        ("137 oom=true", "host-oom/cgroup-limit"),
        (DESCRIBE.format(reason="OOMKilled"), "host-oom/cgroup-limit"),
        (INSPECT.format(status="exited", oom="true", code=137), "host-oom/cgroup-limit"),
        # The engine's own words or nothing at all: no death.
        ("exit code 0", "not-a-crash/healthy"),
        ("exit code 130", "not-a-crash/healthy"),
        ("0 oom=false", "not-a-crash/healthy"),
        (PS.format(status="Up 3 hours"), "not-a-crash/healthy"),
        (INSPECT.format(status="running", oom="false", code=0), "not-a-crash/healthy"),
        ("137 tokens per second", "not-a-crash/healthy"),
    ],
)
def test_who_saw_the_end_is_believed(text: str, verdict: str, tmp_path: Path) -> None:
    got = with_evidence(text, tmp_path).verdict
    assert f"{got.cause}/{got.subtype}" == verdict


def test_the_page_names_signal_and_line(tmp_path: Path) -> None:
    report = with_evidence("exit code -9", tmp_path)
    assert "exit code 137 = SIGKILL" in report.verdict.why
    root = next(line for line in report.verdict.evidence if line.role == "root")
    assert (root.path.rpartition("/")[2], root.line) == ("status.txt", 1)
    crashed = with_evidence("exit code 139", tmp_path).verdict
    assert "SIGSEGV" in crashed.why
    assert "printed its native stack" not in crashed.why, "there is none"


def test_an_error_in_the_log_goes_before_the_status_beside_it(tmp_path: Path) -> None:
    got = with_evidence("exit code 137", tmp_path, RECORDED / "oom-serving.log").verdict
    assert got.cause == "device-oom"


def test_a_stop_that_was_asked_for_stays_one_whatever_its_status(tmp_path: Path) -> None:
    got = with_evidence("vllm-1 exited with code 143", tmp_path, RECORDED / "stop-sigterm.log").verdict
    assert got.cause == "not-a-crash"


def test_a_second_log_of_another_program_is_no_evidence(tmp_path: Path) -> None:
    """Named as a log, not as evidence: a file in which no engine speaks belongs to another program."""
    other = tmp_path / "gateway.log"
    other.write_text("worker 3 exited with code 137\nrestarting\n", encoding="utf-8")
    assert diagnose_paths([str(SERVING), str(other)]).verdict.cause == "not-a-crash"


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("exit code -9", -9),
        ("Exit Code:    137", -9),
        ('"ExitCode": 139,', -11),
        ("exited with code 1", 1),
        ("exit status 0", 0),
        ("137 oom=true", -9),
        ("Segmentation fault (core dumped)", -11),
        ("we saw exit code 137 once, and again after the update of last week", None),
        ("Killed the noise in the picture", None),
        ("Out of memory: Killed process 12 (python)", None),
        ("137", None),
        ("exit code 1370", None),
        ("", None),
        ("exit code -9" * 400, None),
    ],
)
def test_only_a_line_that_says_nothing_else_is_a_status(line: str, status: int | None) -> None:
    assert outside_status(line) == status


def test_a_text_in_which_no_engine_speaks_has_no_phase_and_no_consequences(tmp_path: Path) -> None:
    log = tmp_path / "hello.log"
    log.write_text("hello world\n", encoding="utf-8")
    verdict = diagnose_paths([str(log)]).verdict
    assert (verdict.cause, verdict.subtype, verdict.phase) == ("insufficient-log", "empty", "")
    assert not any("consequence" in advice.why for advice in verdict.remedies)
    tail = tmp_path / "tail.log"
    tail.write_text("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n", encoding="utf-8")
    told = diagnose_paths([str(tail)]).verdict
    assert (told.cause, told.subtype) == ("insufficient-log", "tail-only")
    assert told.phase
    assert any("consequence" in advice.why for advice in told.remedies)
