"""Guard itself is killed: the next start finds the engine it left, completes what was begun, and loses no line."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

from lifesign.guard import procs
from lifesign.guard.logstore import read_segment, segments

from .harness import guard, wait_until

ROUNDS = int(os.environ.get("LIFESIGN_GUARD_KILLS", "20" if os.environ.get("CI") else "6"))
"""Moments: 20 in CI, 6 elsewhere, or as LIFESIGN_GUARD_KILLS says."""


def test_a_killed_guard_leaves_an_engine_that_the_next_one_finds(tmp_path: Path) -> None:
    with guard(tmp_path, engine_args=("--keep-orphans", "--noise", "50")) as first:
        first.serving()
        pids = [first.pid(role) for role in ("api", "core", "worker")]
        life = first.life()["id"]
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        orphans = [orphan for pid in pids if (orphan := procs.identify(pid)) is not None]
        assert len(orphans) == 3, "the engine goes on without its guard"
        with guard(tmp_path) as second:
            second.wait_for("the last guard was killed")
            second.serving(2)
            (incident,) = second.incidents()
            assert incident["life"]["id"] == life
            assert incident["cause"]["cause"] == "process-lifecycle"
            assert incident["cause"]["subtype"] == "guard-killed"
            assert incident["complete"] is True
            assert "INFO line 49" in (incident["folder"] / "engine.log").read_text()
            assert list(incident["folder"].glob("captures/recovery/proc/*.txt"))
            # A zombie that init has not reaped yet is no process of ours any more.
            assert not any(procs.is_alive(orphan) for orphan in orphans)
            second.stop()
            assert second.wait() == 0
    assert first.marked() == []
    assert first.tmps() == []


def test_what_the_engine_says_after_the_guard_died_is_kept(tmp_path: Path) -> None:
    with guard(tmp_path, engine_args=("--die", "worker-exception", "--after", "1.5")) as first:
        first.serving()
        life = first.life()["id"]
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        wait_until(lambda: not first.marked(), "the engine to die by itself")
        folder = first.state / "logs" / life
        wait_until(
            lambda: b"OutOfMemoryError" in b"".join(c for _, path in segments(folder) for c in read_segment(path)),
            "the last words",
        )
        with guard(tmp_path) as second:
            second.serving(2)
            (incident,) = second.incidents()
            assert incident["cause"]["cause"] == "device-oom", "the log knows more than that the guard was gone"


def test_an_unfinished_bundle_is_completed(tmp_path: Path) -> None:
    with guard(tmp_path, engine_args=("--keep-orphans",)) as first:
        first.serving()
        life = first.life()["id"]
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        begun = first.state / "incidents" / "20260101T000000Z-0001"
        begun.mkdir()
        (begun / "incident.json").write_text(json.dumps({"schema": "lifesign.incident/1", "life": {"id": life}}))
        stray = first.state / "incidents" / "20250101T000000Z-0001"
        stray.mkdir()
        with guard(tmp_path) as second:
            second.serving(2)
            names = {path.name: json.loads((path / "incident.json").read_text()) for path in (begun, stray)}
            assert names[begun.name]["complete"] is True
            assert names[begun.name]["cause"]["cause"] == "process-lifecycle"
            assert names[stray.name]["abandoned"] is True
            assert begun.with_name(begun.name + ".tar.zst").exists()


def test_a_recorded_pid_that_belongs_to_a_stranger_is_left_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(parents=True)
    me = procs.identify(os.getpid())
    assert me is not None
    record = {
        "schema": "lifesign.life/1",
        "id": "1-00000000",
        "number": 1,
        "boot_id": procs.boot_id(),
        "top": [me.pid, me.start_ticks - 1],
        "members": [
            {"pid": me.pid, "start_ticks": me.start_ticks - 1, "ppid": 1, "role": "core", "name": "EngineCore"}
        ],
    }
    (state / "life.json").write_text(json.dumps(record))
    with guard(tmp_path) as run:
        run.serving()
        assert "nothing of its engine runs any more" in run.said
        run.stop()
        assert run.wait() == 0


def test_guard_killed_at_random_moments(tmp_path: Path) -> None:
    """Start, serve, worker killed, evidence written, waiting: wherever SIGKILL falls, the next guard cleans up."""
    seed = int(os.environ.get("LIFESIGN_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed} (repeat with LIFESIGN_SEED={seed})")
    draw = random.Random(seed)
    for round_number in range(ROUNDS):
        folder = tmp_path / str(round_number)
        folder.mkdir()
        delay_s = draw.uniform(0.2, 6.0)
        with guard(folder, engine_args=("--die", "worker-exception", "--after", "1.0", "--keep-orphans")) as first:
            time.sleep(delay_s)
            first.process.send_signal(signal.SIGKILL)
            first.wait()
            known = {path.name for path in (first.state / "incidents").glob("*") if path.is_dir()}
            with guard(folder, engine_args=()) as second:
                second.serving(first.said.count("the engine serves") + 1)
                where = f"round {round_number}, killed after {delay_s:.2f} s, seed {seed}"
                assert set(first.marked()) <= {one["pid"] for one in second.life()["members"]}, where
                for incident in second.incidents():
                    assert incident["complete"] is True, where
                    if not incident.get("abandoned"):
                        assert (incident["folder"] / "engine.log").exists(), where
                assert known <= {path.name for path in (second.state / "incidents").glob("*") if path.is_dir()}, where
                second.stop()
                assert second.wait() == 0, where
        assert first.marked() == [], where
