"""Waiting in slices: the right reply to the right call, whatever the ring does between two looks.

The rings here are scripted and keep virtual time, so that every order of events can be tried in no time. The same
properties on vLLM's own rings are in test_plugin_rings.py.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lifesign.guard.detector.policy import StepSize
from lifesign.vllm_plugin import hooks
from lifesign.vllm_plugin.hooks import attach, leave_alone, make_patient, other_call, step_size, wrap_as
from lifesign.vllm_plugin.waiting import (
    SLICE_S,
    Call,
    PatientQueue,
    RefusedError,
    StuckError,
    Supervisor,
    Wait,
    ends_step,
)


class World:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s


class ScriptedRing:
    """A ring whose messages arrive at given times; a large one leaves a mark in the ring and its body on the socket."""

    def __init__(self, world: World, messages: list[tuple[float, Any, float | None]], slots: int = 10) -> None:
        self.world = world
        self.messages = deque(messages)  # (when the slot is written, payload, when the body arrives or None)
        self.bodies: deque[tuple[float, Any]] = deque()
        self.current_idx = 0
        self.local_socket = object()
        self._is_local_reader = True
        self.buffer = type("Buffer", (), {"max_chunks": slots})()
        self.reads = 0

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        self.reads += 1
        deadline_s = float("inf") if timeout is None else self.world.now_s + timeout
        if not self.messages or self.messages[0][0] > deadline_s:
            self.world.now_s = max(self.world.now_s, deadline_s)
            raise TimeoutError
        at_s, payload, body_s = self.messages.popleft()
        self.world.now_s = max(self.world.now_s, at_s)
        self.current_idx = (self.current_idx + 1) % self.buffer.max_chunks
        if body_s is None:
            return payload
        self.bodies.append((body_s, payload))
        return self.recv(self.local_socket, timeout)

    def recv(self, socket: Any, timeout: float | None) -> Any:
        assert socket is self.local_socket
        deadline_s = float("inf") if timeout is None else self.world.now_s + timeout
        if self.bodies[0][0] > deadline_s:
            self.world.now_s = deadline_s
            raise TimeoutError
        at_s, payload = self.bodies.popleft()
        self.world.now_s = max(self.world.now_s, at_s)
        return payload


class RecordingWatcher:
    """Remembers what it was told; gives up a wait once a step is older than `patience_s`."""

    def __init__(self, patience_s: float = float("inf")) -> None:
        self.patience_s = patience_s
        self.events: list[Any] = []
        self.looks: list[Wait] = []

    def other_call_done(self) -> None:
        self.events.append("other")

    def step_sent(self, size: StepSize) -> None:
        self.events.append(("sent", size))

    def step_finished(self, size: StepSize, seconds: float, now_s: float) -> None:
        self.events.append(("finished", size, round(seconds, 6)))

    def step_failed(self) -> None:
        self.events.append("failed")

    def look(self, wait: Wait) -> None:
        self.looks.append(wait)
        if wait.age_s > self.patience_s:
            raise StuckError("test: given up")

    def off(self) -> None:
        self.events.append("off")


def patient(world: World, ring: ScriptedRing, watcher: RecordingWatcher) -> tuple[Supervisor, Callable[[], Any]]:
    """A supervisor and vLLM's get_response over one patient ring."""
    supervisor = Supervisor(watcher, world.clock)
    queue = PatientQueue(ring, 0, supervisor)

    def get_response() -> Any:
        try:
            return queue.dequeue(timeout=10.0)
        except TimeoutError as error:
            raise TimeoutError("RPC call to execute_model timed out.") from error

    return supervisor, get_response


SIZE = StepSize(4, 4)


def reply(call: Call, get_response: Callable[[], Any]) -> Any:
    """What a future would do: get the call's reply with vLLM's own function, through the supervisor."""
    call.get_response = get_response
    return call()


def test_a_reply_after_the_limit_is_waited_for_and_learned_from() -> None:
    world = World()
    watcher = RecordingWatcher()
    supervisor, get_response = patient(world, ScriptedRing(world, [(25.0, "tokens", None)]), watcher)
    call = supervisor.sent("execute_model", SIZE)
    assert reply(call, get_response) == "tokens"
    assert watcher.events == [("sent", SIZE), ("finished", SIZE, 25.0)]
    assert len(watcher.looks) == 49  # a look after each empty slice
    assert watcher.looks[-1].age_s == pytest.approx(24.5)


def test_a_prompt_reply_costs_no_look() -> None:
    world = World()
    watcher = RecordingWatcher()
    ring = ScriptedRing(world, [(0.3, "tokens", None)])
    supervisor, get_response = patient(world, ring, watcher)
    assert reply(supervisor.sent("execute_model", SIZE), get_response) == "tokens"
    assert watcher.looks == []
    assert ring.reads == 1


def test_without_a_supervised_call_the_limit_stays_vllms() -> None:
    world = World()
    ring = ScriptedRing(world, [(25.0, "late", None)])
    supervisor = Supervisor(RecordingWatcher(), world.clock)
    with pytest.raises(TimeoutError):
        PatientQueue(ring, 0, supervisor).dequeue(timeout=10.0)
    assert world.now_s == 10.0
    assert ring.reads == 1


def test_given_up_means_no_further_call_and_no_stale_reply() -> None:
    world = World()
    ring = ScriptedRing(world, [(40.0, "stale", None), (41.0, "fresh", None)])
    supervisor, get_response = patient(world, ring, RecordingWatcher(patience_s=20.0))
    first = supervisor.sent("execute_model", SIZE)
    second = Call("sample_tokens", first.step, supervisor)
    with pytest.raises(TimeoutError, match="RPC call"):
        reply(first, get_response)
    world.now_s = 60.0
    reads = ring.reads
    with pytest.raises(RefusedError, match="test: given up"):
        reply(second, get_response)
    with pytest.raises(RefusedError):
        supervisor.refuse_if_finished("execute_model")
    assert ring.reads == reads, "the ring must not be touched again: its next reply is the stale one"


def test_a_worker_error_is_no_reason_to_refuse() -> None:
    world = World()
    watcher = RecordingWatcher()
    supervisor, _ = patient(world, ScriptedRing(world, []), watcher)

    def failing() -> Any:
        raise RuntimeError("Worker failed with error 'x'")

    with pytest.raises(RuntimeError, match="Worker failed"):
        reply(supervisor.sent("execute_model", SIZE), failing)
    supervisor.refuse_if_finished("execute_model")
    assert watcher.events[-1] == "failed"


@pytest.mark.parametrize("body_s", [0.1, 0.7, 30.0])
def test_a_large_reply_whose_body_is_late_is_not_mixed_up_with_the_next(body_s: float) -> None:
    world = World()
    ring = ScriptedRing(world, [(0.0, "large", body_s), (0.05, "next", None)])
    supervisor, get_response = patient(world, ring, RecordingWatcher())
    call = supervisor.sent("execute_model", SIZE)
    assert reply(call, get_response) == "large"
    assert reply(Call("sample_tokens", call.step, supervisor), get_response) == "next"


def test_naive_slicing_would_mix_them_up() -> None:
    """The negative beside it: reading the ring again after a spent mark takes the next reply for this one."""
    world = World()
    ring = ScriptedRing(world, [(0.0, "large", 30.0), (0.05, "next", None)])
    with pytest.raises(TimeoutError):
        ring.dequeue(timeout=SLICE_S)
    assert ring.dequeue(timeout=SLICE_S) == "next"


@pytest.mark.parametrize("seed", range(300))
def test_any_order_of_small_large_early_and_late_replies_keeps_the_order(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    world = World()
    messages: list[tuple[float, Any, float | None]] = []
    at_s = 0.0
    for number in range(30):
        at_s += chance.choice([0.0, 0.001, 0.2, 0.49, 0.5, 0.51, 3.0, 12.0])
        body_s = at_s + chance.choice([0.0, 0.3, 0.6, 9.0]) if chance.random() < 0.4 else None
        messages.append((at_s, number, body_s))
    ring = ScriptedRing(world, messages, slots=chance.choice([2, 3, 10]))
    supervisor, get_response = patient(world, ring, RecordingWatcher())
    for number in range(30):
        assert reply(supervisor.sent("execute_model", SIZE), get_response) == number


def test_a_step_in_the_queue_is_timed_from_when_the_workers_were_free() -> None:
    world = World()
    watcher = RecordingWatcher()
    ring = ScriptedRing(world, [(10.0, "a", None), (14.0, "b", None)])
    supervisor, get_response = patient(world, ring, watcher)
    first, second = supervisor.sent("execute_model", SIZE), supervisor.sent("execute_model", SIZE)
    reply(first, get_response)
    reply(second, get_response)
    assert [event[2] for event in watcher.events if event[0] == "finished"] == [10.0, 4.0]
    assert max(wait.age_s for wait in watcher.looks[20:]) < 4.0


def test_execute_and_sample_are_one_step() -> None:
    world = World()
    watcher = RecordingWatcher()
    ring = ScriptedRing(world, [(2.0, None, None), (5.0, "tokens", None)])
    supervisor, get_response = patient(world, ring, watcher)
    reply(supervisor.sent("execute_model", SIZE), get_response)
    assert watcher.events == [("sent", SIZE)]
    reply(supervisor.sent("sample_tokens", None), get_response)
    assert watcher.events == [("sent", SIZE), ("finished", SIZE, 5.0)]


@pytest.mark.parametrize(
    ("method", "response", "ends"),
    [
        ("execute_model", None, False),
        ("execute_model", [None, None], False),
        ("execute_model", "output", True),
        ("execute_model", [None, "output"], True),
        ("sample_tokens", "output", True),
        ("execute_dummy_batch", None, True),
        ("take_draft_token_ids", "drafts", False),
    ],
)
def test_which_reply_ends_a_step(method: str, response: Any, ends: bool) -> None:
    assert ends_step(method, response) is ends


def test_step_size_of_a_scheduler_output_and_of_strangers() -> None:
    scheduled = type("S", (), {"num_scheduled_tokens": {"a": 5, "b": 1}, "total_num_scheduled_tokens": 6})()
    assert step_size("execute_model", (scheduled,)) == StepSize(2, 6)
    assert step_size("execute_model", ()) == StepSize(0, 0)
    assert step_size("execute_model", (object(),)) == StepSize(0, 0)
    assert step_size("sample_tokens", (None,)) is None


def test_another_call_that_times_out_finishes_the_executor() -> None:
    supervisor = Supervisor(RecordingWatcher())

    def timing_out() -> Any:
        raise TimeoutError("RPC call to check_health timed out.")

    with pytest.raises(TimeoutError):
        other_call(supervisor, timing_out)
    with pytest.raises(RefusedError, match="check_health"):
        supervisor.refuse_if_finished("execute_model")
    fine = Supervisor(RecordingWatcher())
    assert other_call(fine, lambda: 7) == 7
    fine.refuse_if_finished("execute_model")


@pytest.mark.parametrize("method", ["look", "step_sent", "step_finished", "step_failed"])
def test_a_fault_of_ours_leaves_vllms_own_limit_in_force(method: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    watcher = RecordingWatcher()

    def broken(*args: Any) -> None:
        raise KeyError("a bug")

    setattr(watcher, method, broken)
    if method == "step_failed":
        watcher.patience_s = 9.0
    ring = ScriptedRing(world, [(1.0, "first", None), (25.0, "late", None)])
    supervisor, get_response = patient(world, ring, watcher)
    assert reply(supervisor.sent("execute_model", SIZE), get_response) == "first"
    with pytest.raises(TimeoutError, match="RPC call"):
        reply(supervisor.sent("execute_model", SIZE), get_response)
    if method != "step_failed":
        assert world.now_s == pytest.approx(11.0, abs=SLICE_S), "vLLM's 10 s"
    assert caplog.text.count("vLLM's own limits are in force") == 1
    assert watcher.events.count("off") == 1
    with pytest.raises(RefusedError):
        supervisor.refuse_if_finished("execute_model")


class FakeExecutor:
    """As much of vLLM's executor as `attach` and `make_patient` look at."""

    def __init__(self, rings: list[ScriptedRing]) -> None:
        self.response_mqs = rings
        self.futures_queue: deque[Any] = deque()


class FakeFuture:
    """A future that carries its get_response, like vLLM's from 0.27 on."""

    def __init__(self, get_response: Callable[[], Any]) -> None:
        self.get_response = get_response


class RealFuture(FakeFuture):
    """... and whose result is asked for."""

    def result(self) -> Any:
        return self.get_response()


@pytest.mark.parametrize("name", ["begin_beacon", "_attach_keeper", "step_size", "make_patient"])
def test_a_fault_of_ours_around_a_call_changes_nothing_for_vllm(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise KeyError("a bug of ours")

    leave_alone.cache_clear()
    world, watcher = World(), RecordingWatcher()
    ring = ScriptedRing(world, [(1.0, "first", None), (1.0, "second", None)])
    withdrawn: list[str] = []
    beacon = SimpleNamespace(withdraw=lambda: withdrawn.append("beacon"))
    monkeypatch.setattr(hooks, "begin_beacon", lambda: beacon)
    monkeypatch.setattr(hooks, "_attach_keeper", lambda executor, beacon, shape: attach(executor, watcher, shape))
    monkeypatch.setattr(hooks, name, broken)

    class Executor(FakeExecutor):
        def _init_executor(self) -> None:
            self.started = True

        def collective_rpc(
            self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False
        ) -> Any:
            future = RealFuture(lambda: ring.dequeue(timeout=10.0))
            return future if non_block else future.result()

    wrap_as(Executor, "carries")
    executor = Executor([ring])
    executor._init_executor()
    assert executor.started
    assert executor.collective_rpc("execute_model", 10.0, (None,)) == "first"
    assert executor.collective_rpc("execute_model", 10.0, (None,), None, True).result() == "second"
    assert len(caplog.records) == 1
    assert withdrawn == (["beacon"] if name == "_attach_keeper" else [])
    assert watcher.events.count("off") == (name in ("step_size", "make_patient"))


@pytest.mark.parametrize("shape", ["carries", "pairs"])
def test_both_shapes_of_futures_are_awaited_through_the_supervisor(shape: str) -> None:
    world = World()
    ring = ScriptedRing(world, [(25.0, "tokens", None)])
    executor = FakeExecutor([ring])
    attach(executor, RecordingWatcher(), shape)
    supervisor = executor.__dict__["_lifesign_supervisor"]
    supervisor.clock = world.clock
    call = supervisor.sent("execute_model", SIZE)
    future = FakeFuture(lambda: ring.dequeue(timeout=10.0))
    executor.futures_queue.appendleft(future if shape == "carries" else (future, future.get_response))
    make_patient(executor, call, future, shape == "carries")
    queued = executor.futures_queue.pop()
    assert (queued.get_response() if shape == "carries" else queued[1]()) == "tokens"
    assert world.now_s == 25.0


def test_a_ring_that_cannot_be_resumed_safely_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for ring in (ScriptedRing(world, [], slots=1), ScriptedRing(world, [])):
        if ring.buffer.max_chunks > 1:
            del ring.local_socket
        executor = FakeExecutor([ring])
        caplog.clear()
        leave_alone.cache_clear()
        attach(executor, RecordingWatcher(), "carries")
        assert "_lifesign_supervisor" not in executor.__dict__
        assert "dequeue" not in ring.__dict__
        assert len(caplog.records) == 1
        assert "left as it is" in caplog.text
