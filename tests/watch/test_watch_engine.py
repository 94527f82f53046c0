"""`lifesign watch` beside a real vLLM: with the plugin's beacon and without, from a pid and from a URL."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watching import Watch

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_support import SMALL, EngineServer

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=["1", "0"], ids=["beacon", "outside"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[EngineServer, bool]]:
    with EngineServer(args=SMALL, env={"LIFESIGN_PATIENCE": request.param}) as one:
        yield one, request.param == "1"


class Demand:
    """Keeps one request running after the other until it is told to stop."""

    def __init__(self, server: EngineServer) -> None:
        self.answers: list[bool] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server,))
        self._thread.start()

    def _run(self, server: EngineServer) -> None:
        while not self._stop.is_set():
            self.answers.append(server.complete(max_tokens=64, timeout_s=120.0).complete)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(150.0)


def test_a_stopped_worker_is_named_and_comes_back(
    server: tuple[EngineServer, bool], watch: Callable[..., Watch]
) -> None:
    engine, beacon = server
    worker = engine.by_role("worker")[0]
    demand = Demand(engine)
    seen = watch(engine.process.pid, "--json", "--every", "1", "--lang", "en", "--for", "150")
    try:
        first = json.loads(seen.until('"watching"'))
        assert ("beacon: steps and their sizes" in first["notes"]) == beacon
        assert any(note.startswith("metrics page: http://127.0.0.1") for note in first["notes"])
        assert {one["role"] for one in first["processes"]} >= {"server", "engine", "worker"}
        seen.until('"state": "OK"')
        engine_signal(worker.pid, signal.SIGSTOP)
        stopped = json.loads(seen.until('"new": "STOPPED"'))
        assert f"pid {worker.pid}" in stopped["text"]
        assert stopped["wall_s"] <= 4.0
        engine_signal(worker.pid, signal.SIGCONT)
        seen.until('"new": "OK"')
    finally:
        engine_signal(worker.pid, signal.SIGCONT)
        demand.close()
    seen.process.send_signal(signal.SIGINT)
    code, _, err = seen.finish()
    assert (code, err) == (0, "")
    assert demand.answers
    assert all(demand.answers)


def test_from_its_url_while_idle(server: tuple[EngineServer, bool], watch: Callable[..., Watch]) -> None:
    engine, _ = server
    seen = watch(engine.base_url, "--json", "--every", "1", "--lang", "en", "--for", "8", "--canary")
    code, out, err = seen.finish()
    assert (code, err) == (0, "")
    states = [json.loads(line) for line in out.splitlines()]
    assert states[-1]["view"] == "HEALTHY"
    assert states[-1]["metrics"]["running"] == 0.0
    assert not [one for one in states if one["event"] == "changed" and one["view"] != "HEALTHY"]


def engine_signal(pid: int, number: int) -> None:
    import os

    os.kill(pid, number)
