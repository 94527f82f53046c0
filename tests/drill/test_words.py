"""What a drill tells people: plurals, the reader's language, what was expected and how strictly it was met."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from lifesign.drill import report, runner
from lifesign.drill.diagnosis import Diagnosis, exit_line, strictly_agrees, subtype_agrees
from lifesign.drill.engines import Engine
from lifesign.drill.model import Expect
from lifesign.drill.outcome import Outcome, describe_client, describe_left
from lifesign.drill.vocabulary import find


def test_counts_have_plurals() -> None:
    assert describe_client({"error event": 2, "http error": 2, "ok": 1}) == "2 error events, 2 HTTP errors, 1 ok"
    assert describe_client({"error event": 1, "http error": 1, "cut": 2}) == "1 error event, 1 HTTP error, 2 cut"
    assert describe_client({"error event": 2, "ok": 3}, "zh") == "2 次流中报错，3 次成功"
    assert (describe_client({}), describe_client({"ok": 0}, "zh")) == ("nothing", "无")
    assert (
        describe_left({"processes": 1, "shm": 2, "tmp": 1}) == "1 process, 2 blocks of shared memory, 1 temporary file"
    )
    assert describe_left({"processes": 3, "tmp": 9}, "zh") == "3 个进程，9 个临时文件"


def outcome(name: str, got: Diagnosis, **changes: object) -> Outcome:
    """A drill that ended with this diagnosis."""
    fault = dataclasses.replace(find(name), **changes)  # type: ignore[arg-type]
    made = Outcome(fault, "fake", "0.32.0", "PASS", got=got)
    made.subtype_right, made.strict = subtype_agrees(fault.expect, got), strictly_agrees(fault.expect, got)
    return made


def told(each: Outcome, lang: str = "en") -> dict[str, str]:
    """The story's lines by label."""
    return dict(report.story(each, "zh" if lang == "zh" else "en"))


def test_the_chinese_story_is_chinese() -> None:
    each = outcome("oom-serving", Diagnosis("device-oom", "serving", "supported", 71, "OutOfMemoryError"))
    each.client, each.health = {"error event": 1, "cut": 2}, [(0.1, "200"), (0.4, "503")]
    story = told(each, "zh")
    assert story["诊断"] == "device-oom/serving，较可信（第 71 行）"
    assert story["健康检查"] == "0.1 s 200，0.4 s 503"
    assert story["客户端"] == "1 次流中报错，2 次连接中断"
    assert told(each)["DIAGNOSIS"] == "device-oom/serving, supported (line 71)"


def test_the_story_says_that_patience_was_on_and_what_else_counts() -> None:
    got = Diagnosis("not-a-crash", "clean-shutdown", "established")
    patient = Outcome(runner.with_patience(find("slow-step")), "fake", "0.32.0", "PASS", got=got)
    story = told(patient)
    assert "LIFESIGN_PATIENCE=1" in story["PATIENCE"]
    assert story["EXPECTED"].startswith("not-a-crash/slow-step (the log may also show: ")
    assert "clean-shutdown" in story["EXPECTED"]
    plain = told(outcome("oom-serving", Diagnosis("device-oom", "serving", "established")))
    assert "PATIENCE" not in plain
    assert plain["EXPECTED"] == "device-oom/serving"


def test_strictness_is_counted_apart_from_what_passes() -> None:
    softened = Expect("host-oom", "cgroup-limit", accept=("silent-death",))
    loose = outcome("oom-serving", Diagnosis("silent-death", "worker-died-no-trace", "supported"), expect=softened)
    right = outcome("oom-serving", Diagnosis("device-oom", "serving", "established"))
    skipped = Outcome(find("port-in-use"), "fake", "0.32.0", "SKIPPED")
    outcomes = [loose, right, skipped]
    assert loose.subtype_right
    assert report.strictness(outcomes) == (1, 2)
    assert report.summary(outcomes) == "2 passed, 0 failed, 1 skipped; strict 1 of 2"
    data = json.loads(report.as_json(outcomes))
    assert (data["strict"], data["judged"]) == (1, 2)
    assert [row["strict"] for row in data["results"]] == [False, True, False]
    assert "strict 1 of 2" in report.as_markdown(outcomes)


def test_a_wrong_subtype_is_no_agreement() -> None:
    got = Diagnosis("device-oom", "serving")
    assert subtype_agrees(Expect("device-oom", "serving"), got)
    assert subtype_agrees(Expect("device-oom", ""), got), "where none is asked for, any will do"
    assert not subtype_agrees(Expect("device-oom", "kv-none"), got)


@pytest.mark.parametrize(("code", "line"), [(-9, "vllm-1 exited with code 137\n"), (0, ""), (1, ""), (None, "")])
def test_only_a_signal_leaves_its_status_beside_the_log(code: int | None, line: str) -> None:
    assert exit_line(code) == line


def drill(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`lifesign drill run ...`."""
    command = [sys.executable, "-m", "lifesign.cli.main", "drill", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("expect", "hint"),
    [
        ("nosuch", "choose one of"),
        ("device-om", "did you mean device-oom"),
        ("device-oom/servin", "did you mean serving"),
        ("device-oom/xyzzy", "it has "),
    ],
)
def test_an_expectation_that_nothing_can_meet_is_refused_before_anything_runs(expect: str, hint: str) -> None:
    # An engine that doesn't exist: had the drill begun, the message would be about that.
    done = drill("oom-serving", "--engine", "/no/such/program serve m", "--expect", expect)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "--expect" in done.stderr
    assert "/;" not in done.stderr


def test_an_expectation_without_a_subtype_has_no_trailing_slash(fake: Engine) -> None:
    done = drill("core-sigkill", "--engine", "fake", "--expect", "kv-connector", "--lang", "en")
    assert done.returncode == 1
    assert "expected kv-connector, the diagnosis says silent-death/core-died-no-trace" in done.stdout
    assert "kv-connector/" not in done.stdout


@pytest.mark.parametrize("name", ["api-sigkill", "api-sigbus", "api-sigabrt"])
def test_a_killed_server_is_diagnosed_with_its_exit_status(name: str, fake: Engine, tmp_path: object) -> None:
    from pathlib import Path

    logs = Path(str(tmp_path))
    each = runner.run(find(name), fake, logs)
    assert each.result == "PASS", each.reason
    assert each.strict
    assert each.got is not None
    assert each.got.slug == "silent-death/signal"
    assert Path(each.exit_log).read_text(encoding="utf-8") == exit_line(each.exit_code)


def test_a_stopped_server_is_no_death(fake: Engine, tmp_path: object) -> None:
    from pathlib import Path

    each = runner.run(find("api-sigstop"), fake, Path(str(tmp_path)))
    assert each.result == "PASS", each.reason
    assert (each.strict, each.exit_log) == (True, "")
