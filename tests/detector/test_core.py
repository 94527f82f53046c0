"""The detector event by event: what it says, when, about whom, and what it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import (
    AskOperator,
    Begin,
    Canary,
    CanaryAnswered,
    Capture,
    Changed,
    Command,
    Degraded,
    Exited,
    Kill,
    Milestone,
    Note,
    Poll,
    Ready,
    Resume,
    Route,
)
from lifesign.guard.detector.evidence import GpuSignals, ProcessSignals
from lifesign.guard.detector.policy import StepSize
from lifesign.guard.detector.states import Finding, State

SIZE = StepSize(4, 4)
WORKING = ProcessSignals(11, "worker", 0, "R", 4.0, 7.0, 0.5, 7.0, 40_000, 20, 2)
SPINNING = ProcessSignals(11, "worker", 0, "R", 4.0, 3.9, 0.1, 3.9)
STOPPED = ProcessSignals(11, "worker", 0, "T", 4.0)
BLOCKED = ProcessSignals(11, "worker", 0, "S", 4.0)
STARVED = ProcessSignals(11, "worker", 0, "R", 4.0, 0.2, 7.8, 0.2, 8_000, 3, 2)
COMPILER = ProcessSignals(12, "compiler", -1, "R", 4.0, 7.0, 0.5, 7.0, 90_000, 20, 2)


class Bench:
    """A detector with a clock."""

    def __init__(self, settings: Settings | None = None, **begin: object) -> None:
        self.detector = Detector(settings)
        self.now_s = 100.0
        self.commands: list[Command] = []
        values: dict[str, object] = {"backend": "cpu", "tier": "beacon", "serving": True, "restart_s": 40.0} | begin
        self.tell(Begin(**values))  # type: ignore[arg-type]

    def tell(self, event: object) -> list[Command]:
        new = self.detector.handle(event, self.now_s)  # type: ignore[arg-type]
        self.commands += new
        return new

    def polls(self, seconds: int, *processes: ProcessSignals, steps: int | None = 0, **poll: object) -> list[Command]:
        new: list[Command] = []
        for _ in range(seconds):
            self.now_s += 1.0
            fields: dict[str, object] = {"steps": steps, "demand": True, "running": SIZE, "processes": processes} | poll
            if steps:
                fields |= {"step_s": 0.5, "size": SIZE}
            new += self.tell(Poll(**fields))  # type: ignore[arg-type]
        return new

    def worked(self) -> Bench:
        self.polls(120, WORKING, steps=2, gpus=(GpuSignals(0, 300.0, 50.0),))
        self.commands.clear()
        return self

    def died_after(self, *processes: ProcessSignals, limit: int = 5000, **poll: object) -> int:
        for second in range(1, limit):
            if any(isinstance(one, Kill) for one in self.polls(1, *processes, **poll)):
                return second
        raise AssertionError(f"not dead after {limit} s: {self.detector.finding}")


def kinds(commands: list[Command]) -> list[str]:
    return [type(one).__name__ for one in commands]


def test_spinning_is_suspected_then_dead_within_the_patience() -> None:
    bench = Bench().worked()
    assert bench.died_after(SPINNING) == 16
    changes = [one for one in bench.commands if isinstance(one, Changed)]
    assert [one.new for one in changes] == [State.SUSPECT, State.DEAD]
    assert changes[0].wall_s <= 10.0
    assert changes[1].who == ("worker 0 (pid 11): spinning",)
    assert kinds(bench.commands) == ["Changed", "Route", "Capture", "Changed", "Capture", "Kill"]
    assert bench.detector.view == "DEAD"
    assert bench.polls(5, WORKING, steps=3) == []  # final until a new engine begins


@pytest.mark.parametrize(("restart_s", "patience", "expected"), [(40.0, 0.3, 16), (300.0, 0.3, 91), (300.0, 1.0, 301)])
def test_patience_is_tied_to_the_cost_of_a_restart(restart_s: float, patience: float, expected: int) -> None:
    bench = Bench(Settings(patience=patience), restart_s=restart_s).worked()
    assert bench.died_after(BLOCKED) == expected


def test_a_long_step_that_works_is_slow_not_dead() -> None:
    bench = Bench().worked()
    bench.polls(330, WORKING)
    assert bench.detector.state is State.SLOW
    assert bench.detector.view == "UNHEALTHY"
    commands = bench.polls(1, WORKING, steps=1)
    assert [one.new for one in commands if isinstance(one, Changed)] == [State.OK]
    assert Route(True) in commands
    assert not any(isinstance(one, Kill) for one in bench.commands)


def test_starvation_slows_the_clock() -> None:
    starved, calm = Bench().worked(), Bench().worked()
    starved.polls(60, STARVED)
    calm.polls(60, WORKING)
    assert calm.detector.clock.own_s == pytest.approx(60.0)
    assert starved.detector.clock.own_s == pytest.approx(6.0)
    assert starved.detector.clock.wall_s == pytest.approx(60.0)
    assert starved.detector.starved


def test_a_spinner_earns_no_credit_for_a_busy_machine() -> None:
    waiting = ProcessSignals(11, "worker", 0, "R", 4.0, 0.5, 3.4, 0.5)
    assert Bench().worked().died_after(waiting) == 16


def test_the_observers_sleep_is_not_held_against_the_engine() -> None:
    bench = Bench().worked()
    bench.polls(3, WORKING)
    bench.now_s += 500.0
    assert bench.polls(1, SPINNING) == []
    assert bench.detector.clock.wall_s == pytest.approx(4.0)
    assert bench.detector.clock.gaps == 1


def test_nothing_known_waits_for_the_ceiling() -> None:
    assert Bench().worked().died_after() == 61
    assert Bench(restart_s=200.0).worked().died_after() == 201
    outside = Bench(tier="outside", max_size=StepSize(512, 512))
    outside.polls(120, WORKING, steps=2, running=None)
    worst_s = outside.detector.cost.suspect_limit_s(StepSize(512, 512))
    assert 60.0 < 1.5 * worst_s < 900.0
    assert outside.died_after(running=None) == int(1.5 * worst_s) + 1


def test_work_is_believed_for_long_but_not_for_ever() -> None:
    assert Bench().worked().died_after(WORKING) == 601
    # Before the costs are learned the limit is a guess.
    fresh = Bench()
    fresh.polls(5, WORKING, steps=1)
    assert fresh.died_after(WORKING) == 3601


def test_stopped_is_seen_at_once_named_and_dead_after_15_s() -> None:
    waiting = replace(BLOCKED, pid=12, rank=1)
    bench = Bench().worked()
    first = bench.polls(1, waiting, STOPPED)
    assert [one.new for one in first if isinstance(one, Changed)] == [State.STOPPED]
    assert bench.died_after(waiting, STOPPED) == 14
    kill = next(one for one in bench.commands if isinstance(one, Kill))
    assert kill.who == ("worker 0 (pid 11): stopped",)
    assert not any(isinstance(one, Resume) for one in bench.commands)


def test_stopped_is_resumed_once_where_that_is_allowed() -> None:
    bench = Bench(Settings(may_resume=True)).worked()
    bench.polls(10, STOPPED)
    assert [one for one in bench.commands if isinstance(one, Resume)] == [Resume((11,))]
    commands = bench.polls(1, WORKING, steps=1)
    assert bench.detector.state is State.OK
    assert Route(True) in commands


@pytest.mark.parametrize(
    "held", [replace(STOPPED, traced=True), replace(STOPPED, state="t"), replace(BLOCKED, frozen=True)]
)
def test_held_on_purpose_is_never_dead(held: ProcessSignals) -> None:
    bench = Bench(Settings(may_resume=True)).worked()
    bench.polls(600, held)
    assert bench.detector.state is State.STOPPED
    assert kinds(bench.commands).count("AskOperator") == 1
    assert any(isinstance(one, AskOperator) for one in bench.commands)
    assert not any(isinstance(one, Kill | Resume) for one in bench.commands)


def test_stopped_while_idle_is_seen_too() -> None:
    bench = Bench().worked()
    bench.polls(20, WORKING, demand=False, running=None)
    assert bench.detector.state is State.IDLE
    assert bench.died_after(STOPPED, demand=False, running=None) == 15


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_is_gone_is_dead_at_once(state: str) -> None:
    bench = Bench().worked()
    assert bench.died_after(WORKING, replace(BLOCKED, pid=12, rank=1, state=state)) == 1
    assert [one.who for one in bench.commands if isinstance(one, Kill)] == [("worker 1 (pid 12): exited",)]


def test_an_exit_event_names_code_or_signal() -> None:
    bench = Bench().worked()
    bench.tell(Exited("worker 1", 12, None, 9))
    assert [one.who for one in bench.commands if isinstance(one, Kill)] == [("worker 1 (pid 12): signal 9",)]
    assert bench.tell(Exited("engine", 10, 1)) == []


def test_idleness_makes_no_age_and_asks_for_a_canary_if_allowed() -> None:
    quiet = Bench().worked()
    quiet.polls(300, BLOCKED, demand=False, running=None)
    assert quiet.detector.state is State.IDLE
    assert "Canary" not in kinds(quiet.commands)
    bench = Bench(Settings(canary=True)).worked()
    bench.polls(34, BLOCKED, demand=False, running=None)
    assert kinds(bench.commands).count("Canary") == 1
    assert bench.detector.state is State.OK  # the canary is demand
    bench.tell(CanaryAnswered(0.2))
    bench.polls(1, BLOCKED, demand=False, running=None)
    assert bench.detector.state is State.IDLE


def test_an_unanswered_canary_finds_the_hang() -> None:
    bench = Bench(Settings(canary=True)).worked()
    assert bench.died_after(BLOCKED, demand=False, running=None) <= 30 + 17
    assert any(isinstance(one, Canary) for one in bench.commands)


def test_a_liar_is_not_listened_to() -> None:
    liar = Bench().worked()
    liar.polls(60, WORKING, demand=False, running=None)
    assert not liar.detector.process_channel.check.trusted
    assert liar.died_after(WORKING) == 61  # unknown, not working


def test_beside_a_gpu_only_the_device_and_compilers_speak() -> None:
    bench = Bench(backend="gpu").worked()
    busy = {"gpus": (GpuSignals(0, 290.0, 40.0),)}
    still = {"gpus": (GpuSignals(0, 120.0, 0.0),)}
    bench.polls(200, SPINNING, **busy)
    assert bench.detector.state is State.SLOW
    bench = Bench(backend="gpu").worked()
    assert bench.died_after(SPINNING, **still) == 16
    bench = Bench(backend="gpu").worked()
    bench.polls(300, SPINNING, COMPILER, **still)
    assert bench.detector.state is State.SLOW
    bench = Bench(backend="gpu").worked()
    assert bench.died_after(SPINNING) == 61  # no device counters: unknown


def test_one_honest_rank_is_enough() -> None:
    bench = Bench().worked()
    bench.polls(300, replace(SPINNING, pid=12, rank=1), WORKING)
    assert bench.detector.state is State.SLOW


def test_blindness_is_not_suspicion() -> None:
    bench = Bench(tier="outside", max_size=SIZE).worked()
    bench.polls(30, steps=None, running=None)
    assert bench.detector.state is State.BLIND
    assert bench.died_after(steps=None, running=None) + 30 == 121


def test_a_known_phase_excuses_until_it_ends() -> None:
    bench = Bench().worked()
    bench.tell(Note("compile", 100.0))
    bench.polls(70)
    assert bench.detector.state is State.SLOW
    assert bench.died_after() <= 45


def test_start_up_dies_only_of_stuck_evidence_without_a_milestone() -> None:
    bench = Bench(serving=False)
    assert bench.detector.state is State.STARTING
    bench.polls(1000, WORKING, demand=False, running=None)
    assert bench.detector.state is State.STARTING
    bench.tell(Milestone("load"))
    bench.polls(290, BLOCKED, demand=False, running=None)
    assert bench.detector.state is State.STARTING
    assert bench.died_after(BLOCKED, demand=False, running=None) <= 15
    assert bench.detector.finding is Finding.START_STUCK
    slow = Bench(serving=False, phase_s={"load": 400.0})
    slow.tell(Milestone("load"))
    slow.polls(1190, BLOCKED, demand=False, running=None)
    assert slow.detector.state is State.STARTING
    slow.tell(Ready())
    slow.polls(1, WORKING, demand=False, running=None)
    assert slow.detector.state is State.IDLE


def test_a_restart_keeps_what_was_learned() -> None:
    bench = Bench().worked()
    learned = bench.detector.cost.costs()
    bench.died_after(SPINNING)
    bench.tell(Begin("cpu", "beacon", True, 40.0))
    assert bench.detector.state is State.OK
    assert bench.detector.cost.costs() == learned
    bench.tell(Begin("gpu", "beacon", True, 40.0))
    assert bench.detector.cost.costs() != learned


def test_slower_than_it_was_is_reported_and_no_more() -> None:
    bench = Bench().worked()
    bench.polls(600, WORKING, steps=1)
    for _ in range(200):
        bench.now_s += 1.0
        bench.tell(Poll(1, True, 1.5, SIZE, SIZE, (WORKING,)))
    assert [one.on for one in bench.commands if isinstance(one, Degraded)] == [True]
    for _ in range(200):
        bench.now_s += 1.0
        bench.tell(Poll(1, True, 0.5, SIZE, SIZE, (WORKING,)))
    assert [one.on for one in bench.commands if isinstance(one, Degraded)] == [True, False]
    assert bench.detector.state is State.OK


def test_capture_comes_before_the_kill() -> None:
    bench = Bench().worked()
    bench.died_after(SPINNING)
    words = kinds(bench.commands)
    assert words.index("Capture") < words.index("Kill")
    assert [one.why for one in bench.commands if isinstance(one, Capture)] == [Finding.LATE, Finding.STUCK_TOO_LONG]
