"""What guard is asked by a signal, and what it isn't: a stop, a death that a stop comes after, a signal passed on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lifesign.guard.session import LOST_GRACE_S, Session

from .harness import guard, wait_until


@pytest.mark.parametrize(
    ("top_ended_s", "core_ended_s", "asked_s", "reason"),
    [
        (None, None, None, None),
        (None, None, 10.0, "stop"),
        (9.0, None, None, "exited"),
        (9.0, None, 10.0, "exited"),
        (10.5, None, 10.0, "stop"),
        (None, 9.0, None, None),
        (None, 9.0, 10.0, "lost"),
        (None, 10.5, 10.0, "stop"),
        (10.5, 9.0, 10.0, "lost"),
        (9.5, 9.0, 10.0, "exited"),
        (None, 1.0 - LOST_GRACE_S, None, "lost"),
    ],
)
def test_what_came_first_decides_whether_it_is_a_death(
    top_ended_s: float | None, core_ended_s: float | None, asked_s: float | None, reason: str | None
) -> None:
    reasons: list[str] = []
    core = SimpleNamespace(ended_s=core_ended_s, name="EngineCore", id=SimpleNamespace(pid=7))
    context = SimpleNamespace(
        stop_asked_s=asked_s,
        stop_signal=signal.SIGTERM if asked_s else None,
        board=SimpleNamespace(update=lambda **values: None),
        voice=SimpleNamespace(say=lambda text, **values: None),
    )
    session = SimpleNamespace(
        context=context,
        life=SimpleNamespace(
            top="top",
            members={"top": SimpleNamespace(ended_s=top_ended_s)},
            lost=lambda: [core] if core_ended_s is not None else [],
        ),
        begin_ending=reasons.append,
        _lost_at_s=core_ended_s,
    )
    Session._decide(cast("Any", session), 11.0)
    assert reasons == ([reason] if reason else [])


def test_a_death_before_the_request_to_stop_stays_a_death(tmp_path: Path) -> None:
    with guard(tmp_path, engine_args=("--stay",)) as run:
        run.serving()
        run.kill("core")
        run.wait_for("waiting for the server to end by itself")
        run.stop()
        assert run.wait() == 137
        (incident,) = run.incidents()
        assert incident["trigger"] == "lost"
        assert incident["cause"]["subtype"] == "core-died-no-trace"
        assert incident["complete"] is True
        assert list(incident["folder"].glob("captures/*/proc/*.txt")), "the picture of what was left"
        assert "cause: silent-death/core-died-no-trace" in run.said
        assert "starting again" not in run.said
        assert run.life() == {"schema": "lifesign.life/1", "ended": True}
        assert run.marked() == []


def test_a_death_and_a_request_are_over_within_the_grace_period(tmp_path: Path) -> None:
    """Pictures and patience are cut short: the platform's SIGKILL comes when the grace period is over."""
    slow = "import time, lifesign.guard.blackbox as b\nb._capture = lambda *rest: time.sleep(60)"
    with guard(tmp_path, "--grace", "4", engine_args=("--stay", "--ignore-term"), patch=slow) as run:
        run.serving()
        run.kill("core")
        run.wait_for("waiting for the server to end by itself")
        asked = time.monotonic()
        run.stop()
        assert run.wait() == 137
        assert time.monotonic() - asked < 5.0
        assert run.marked() == []


def test_what_was_seen_of_a_suspect_engine_survives_its_stop(tmp_path: Path) -> None:
    """Whoever restarts a pod that hangs stops it: the pictures of that moment are the only ones."""
    with guard(tmp_path) as run:
        run.serving()
        pid = run.pid("worker")
        run.kill("worker", signal.SIGSTOP)
        run.wait_for("suspect:")
        run.stop()
        assert run.wait() == 0, "a stop is no death"
        (incident,) = run.incidents()
        assert (incident["cause"]["cause"], incident["cause"]["certainty"]) == ("timeout-hang", "possible")
        assert incident["trigger"] == "stop"
        assert incident["decision"]["action"] == "stop"
        assert incident["complete"] is True
        assert incident["exit"]["guard_code"] == 0
        (view,) = incident["folder"].glob(f"captures/*/proc/*-{pid}.txt")
        assert "state T" in view.read_text()
        assert (incident["folder"] / "events.jsonl").stat().st_size
        assert "Application startup complete" in (incident["folder"] / "engine.log").read_text()
        assert "what was seen is kept" in run.said
        assert len(run.finished_incidents()) == 1
        policy = json.loads((run.state / "policy.json").read_text())
        assert policy["deaths"] == [], "it is not counted as a death"
        assert run.marked() == []


SLOW_TO_CLOSE = """
import time
import lifesign.guard.supervisor as supervisor
real = supervisor.close_incident
def slow(*arguments, **named):
    closed = real(*arguments, **named)
    while supervisor.stop_seen.stop_signal is None:
        time.sleep(0.05)
    return closed
supervisor.close_incident = slow
run = supervisor.Guard._run
def remember(self):
    supervisor.stop_seen = self.context
    return run(self)
supervisor.Guard._run = remember
"""


def test_a_death_is_announced_although_guard_is_asked_to_stop_meanwhile(tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    args = ("--die", "worker-exception", "--after", "1.0")
    with guard(tmp_path, "--termination-message", str(message), engine_args=args, patch=SLOW_TO_CLOSE) as run:
        wait_until(run.finished_incidents, "the bundle")
        run.stop()
        assert run.wait() == 1
        assert "cause: device-oom/serving" in run.said
        assert "starting again" not in run.said
        text = message.read_text()
        assert text.startswith("device-oom/serving: ")
        assert "\nstop: guard was asked to stop\n" in text
        (incident,) = run.incidents()
        assert incident["decision"]["action"] == "restart", "what the policy said stays on record"
        assert run.life()["ended"] is True


def test_a_closed_terminal_stops_the_engine(tmp_path: Path) -> None:
    """And by SIGTERM: SIGHUP would cut the requests off that the server drains."""
    # The tests themselves may run under nohup, and guard respects what it inherits.
    with guard(tmp_path, patch="import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)") as run:
        run.serving()
        run.stop(signal.SIGHUP)
        assert run.wait() == 0
        assert "SIGHUP: stopping the engine" in run.said
        assert "Application shutdown complete" in run.shown
        assert run.incidents() == []
        assert run.marked() == []


def test_under_nohup_a_closed_terminal_means_nothing(tmp_path: Path) -> None:
    with guard(tmp_path, patch="import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)") as run:
        run.serving()
        run.stop(signal.SIGHUP)
        run.stop(signal.SIGTERM)
        assert run.wait() == 0
        assert "SIGTERM: stopping the engine" in run.said
        assert "SIGHUP" not in run.said


@pytest.mark.parametrize("through_guard", [True, False])
def test_an_end_by_a_signal_that_guard_passed_on_is_not_a_strangers(tmp_path: Path, through_guard: bool) -> None:
    with guard(tmp_path, "--max-restarts", "0") as run:
        run.serving()
        if through_guard:
            run.stop(signal.SIGUSR1)
        else:
            os.kill(run.pid("api"), signal.SIGUSR1)
        assert run.wait() == 128 + signal.SIGUSR1
        (incident,) = run.incidents()
        (top,) = [one for one in incident["processes"] if one["signal"] == "SIGUSR1"]
        assert top["ended_by_guard"] is through_guard
        told = f"{incident['cause']['title']} {incident['cause']['why']}"
        assert ("not by guard" in told or "guard did not send" in told) is not through_guard
        assert ("passed on, ended the engine" in run.said) is through_guard


def test_a_signal_that_the_engine_handles_is_no_end(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR2, lambda *rest: print('got it', flush=True))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    with guard(tmp_path, engine=[sys.executable, "-c", script]) as run:
        wait_until(lambda: "up" in run.shown, "the program")
        run.stop(signal.SIGUSR2)
        wait_until(lambda: "got it" in run.shown, "the signal")
        run.stop()
        assert run.wait() == 128 + signal.SIGTERM
        assert "passed on, ended" not in run.said
        assert run.incidents() == []
