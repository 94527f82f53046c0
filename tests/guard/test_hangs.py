"""The detector in guard's hands, around a fake engine: stopped processes are found and named, pauses are forgiven."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from lifesign.guard.detector.replay import replay

from ..engine_support import free_port
from .harness import guard, wait_until

BUSY = Path(__file__).with_name("busy_engine.py")


@pytest.mark.parametrize("role", ["core", "worker"])
def test_a_stopped_process_is_suspected_pictured_called_dead_and_replaced(tmp_path: Path, role: str) -> None:
    with guard(tmp_path, http="127.0.0.1:0") as run:
        run.serving()
        pid = run.pid(role)
        stopped = time.monotonic()
        run.kill(role, signal.SIGSTOP)
        run.wait_for("suspect:")
        assert run.get("/readyz")[0] == 503
        assert run.get("/livez")[0] == 200, "a suspect engine is alive"
        run.serving(2)
        took_s = time.monotonic() - stopped
        assert took_s < 60.0
        (incident,) = run.incidents()
        assert (incident["cause"]["cause"], incident["cause"]["subtype"]) == ("timeout-hang", "stopped")
        assert str(pid) in " ".join(incident["detector"]["who"])
        assert incident["decision"]["action"] == "restart"
        verdict = incident["report"]["verdict"]
        assert verdict["cause"] == "timeout-hang"
        proof = verdict["evidence"][0]
        line = (incident["folder"] / proof["path"]).read_text().split("\n")[proof["line"] - 1]
        assert proof["text"] in line
        views = list(incident["folder"].glob(f"captures/*/proc/*-{pid}.txt"))
        assert views
        assert "state T" in views[0].read_text()
        events = (incident["folder"] / "events.jsonl").read_text().splitlines()
        assert all(one.same for one in replay(events)), "the recording replays bit for bit"
        page = run.get("/metrics")[1]
        assert "lifesign_suspicions_total 1.0" in page
        assert 'lifesign_detection_latency_seconds_bucket{le="20.0"} 1.0' in page
        run.stop()
        assert run.wait() == 0


def test_a_pause_is_forgiven(tmp_path: Path) -> None:
    with guard(tmp_path, http="127.0.0.1:0") as run:
        run.serving()
        run.kill("worker", signal.SIGSTOP)
        run.wait_for("suspect:")
        run.kill("worker", signal.SIGCONT)
        run.wait_for("the engine is well again")
        wait_until(lambda: run.get("/readyz")[0] == 200, "/readyz to turn back")
        time.sleep(2)
        assert run.incidents() == []
        assert json.loads(run.get("/state")[1])["life"] == 1
        assert "lifesign_suspicions_withdrawn_total 1.0" in run.get("/metrics")[1]
        run.stop()
        assert run.wait() == 0
        assert run.incidents() == [], "a suspicion that was withdrawn is not kept"


def test_a_livelock_behind_a_frozen_page_is_found_by_our_own_request(tmp_path: Path) -> None:
    """The page says "0 running" while a worker spins: only a request of our own shows that nothing is answered."""
    control = tmp_path / "control.json"
    control.write_text(json.dumps({"sequences": 0}))
    port = free_port()
    engine = [sys.executable, str(BUSY), "--port", str(port), "--control", str(control)]
    with guard(tmp_path, "--engine-url", f"http://127.0.0.1:{port}", "--max-restarts", "0", engine=engine) as run:
        run.serving()
        time.sleep(8)
        control.write_text(json.dumps({"sequences": 0, "spin": 1}))
        assert run.wait(150) == 137
        (incident,) = run.incidents()
        assert (incident["cause"]["cause"], incident["cause"]["subtype"]) == ("timeout-hang", "stuck")
        assert "spinning" in " ".join(incident["detector"]["who"])
        stacks = "".join(path.read_text() for path in incident["folder"].glob("captures/*/stacks/Worker*.txt"))
        if "no Python stack" not in stacks:
            assert "spin (" in stacks


def test_a_guard_that_sleeps_kills_nobody(tmp_path: Path) -> None:
    with guard(tmp_path) as run:
        run.serving()
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(20)
        run.process.send_signal(signal.SIGCONT)
        time.sleep(4)
        assert run.incidents() == []
        assert run.said.count("the engine serves") == 1
        run.stop()
        assert run.wait() == 0


def test_without_the_detector_nothing_is_judged(tmp_path: Path) -> None:
    with guard(tmp_path, "--no-detector") as run:
        run.serving()
        run.kill("worker", signal.SIGSTOP)
        time.sleep(4)
        assert "suspect" not in run.said
        run.kill("worker", signal.SIGCONT)
        run.stop()
        assert run.wait() == 0
