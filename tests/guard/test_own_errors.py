"""Errors of guard itself, injected one by one: the engine is never left without a guard, and guard goes on where it can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.errors import UsageError
from lifesign.guard import settings
from lifesign.guard.careful import Careful
from lifesign.guard.statedir import read_json, write_json
from lifesign.guard.strangers import PATIENCE_S, Strangers

from ..engine_support import free_port
from .harness import LIFESIGN, guard, wait_until
from .harness import PATIENCE_S as LIMIT_S


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/", ("127.0.0.1", 8000)),
        ("http://127.0.0.1", ("127.0.0.1", 80)),
        ("https://gpu7", ("gpu7", 443)),
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000)),
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("http://[::1]:8000", ("::1", 8000)),
    ],
)
def test_an_engines_address_is_read_with_or_without_port_and_path(url: str, address: tuple[str, int]) -> None:
    assert settings.address_of(settings.parse_engine_url(url)) == address


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://h:99999", "ftp://h:1", "http://", "http://a..b:80"])
def test_an_address_that_is_none_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(UsageError, match=r"--engine-url .*for example http://127\.0\.0\.1:8000"):
        settings.parse_engine_url(url)


@pytest.mark.parametrize(
    ("words", "url"),
    [
        (("--port", "8001"), "http://127.0.0.1:8001"),
        (("--port", "99999"), None),
        (("--host", "a..b"), None),
        (("--host", "::"), "http://127.0.0.1:8000"),
    ],
)
def test_a_command_whose_address_is_none_has_no_address(words: tuple[str, ...], url: str | None) -> None:
    assert settings.engine_url(("vllm", "serve", "m", *words)) == url


def test_a_bad_address_ends_with_2_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *LIFESIGN,
            "guard",
            "--state-dir",
            str(tmp_path / "s"),
            "--engine-url",
            "http://h:x",
            "--",
            "touch",
            "started",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert "--engine-url http://h:x: give the address" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()


def test_an_address_with_a_path_survives_a_death(tmp_path: Path) -> None:
    port = free_port()
    with guard(tmp_path, "--engine-url", f"http://127.0.0.1:{port}/v1", engine_args=("--port", str(port))) as run:
        run.serving()
        run.kill("core")
        run.serving(2)
        run.stop()
        assert run.wait() == 0


def test_a_host_for_the_pages_that_is_none_costs_the_pages(tmp_path: Path) -> None:
    with guard(tmp_path, http="ä..b:9477") as run:
        run.serving()
        assert "no HTTP pages" in run.said
        run.stop()
        assert run.wait() == 0


def test_an_argument_that_is_no_text_is_guarded_like_any_other(tmp_path: Path) -> None:
    with guard(tmp_path, engine=["sh", "-c", "exit 127", os.fsdecode(b"\xff")]) as run:
        assert run.wait() == 127
        assert "Traceback" not in run.said
        (incident,) = run.incidents()
        assert incident["complete"] is True
        assert incident["command"] == ["sh", "-c", "exit 127", "?"]


def test_json_is_written_whatever_is_in_it(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"word": os.fsdecode(b"a\xffb"), "text": "\u5f15\u64ce"})
    assert read_json(tmp_path / "x.json") == {"word": "a?b", "text": "\u5f15\u64ce"}


def test_a_state_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    with guard(folder, "--max-restarts", "0", engine_args=("--die", "quick")) as run:
        assert run.wait() == 1
        (incident,) = run.incidents()
        assert incident["complete"] is True
        assert "could not be written" not in run.said


DETECTOR = "from lifesign.guard.watcher import EngineWatcher\nEngineWatcher.{method} = lambda self, *rest: 1 / 0"


@pytest.mark.parametrize("method", ["begin", "tick", "ready", "exited", "progressed", "end"])
def test_a_detector_that_breaks_is_off_and_deaths_are_still_seen(tmp_path: Path, method: str) -> None:
    with guard(tmp_path, patch=DETECTOR.format(method=method)) as run:
        run.serving()
        run.kill("worker")
        run.serving(2)
        (incident,) = run.incidents()
        assert incident["cause"]["subtype"] == "worker-died-no-trace"
        run.stop()
        assert run.wait() == 0
        lives = 1 if method == "exited" else 2  # nothing ends in the second one
        assert run.said.count("the detector broke (ZeroDivisionError") == lives, "once a life"
        assert "Traceback" not in run.said
        assert run.marked() == []


def test_a_broken_detector_is_not_asked_again() -> None:
    asked: list[str] = []

    class Breaks:
        def milestone(self, phase: str) -> None:
            asked.append(phase)
            if phase == "bad":
                raise ValueError(phase)

        def end(self) -> None:
            asked.append("end")

        def progressed(self) -> bool:
            return True

    errors: list[Exception] = []
    careful = Careful(Breaks(), errors.append)  # type: ignore[arg-type]
    careful.milestone("good")
    assert careful.progressed() is True
    assert errors == []
    careful.milestone("bad")
    careful.milestone("late")
    assert careful.progressed() is False
    careful.end()
    assert asked == ["good", "bad", "end"]
    assert [str(error) for error in errors] == ["bad"]


FAILS_ONCE = """
from lifesign.guard.life import Life
real, failed = Life.scan, []
def scan(self):
    if not failed:
        failed.append(1)
        raise RuntimeError("by the test")
    return real(self)
Life.scan = scan
"""
FAILS_FOR_EVER = """
from lifesign.guard.life import Life
real, good = Life.scan, []
def scan(self):
    if self.number > 1:
        return real(self)
    good.append(1)
    if any(member.role == "worker" for member in self.members.values()) and len(good) > 6:
        raise RuntimeError("by the test")
    return real(self)
Life.scan = scan
"""


def test_an_error_that_passes_is_told_and_nothing_else(tmp_path: Path) -> None:
    with guard(tmp_path, patch=FAILS_ONCE) as run:
        run.serving()
        assert run.said.count("an error in guard itself (RuntimeError: by the test)") == 1
        run.stop()
        assert run.wait() == 0
        assert run.incidents() == []


def test_an_error_that_stays_ends_the_engine_and_starts_it_again(tmp_path: Path) -> None:
    with guard(tmp_path, engine_args=("--ignore-term", "--keep-orphans"), patch=FAILS_FOR_EVER) as run:
        run.wait_for("ending what runs of the engine")
        run.serving(2)
        (incident,) = run.incidents()
        assert incident["trigger"] == "an error in guard: RuntimeError: by the test"
        assert incident["decision"]["action"] == "restart"
        assert {one["ended_by_guard"] for one in incident["processes"] if one["role"] != "other"} == {True}
        assert "Application startup complete" in (incident["folder"] / "engine.log").read_text()
        assert "Traceback" not in run.said
        members = {one["pid"] for one in run.life()["members"]}
        assert set(run.marked()) <= members, "nothing of the first life runs"


@pytest.mark.parametrize("step", ["announce", "clear", "close_incident", "StateDir.prune"])
def test_a_step_after_a_death_that_breaks_does_not_stop_the_service(tmp_path: Path, step: str) -> None:
    target = "supervisor.StateDir" if "." in step else "supervisor"
    patch = (
        "from lifesign.guard import supervisor\n"
        f"def broken(*rest, **more): raise ValueError('by the test')\n{target}.{step.rpartition('.')[2]} = broken"
    )
    with guard(tmp_path, patch=patch) as run:
        run.serving()
        run.kill("worker")
        run.serving(2)
        run.stop()
        assert run.wait() == 0
        assert "Traceback" not in run.said
        assert run.marked() == []


SLOW = """
import os, sys, time
from lifesign.guard import supervisor
supervisor.BURY_LIMIT_S = 1.0
def slow(context, outcome, *, decide, **more):
    while not os.path.exists({go!r}):
        time.sleep(0.05)
    decision = decide(supervisor.Died("late"))
    print("decided late:", decision.rule, file=sys.stderr, flush=True)
    raise ValueError("by the test")
supervisor.close_incident = slow
"""


def test_evidence_that_takes_too_long_does_not_end_the_service(tmp_path: Path) -> None:
    """Nor does it count a death again when it comes to its end at last, a death later."""
    go = tmp_path / "go"
    with guard(tmp_path, patch=SLOW.format(go=str(go))) as run:
        for death in (1, 2):
            run.serving(death)
            run.kill("worker")
            run.wait_for("the incident could not be written (it takes too long)", death)
            run.wait_for("starting again", death)
        run.serving(3)
        assert "asked to stop" not in run.said
        go.touch()
        run.wait_for("decided late: silent-death/", 2)
        policy = json.loads((run.state / "policy.json").read_text())
        assert [one["kind"] for one in policy["deaths"]] == ["silent-death/worker-died-no-trace"] * 2
        run.stop()
        assert run.wait() == 0


def test_an_error_before_the_start_is_a_sentence(tmp_path: Path) -> None:
    patch = "from lifesign.guard import session\ndef broken(): raise OSError(24, 'Too many open files')\nsession.open_streams = broken"
    with guard(tmp_path, engine=[sys.executable, "-c", "print('up')"], patch=patch) as run:
        assert run.wait() == 2
        assert "the engine can't be started (OSError: [Errno 24] Too many open files); see `lifesign check`" in run.said
        assert "Traceback" not in run.said
        assert run.tmps() == []


def test_a_stranger_is_left_to_whoever_started_it_for_a_while() -> None:
    now = [100.0]
    strangers = Strangers(lambda: now[0])
    pid = os.getpid()
    assert strangers.may_reap(pid) is False
    now[0] += PATIENCE_S - 0.1
    assert strangers.may_reap(pid) is False
    now[0] += 0.2
    assert strangers.may_reap(pid) is True


def test_a_reused_pid_is_another_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    from lifesign.guard import procs

    now, start = [100.0], [1]
    monkeypatch.setattr(procs, "identify", lambda pid: procs.ProcId(pid, start[0]))
    strangers = Strangers(lambda: now[0])
    assert strangers.may_reap(7) is False
    now[0] += 10 * PATIENCE_S
    start[0] = 2
    assert strangers.may_reap(7) is False, "its own ten seconds have only begun"
    now[0] += PATIENCE_S
    assert strangers.may_reap(7) is True


def test_the_reading_of_a_log_keeper_that_writes_nonsense_costs_nothing(tmp_path: Path) -> None:
    patch = (
        "from lifesign.guard.spawn import KeeperLink\nreal, told = KeeperLink.receive, []\n"
        "def receive(self):\n    told.append(1)\n    if len(told) == 3: raise ValueError('nonsense')\n    return real(self)\n"
        "KeeperLink.receive = receive"
    )
    with guard(tmp_path, patch=patch) as run:
        run.serving()
        wait_until(lambda: "an error in guard itself (ValueError: nonsense)" in run.said, "the sentence")
        run.stop()
        assert run.wait() == 0
