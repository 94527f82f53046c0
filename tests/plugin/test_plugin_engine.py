"""Patience inside a real vLLM: what dies without it lives with it, and what is dead is still called dead.

Each class has one engine, started once; its last test may kill it. Where a test reads "step", the worker is made slow by
tests/plugin/stall, a plugin of its own that knows nothing of lifesign.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_support import SMALL, EngineServer
from lifesign.guard.detector.beacon import BeaconReading, BeaconState, find_beacon, read_beacon

pytestmark = pytest.mark.engine

STALL = Path(__file__).parent / "stall"
PATIENT = {"LIFESIGN_PATIENCE": "1"}
SHORT_LIMIT = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "10"}
BATCH = ("--max-model-len", "256", "--max-num-seqs", "64", "--enforce-eager", "--no-enable-prefix-caching")
PROMPTS = [f"request number {number:02d}" for number in range(64)]
STEPS = 5
CLASS = "lifesign.vllm_plugin.executor.PatientMultiprocExecutor"


class StallingServer(EngineServer):
    """An engine whose worker stalls when told to."""

    def start(self) -> None:
        info = self.folder / "stall" / "lifesign_test_stall-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lifesign_test_stall\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\nstall = lifesign_test_stall:register\n")
        self.order = self.folder / "order.json"
        self.python_path = (str(info.parent), str(STALL))
        self.env = {
            **self.env,
            "LIFESIGN_TEST_STALL": str(self.order),
            "LIFESIGN_BEACON_DIR": str(self.folder / "beacons"),
        }
        super().start()

    def stall(self, mode: str, seconds: float, *, steps: int = 1, rank: int | None = None) -> None:
        """From the next step on."""
        draft = self.order.with_suffix(".new")
        draft.write_text(json.dumps({"mode": mode, "seconds": seconds, "steps": steps, "rank": rank}))
        draft.replace(self.order)

    def beacon(self) -> BeaconReading:
        """What EngineCore says of itself."""
        path = self.beacon_path()
        reading = read_beacon(path)
        assert reading is not None
        return reading

    def beacon_path(self) -> Path:
        found = list((self.folder / "beacons").glob("*.beacon"))
        assert len(found) == 1, found
        return found[0]

    def lines(self, needle: str) -> list[str]:
        """The log's lines with `needle`."""
        return [line for line in self.log().splitlines() if needle in line]


def wait_for_state(server: StallingServer, state: BeaconState, timeout_s: float) -> float:
    """Seconds until the beacon says `state`."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < timeout_s:
        reading = read_beacon(server.beacon_path())
        if reading is not None and reading.state is state:
            return time.monotonic() - began_s
        time.sleep(0.02)
    raise AssertionError(f"no {state.name} within {timeout_s:.0f} s\n{server.log_tail()}")


def assert_dead_and_clean(server: StallingServer, seconds: float) -> None:
    """vLLM ended, with its workers, after lifesign gave up."""
    assert server.wait_exit(seconds) is not None, server.log_tail()
    deadline_s = time.monotonic() + 15.0
    while server.leftovers()["processes"] and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert server.leftovers()["processes"] == []


@pytest.fixture(scope="class")
def plain() -> Iterator[StallingServer]:
    """Without patience; lifesign is visible to the engine all the same."""
    with StallingServer(args=BATCH, env=SHORT_LIMIT) as server:
        yield server


@pytest.fixture(scope="class")
def patient() -> Iterator[StallingServer]:
    """With patience, and vLLM's limit set to 10 s."""
    with StallingServer(args=BATCH, env={**SHORT_LIMIT, **PATIENT}) as server:
        yield server


@pytest.fixture(scope="module")
def answers() -> dict[str, list[list[int]]]:
    """Token ids of undisturbed runs, by engine."""
    return {}


class TestWithoutPatience:
    def test_the_plugin_leaves_no_trace_when_it_is_off(
        self, plain: StallingServer, answers: dict[str, list[list[int]]]
    ) -> None:
        answers["plain"] = plain.complete_batch(PROMPTS, max_tokens=STEPS)
        assert "lifesign" not in plain.log().replace(str(plain.folder), "").replace("cache/lifesign", "").replace(
            "lifesign_test_stall", ""
        )
        assert "lifesign" not in plain.metrics().replace("cache/lifesign", "")
        assert not (plain.folder / "beacons").exists()

    def test_a_step_longer_than_the_limit_kills_the_engine(self, plain: StallingServer) -> None:
        plain.stall("compute", 20.0)
        answer = plain.complete("hello", max_tokens=STEPS)
        assert answer.status == 500
        assert plain.wait_exit(30.0) is not None
        assert "RPC call to execute_model timed out" in plain.log()


class TestWithPatience:
    def test_answers_are_the_same_as_without(
        self, patient: StallingServer, answers: dict[str, list[list[int]]]
    ) -> None:
        answers["patient"] = patient.complete_batch(PROMPTS, max_tokens=STEPS)
        assert len(answers["patient"]) == len(PROMPTS)
        assert all(len(tokens) == STEPS for tokens in answers["patient"])
        if "plain" in answers:
            assert answers["patient"] == answers["plain"]

    def test_a_large_batch_survives_steps_longer_than_the_limit(
        self, patient: StallingServer, answers: dict[str, list[list[int]]]
    ) -> None:
        before = patient.beacon()
        patient.stall("compute", 16.0, steps=2)
        call = patient.in_background(lambda: patient.complete_batch(PROMPTS, max_tokens=STEPS))
        deadline_s = time.monotonic() + 60.0
        while not (reading := patient.beacon()).stepping or reading.step_age_s(time.monotonic_ns()) < 11.0:
            assert time.monotonic() < deadline_s, "no step became older than vLLM's limit"
            time.sleep(0.05)
        assert reading.step_sequences >= 1
        assert reading.limit_s >= 5.0
        page = patient.metrics()
        assert re.search(r'lifesign_step_age_seconds\{engine_pid="\d+"\} 1[1-9]', page)
        assert re.search(r'lifesign_engine_state\{engine_pid="\d+",state="dead"\} 0\.0', page)
        assert call.wait(120.0) == answers["patient"]
        after = patient.beacon()
        assert after.steps_done >= before.steps_done + STEPS
        assert not patient.lines("lifesign: DEAD")
        assert patient.process.poll() is None

    def test_a_worker_stopped_for_a_while_is_unhealthy_and_forgiven(
        self, patient: StallingServer, answers: dict[str, list[list[int]]]
    ) -> None:
        worker = patient.by_role("worker")[0]
        call = patient.in_background(lambda: patient.complete_batch(PROMPTS, max_tokens=200))
        wait_for_state(patient, BeaconState.STEPPING, 10.0)
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            noticed_s = wait_for_state(patient, BeaconState.UNHEALTHY, 10.0)
            assert patient.beacon().stuck_rank == 0
            assert f"worker 0 (pid {worker.pid}): stopped" in patient.beacon().reason
            time.sleep(3.0)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert noticed_s <= 2.5, "UNHEALTHY within 2 s of the stop, and a slice of the machine's own lateness"
        assert [tokens[:STEPS] for tokens in call.wait(120.0)] == answers["patient"]

    def test_a_worker_stopped_for_good_is_dead_within_twenty_seconds(self, patient: StallingServer) -> None:
        worker = patient.by_role("worker")[0]
        core = patient.by_role("engine")[0]
        assert find_beacon(core.pid) in (None, patient.beacon_path())
        call = patient.in_background(lambda: patient.complete("hello", max_tokens=230))
        wait_for_state(patient, BeaconState.STEPPING, 10.0)
        os.kill(worker.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        patient.wait_for_log("lifesign: DEAD", 30.0)
        assert time.monotonic() - began_s <= 20.0
        dead = patient.lines("lifesign: DEAD")[0]
        assert "stopped too long" in dead
        assert f"worker 0 (pid {worker.pid}): stopped" in dead
        assert call.wait(60.0).status == 500
        assert patient.lines(f"lifesign: pid {worker.pid}"), "stacks, or what the kernel knows"
        assert patient.beacon().state is BeaconState.DEAD
        assert_dead_and_clean(patient, 40.0)


@pytest.fixture(scope="class")
def pair() -> Iterator[StallingServer]:
    """Two tensor-parallel ranks, patience by naming the executor class alone."""
    args = (*SMALL, "--tensor-parallel-size", "2", "--distributed-executor-backend", CLASS)
    # vLLM binds each rank to a memory node of its own, and a small machine has one.
    unbound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with StallingServer(args=args, env={**SHORT_LIMIT, **unbound}) as server:
        yield server


class TestTwoRanks:
    def test_a_slow_rank_is_waited_for(self, pair: StallingServer) -> None:
        undisturbed = pair.complete("hello", max_tokens=STEPS)
        assert undisturbed.complete
        assert [worker.rank for worker in pair.beacon().workers] == [0, 1]
        pair.stall("compute", 14.0, rank=1)
        answer = pair.complete("hello", max_tokens=STEPS)
        assert answer.complete
        assert answer.seconds >= 14.0
        assert answer.text == undisturbed.text

    def test_a_livelock_in_one_rank_is_dead_and_named(self, pair: StallingServer) -> None:
        pair.stall("spin", 300.0, steps=2, rank=1)
        began_s = time.monotonic()
        call = pair.in_background(lambda: pair.complete("hello", max_tokens=STEPS))
        pair.wait_for_log("lifesign: DEAD", 90.0)
        assert time.monotonic() - began_s >= 14.0
        dead = pair.lines("lifesign: DEAD")[0]
        assert re.search(r"worker 1 \(pid \d+\): spinning", dead)
        assert call.wait(60.0).status == 500
        assert_dead_and_clean(pair, 40.0)


@pytest.fixture(scope="class")
def older() -> Iterator[StallingServer]:
    """0.27.1 with patience."""
    with StallingServer(args=SMALL, env={**SHORT_LIMIT, **PATIENT}, version="0.27.1") as server:
        yield server


class TestAnOlderRelease:
    def test_a_slow_step_is_survived(self, older: StallingServer) -> None:
        undisturbed = older.complete("hello", max_tokens=STEPS)
        assert undisturbed.complete
        older.stall("compute", 13.0)
        answer = older.complete("hello", max_tokens=STEPS)
        assert answer.complete
        assert answer.seconds >= 13.0
        assert answer.text == undisturbed.text
        assert older.lines("waits for 1 worker(s) are patient")
        assert older.lines("lifesign: UNHEALTHY"), "a step of one sequence has a limit of some seconds"
        assert older.lines("lifesign: HEALTHY again")
        assert not older.lines("left as it is")

    def test_a_livelock_is_dead(self, older: StallingServer) -> None:
        older.stall("spin", 300.0, steps=2)
        call = older.in_background(lambda: older.complete("hello", max_tokens=STEPS))
        older.wait_for_log("lifesign: DEAD", 90.0)
        assert "spinning" in older.lines("lifesign: DEAD")[0]
        assert call.wait(60.0).status == 500
        assert_dead_and_clean(older, 40.0)


@pytest.mark.long
def test_the_other_shape_of_the_executor() -> None:
    """0.19.1: other futures, and a first step that compiles for 10 to 20 s. Needs `engine_env.py build 0.19.1 --large-torch`."""
    args = (*SMALL, "--distributed-executor-backend", "mp")
    with StallingServer(args=args, env={**SHORT_LIMIT, **PATIENT}, version="0.19.1") as server:
        undisturbed = server.complete("hello", max_tokens=STEPS, timeout_s=300.0)
        assert undisturbed.complete, server.log_tail()
        server.stall("compute", 16.0)
        answer = server.complete("hello", max_tokens=STEPS)
        assert answer.complete, server.log_tail()
        assert answer.text == undisturbed.text
        assert server.lines("patient (pairs futures)")
        assert not server.lines("lifesign: DEAD")


@pytest.mark.long
def test_a_step_of_330_seconds_under_the_default_limit() -> None:
    """Longer than vLLM's own 300 s; outside CI, run with `pytest -m long`."""
    with StallingServer(args=SMALL, env=PATIENT) as server:
        undisturbed = server.complete("hello", max_tokens=STEPS)
        server.stall("compute", 330.0)
        answer = server.complete("hello", max_tokens=STEPS, timeout_s=500.0)
        assert answer.complete
        assert answer.seconds >= 330.0
        assert answer.text == undisturbed.text
        assert not server.lines("lifesign: DEAD")
