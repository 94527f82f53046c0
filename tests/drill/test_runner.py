"""Drills against the fake engine, end to end: outcome, comparison, cleaning up."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lifesign.drill import report, runner
from lifesign.drill.engines import Engine, choose
from lifesign.drill.model import Expect, Fault, Start
from lifesign.drill.session import MARK
from lifesign.drill.vocabulary import find
from lifesign.errors import LifesignError, UsageError
from lifesign.guard.procs import all_pids, read_environ
from lifesign.text import T

OURS = "DRILL_TEST"  # inherited by everything that a test starts: other drills may run on this machine


@pytest.fixture(autouse=True)
def tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OURS, secrets.token_hex(8))


def marked() -> set[int]:
    """Engine processes of this test's drills."""
    mine = os.environ[OURS]
    found = ((pid, read_environ(pid)) for pid in all_pids())
    return {pid for pid, environment in found if MARK in environment and environment.get(OURS) == mine}


@pytest.mark.parametrize("name", ["worker-sigkill", "oom-serving", "scheduler-assert", "oom-weights"])
def test_a_death_is_seen_and_named(name: str, fake: Engine, logs: Path) -> None:
    outcome = runner.run(find(name), fake, logs)
    assert outcome.result == "PASS", outcome.reason
    assert outcome.death_s is not None
    assert outcome.exit_code == (1 if find(name).when == "start-up" else 0)
    assert outcome.got is not None
    assert outcome.got.cause == find(name).expect.cause
    assert Path(outcome.log).exists()
    assert not marked()


def test_an_honest_slow_worker_is_killed_by_a_fixed_limit_and_spared_by_a_patient_one(fake: Engine, logs: Path) -> None:
    killed = runner.run(find("slow-step"), fake, logs)
    assert killed.result == "PASS", killed.reason
    assert killed.exit_code == 0
    assert killed.got is not None
    assert killed.got.cause == "timeout-hang"
    assert killed.client.get("ok", 0) < sum(killed.client.values())

    spared = runner.run(runner.with_patience(find("slow-step")), fake, logs)
    assert spared.result == "PASS", spared.reason
    assert spared.exit_code is None
    assert set(spared.client) == {"ok"}


def test_patience_does_not_spare_the_stopped(fake: Engine, logs: Path) -> None:
    outcome = runner.run(runner.with_patience(find("worker-sigstop")), fake, logs)
    assert outcome.result == "PASS", outcome.reason
    assert outcome.exit_code == 0


def test_a_wrong_expectation_fails(fake: Engine, logs: Path) -> None:
    fault = dataclasses.replace(find("oom-serving"), expect=Expect("kv-connector", "nixl"))
    outcome = runner.run(fault, fake, logs)
    assert outcome.result == "FAIL"
    assert "the diagnosis says device-oom" in outcome.reason


def test_a_fault_that_never_acts_fails(fake: Engine, logs: Path) -> None:
    fault = find("oom-weights")
    assert fault.hook is not None
    fault = dataclasses.replace(fault, when="serving", hook=dataclasses.replace(fault.hook, rank=7), bound_s=5)
    outcome = runner.run(fault, dataclasses.replace(fake), logs)
    assert outcome.result == "FAIL"
    assert "never acted" in outcome.reason


def test_what_a_machine_cannot_do_is_skipped(fake: Engine, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lifesign.drill import needs

    monkeypatch.setitem(needs.CHECKS, "two-cpus", lambda: T("needs two CPUs", "需要两个 CPU"))
    fault = dataclasses.replace(find("worker-sigkill"), needs=("two-cpus",))
    outcome = runner.run(fault, fake, logs)
    assert (outcome.result, outcome.reason) == ("SKIPPED", "needs two CPUs")
    assert report.tally([outcome]) == {"passed": 0, "failed": 0, "skipped": 1}
    assert runner.run(find("port-in-use"), fake, logs).result == "SKIPPED"


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    drill = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lifesign.cli.main",
            "drill",
            "run",
            "livelock",
            "--engine",
            "fake",
            "--keep",
            str(tmp_path),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end_s = time.monotonic() + 30
        while len(marked()) < 3:
            assert time.monotonic() < end_s
            assert drill.poll() is None
            time.sleep(0.05)
        os.kill(drill.pid, signal.SIGINT)
        assert drill.wait(timeout=30) == 130
        assert not marked()
        assert bystander.poll() is None
    finally:
        drill.kill()
        bystander.kill()
        bystander.wait()


def test_reports_in_every_form(fake: Engine, logs: Path, tmp_path: Path) -> None:
    good = runner.run(find("core-sigkill"), fake, logs)
    bad = runner.run(dataclasses.replace(find("healthy"), expect=Expect("device-oom", "serving")), fake, logs)
    skipped = runner.run(find("port-in-use"), fake, logs)
    outcomes = [good, bad, skipped]
    assert [outcome.result for outcome in outcomes] == ["PASS", "FAIL", "SKIPPED"]

    report.write_report(outcomes, tmp_path / "report.xml")
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert len(suite.findall("testcase/failure")) == 1
    assert len(suite.findall("testcase/skipped")) == 1

    report.write_report(outcomes, tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert data["schema"] == "lifesign.drill/1"
    assert (data["passed"], data["failed"], data["skipped"]) == (1, 1, 1)

    report.write_report(outcomes, tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text(encoding="utf-8").count("| core-sigkill | PASS |") == 1
    with pytest.raises(UsageError, match="suffix"):
        report.write_report(outcomes, tmp_path / "report.txt")


def test_junit_survives_control_characters(fake: Engine) -> None:
    from lifesign.drill.outcome import Outcome

    outcome = Outcome(find("healthy"), "fake", "0.32.0", why=T("bad \x1b[31m \x00 text", ""))
    ElementTree.fromstring(report.as_junit([outcome]))


def test_an_engine_that_cannot_start_is_one_sentence(logs: Path) -> None:
    fault = Fault("x", T("x", "x"), Expect("not-a-crash", "healthy"), start=Start())
    engine = choose("/no/such/program serve model")
    with pytest.raises(LifesignError, match="can't be started"):
        runner.run(fault, engine, logs)
    with pytest.raises(UsageError, match="is no engine"):
        choose("banana")
    with pytest.raises(UsageError, match=r"has no vLLM|can't be run"):
        choose("vllm", python="/no/such/python")
    with pytest.raises(UsageError, match="doesn't know release"):
        choose("fake", release="9.9.9")


def test_a_command_of_ones_own_gets_our_port() -> None:
    engine = choose("vllm serve some/model --port 9 --max-model-len 10")
    argv = engine.argv(find("worker-sigkill"), Path("/nowhere"), 4321)
    assert argv == ["vllm", "serve", "some/model", "--port", "4321", "--max-model-len", "10"]
    assert choose("vllm serve m --port=9").argv(find("healthy"), Path("/nowhere"), 5)[-1] == "--port=5"
    assert choose("vllm serve m").argv(find("healthy"), Path("/nowhere"), 5)[-2:] == ["--port", "5"]


def test_a_command_of_ones_own_is_drilled(logs: Path) -> None:
    engine = choose(f"{sys.executable} -m lifesign.drill.fake my/model")
    outcome = runner.run(find("worker-sigkill"), engine, logs)
    assert outcome.result == "PASS", outcome.reason
    assert outcome.exit_code == 0
    assert runner.run(find("flag-unknown"), engine, logs).result == "SKIPPED"
