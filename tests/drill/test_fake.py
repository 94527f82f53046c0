"""The fake engine: real processes and real HTTP, logs in the shape of each release."""

from __future__ import annotations

import http.client
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lifesign.drill.engines import choose
from lifesign.drill.fake.dialect import RELEASES
from lifesign.drill.session import Session
from lifesign.drill.vocabulary import find
from lifesign.guard.procs import signal_exactly


class Fake:
    """A running fake engine."""

    def __init__(self, tmp_path: Path, release: str) -> None:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        engine, fault = choose("fake", release=release), find("healthy")
        self.log = tmp_path / "fake.log"
        self.session = Session(
            engine.argv(fault, tmp_path, self.port), engine.environment(fault, tmp_path), self.log, tmp_path
        )
        end_s = time.monotonic() + 20
        while self.get("/health") != 200:
            assert time.monotonic() < end_s, self.log.read_text()
            time.sleep(0.05)

    def get(self, path: str) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def post(self, body: object) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def kill(self, role: str) -> None:
        target = self.session.find(role)  # type: ignore[arg-type]
        assert target is not None
        assert signal_exactly(target, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    running: list[Fake] = []

    def make(release: str = "0.32.0") -> Fake:
        running.append(Fake(tmp_path, release))
        return running[-1]

    yield make
    for fake in running:
        fake.session.close()


def test_it_serves(start) -> None:  # type: ignore[no-untyped-def]
    fake = start()
    status, body = fake.post({"prompt": "hello", "max_tokens": 3})
    assert status == 200
    assert json.loads(body)["choices"][0]["text"] == " tok tok tok"
    status, body = fake.post({"prompt": "hello", "max_tokens": 2, "stream": True})
    assert status == 200
    assert body.count("data: ") == 3
    assert body.rstrip().endswith("data: [DONE]")
    assert fake.get("/metrics") == 200
    assert fake.get("/nowhere") == 404
    assert fake.post(b"{ not json")[0] == 400
    assert fake.post({"model": "another", "prompt": "x"})[0] == 404
    assert fake.get("/health") == 200, "a refused request harms nobody"


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_a_killed_worker_ends_the_engine_with_code_zero(start, release: str) -> None:  # type: ignore[no-untyped-def]
    fake = start(release)
    fake.kill("worker")
    assert fake.session.wait(10) == 0
    text = fake.log.read_text()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "died unexpectedly" in plain
    assert ("exit code: -9" in plain) == RELEASES[release].exit_code_in_death
    assert "EngineDeadError" in plain
    assert bool(re.search(r"^\(EngineCore", plain, re.M)) == bool(RELEASES[release].core_prefix)
    assert ("\x1b[" in text) == (release == "0.11.2")


def test_a_killed_core_is_noticed(start) -> None:  # type: ignore[no-untyped-def]
    fake = start()
    fake.kill("core")
    assert fake.session.wait(10) == 0
    assert "engine core exited unexpectedly" in fake.log.read_text()


def test_a_clean_stop_names_no_death(start) -> None:  # type: ignore[no-untyped-def]
    fake = start()
    fake.session.top.send_signal(signal.SIGTERM)
    assert fake.session.wait(10) == 0
    text = fake.log.read_text()
    assert "shutdown triggered" in text
    assert "died unexpectedly" not in text
    assert "EngineDeadError" not in text


def test_three_processes_and_none_left(start) -> None:  # type: ignore[no-untyped-def]
    fake = start()
    assert sorted(role for _, role in fake.session.processes()) == ["api", "core", "worker"]
    fake.session.close()
    assert fake.session.processes() == []
