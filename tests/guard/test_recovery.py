"""Guard itself is killed: the next start finds the engine it left, completes what was begun, and loses no line."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from lifesign.guard import procs
from lifesign.guard.logstore import read_segment, segments
from lifesign.guard.statedir import read_json

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


FORKS_WHEN_ASKED = """
import os, signal, sys, time
def fork(number, frame):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(120)
    os._exit(1)
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    signal.signal(signal.SIGTERM, fork)
print("INFO:     Application startup complete.", flush=True)
while True:
    time.sleep(1)
"""


def test_what_an_engine_starts_while_it_is_being_ended_is_ended_too(tmp_path: Path) -> None:
    engine = [sys.executable, "-c", FORKS_WHEN_ASKED, str(tmp_path / "once")]
    with guard(tmp_path, engine=engine) as first:
        first.wait_for("the engine serves")
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        with guard(tmp_path, engine=engine) as second:
            second.wait_for("the engine serves", 2)
            assert {second.life()["top"][0]} == set(second.marked())
            (incident,) = second.incidents()
            assert [one["ended_by_guard"] for one in incident["processes"]] == [True, True]
            second.stop()
            assert second.wait() == 143, "the code of an engine that hears SIGTERM and does nothing about it"
    assert first.marked() == []


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


DIES_ONCE = """
import os, sys, time
print({dump!r}, flush=True)
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    time.sleep(1)
    sys.exit(1)
print("INFO:     Application startup complete.", flush=True)
time.sleep(600)
"""
DUMP = (
    "(EngineCore pid=1) ERROR 11-30 09:22:18 [dump_input.py:79] Dumping scheduler output for model execution: "
    "SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=cmpl-my-order-7-0-aaaabbbb,prompt_token_ids_len=5,"
    "prefill_token_ids_len=None,mm_features=[],sampling_params=SamplingParams(n=1, temperature=1), block_ids=([1],))], "
    "scheduled_cached_reqs=CachedRequestData(req_ids=[], resumed=[]))"
)
STOPS_AT = {
    "decided": """
import time
from lifesign.guard.bundle import Bundle
put = Bundle.put_incident
Bundle.put_incident = lambda self, value: time.sleep(600) if value.get("decision") else put(self, value)
""",
    "complete": "import time\nfrom lifesign.guard import supervisor\nsupervisor.announce = lambda *rest: time.sleep(600)",
    "announced": "import time\nfrom lifesign.guard import supervisor\nsupervisor.clear = lambda *rest, **more: time.sleep(600)",
}


@pytest.mark.parametrize("moment", STOPS_AT)
def test_a_death_that_was_decided_is_not_counted_again(tmp_path: Path, moment: str) -> None:
    """Killed after the decision: one bundle with the true cause, one death on record, no request called poison."""
    engine = [sys.executable, "-c", DIES_ONCE.format(dump=DUMP), str(tmp_path / "died")]
    with guard(tmp_path, engine=engine, patch=STOPS_AT[moment]) as first:
        reached = {
            "decided": lambda: (read_json(first.state / "policy.json") or {}).get("decided"),
            "complete": first.finished_incidents,
            "announced": lambda: first.life().get("settled"),
        }
        wait_until(reached[moment], moment)
        life = first.life()["id"]
        before = read_json(first.state / "policy.json") or {}
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        with guard(tmp_path, engine=engine) as second:
            second.wait_for("the engine serves")
            (incident,) = second.incidents()
            assert incident["life"]["id"] == life
            assert incident["complete"] is True
            assert incident["cause"]["subtype"] != "guard-killed"
            assert incident["decision"]["action"] == "restart"
            assert incident["decision"]["poison"] == []
            assert len(second.finished_incidents()) == 1
            policy = read_json(second.state / "policy.json") or {}
            assert [one["requests"] for one in policy["deaths"]] == [["id:cmpl-my-order-7-0"]]
            assert (policy["fruitless"], policy["deaths"]) == (before["fruitless"], before["deaths"])
            assert "keep it away" not in second.said
            assert second.said.count("[lifesign] cause: ") == 1, "announced once, by whichever guard came to it"


def test_two_deaths_of_two_lives_are_two(tmp_path: Path) -> None:
    """The negative to the one above: the same request in a second life's death is poison."""
    engine = [sys.executable, "-c", f"print({DUMP!r}, flush=True); raise SystemExit(1)"]
    with guard(tmp_path, "--max-restarts", "1", engine=engine) as run:
        assert run.wait() == 1
        assert [one["decision"]["poison"] for one in run.incidents()] == [[], ["id:cmpl-my-order-7-0"]]
        assert "keep it away from every replica: id:cmpl-my-order-7-0" in run.said
        lives = [one["life"]["id"] for one in run.incidents()]
        assert len(set(lives)) == 2


@pytest.mark.parametrize("moment", ["stopping", "clearing"])
def test_a_guard_that_is_killed_while_it_stops_has_left_no_death(tmp_path: Path, moment: str) -> None:
    patch = (
        "import time\nfrom lifesign.guard import supervisor\nsupervisor.clear = lambda *rest, **more: time.sleep(600)"
    )
    args = ("--ignore-term", "--keep-orphans") if moment == "stopping" else ()
    with guard(tmp_path, "--grace", "60", engine_args=args, patch=patch) as first:
        first.serving()
        first.stop()
        key = "stopping" if moment == "stopping" else "settled"
        wait_until(lambda: first.life().get(key), moment)
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        with guard(tmp_path) as second:
            second.serving(2)
            assert second.incidents() == []
            assert (read_json(second.state / "policy.json") or {})["deaths"] == []
            second.stop()
            assert second.wait() == 0
    assert first.marked() == []
    assert first.tmps() == []


def test_a_request_to_stop_is_heard_during_recovery(tmp_path: Path) -> None:
    """An engine that ignores SIGTERM, and a picture that never comes: over within the grace period all the same."""
    slow = "import time, lifesign.guard.blackbox as b\nb._capture = lambda *rest: time.sleep(60)"
    with guard(tmp_path, engine_args=("--ignore-term", "--keep-orphans")) as first:
        first.serving()
        first.process.send_signal(signal.SIGKILL)
        first.wait()
        with guard(tmp_path, "--grace", "5", patch=slow) as second:
            second.wait_for("the last guard was killed")
            asked = time.monotonic()
            second.stop()
            assert second.wait() == 1
            assert time.monotonic() - asked < 6.0
    assert first.marked() == []


def test_a_recovery_that_is_cut_short_is_left_to_the_next_guard(tmp_path: Path) -> None:
    hangs = "import time\nfrom lifesign.guard import recovery\nrecovery.close_incident = lambda *rest, **more: time.sleep(600)"
    with guard(tmp_path, engine_args=("--keep-orphans",)) as first:
        first.serving()
        life = first.life()["id"]
        first.process.send_signal(signal.SIGKILL)
        first.wait()
    with guard(tmp_path, "--grace", "3", patch=hangs) as second:
        second.wait_for("last guard")
        second.stop()
        assert second.wait() == 1
        assert "the next guard completes the bundle" in second.said
        assert second.life()["id"] == life, "still open"
    with guard(tmp_path) as third:
        third.serving(2)
        (incident,) = third.incidents()
        assert incident["life"]["id"] == life


BROKEN = {
    "an error while the bundle is written": (
        {"id": "1-00000000", "top": [0, 0], "members": []},
        "from lifesign.guard import recovery\nrecovery.close_incident = lambda *rest, **more: 1 / 0",
        "ZeroDivisionError",
    ),
    "a record of another shape": (
        {"id": 7, "number": "x", "top": "abc", "members": {"pid": 1}, "shm": 5, "started": "y", "command": 3},
        "",
        "nothing of its engine runs any more",
    ),
    "numbers that are none": (
        {
            "id": "1-00000000",
            "number": True,
            "top": [None],
            "members": [[], {"pid": []}],
            "started": [],
            "start_s": "z",
        },
        "",
        "nothing of its engine runs any more",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_recovery_that_fails_is_said_once_and_fails_no_other_start(tmp_path: Path, case: str) -> None:
    record, patch, sentence = BROKEN[case]
    state = tmp_path / "state"
    (state / "incidents" / "20260101T000000Z-0001").mkdir(parents=True)
    (state / "life.json").write_text(json.dumps({"schema": "lifesign.life/1", "boot_id": procs.boot_id(), **record}))
    with guard(tmp_path, patch=patch) as run:
        run.serving()
        assert sentence in run.said
        assert "Traceback" not in run.said
        begun = read_json(state / "incidents" / "20260101T000000Z-0001" / "incident.json") or {}
        assert begun["abandoned"] is True
        run.stop()
        assert run.wait() == 0
    with guard(tmp_path, patch=patch) as run:
        run.serving(2)
        assert run.said.count(sentence) == 1


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
                lives = [one["life"]["id"] for one in second.incidents() if "life" in one]
                assert len(lives) == len(set(lives)), f"a life that died twice: {where}"
                policy = read_json(second.state / "policy.json") or {}
                assert len(policy["deaths"]) <= len(lives), where
                assert known <= {path.name for path in (second.state / "incidents").glob("*") if path.is_dir()}, where
                second.stop()
                assert second.wait() == 0, where
        assert first.marked() == [], where
