"""Reading order of the evidence: each behaviour that was measured on real processes, and what must not be mistaken."""

from __future__ import annotations

import pytest

from lifesign.guard.detector.evidence import (
    Activity,
    GpuChannel,
    GpuSignals,
    IdleCheck,
    ProcessChannel,
    ProcessSignals,
    Score,
    classify,
    weight,
)


def signals(state: str = "R", run_s: float = 0.0, wait_s: float = 0.0, **more: object) -> ProcessSignals:
    values: dict[str, object] = {"cpu_s": run_s} | more
    return ProcessSignals(1, "worker", 0, state, 8.0, run_s, wait_s, **values)  # type: ignore[arg-type]


MEASURED = {
    "two threads, layers": (signals("R", 7.0, 8.0, faults=280_000, switches=20, busy_threads=2), Activity.STARVED),
    "one thread": (signals("R", 6.0, 2.0, faults=330_000, busy_threads=1), Activity.COMPUTING),
    "opaque kernel": (signals("R", 8.0, 7.5, faults=112_000, switches=20, busy_threads=2), Activity.COMPUTING),
    "bound by bandwidth": (signals("R", 7.7, 6.0, switches=180, busy_threads=2), Activity.COMPUTING),
    "starved by neighbours": (signals("R", 0.1, 12.0, faults=4_000, busy_threads=2), Activity.STARVED),
    "throttled": (signals("R", 0.8, 15.2, faults=640, switches=2, busy_threads=2), Activity.STARVED),
    "spin": (signals("R", 7.9, 0.1, busy_threads=1), Activity.SPINNING),
    "spin on a busy machine": (signals("R", 0.4, 7.5, busy_threads=1), Activity.SPINNING),
    "yielding loop, no processor left": (signals("R", 0.004, 7.9, preemptions=900, busy_threads=1), Activity.SPINNING),
    "naps of 1 ms": (signals("S", 0.16, 0.2, switches=7_000), Activity.POLLING),
    "naps of 1 ms on a busy machine": (signals("R", 0.15, 5.0, switches=4_000, busy_threads=1), Activity.POLLING),
    "lock": (signals("S"), Activity.BLOCKED),
    "uninterruptible": (signals("D"), Activity.BLOCKED),
    "pages in from disk": (signals("D", 0.2, 0.0, io_bytes=1 << 24), Activity.PAGING),
    "stopped": (signals("T"), Activity.STOPPED),
    "traced": (signals("t"), Activity.STOPPED),
    "frozen": (signals("S", frozen=True), Activity.STOPPED),
    "zombie": (signals("Z"), Activity.EXITED),
    "no processor at all": (signals("R", 0.001, 7.9), Activity.NO_PROCESSOR),
    "counters not readable": (ProcessSignals(1, state="R"), Activity.UNSEEN),
}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_behaviours(name: str) -> None:
    reading, expected = MEASURED[name]
    assert classify(reading, learned_demand=1.9) is expected


def test_a_heartbeat_does_not_vouch_for_an_interpreter_that_spins() -> None:
    spin = {"run_s": 7.0, "switches": 40, "busy_threads": 1}
    assert classify(signals(**spin)) is Activity.UNCLEAR  # type: ignore[arg-type]
    assert classify(signals(**spin, stacks=1, stack_looks=4)) is Activity.SPINNING  # type: ignore[arg-type]
    assert classify(signals(**spin, stacks=2, stack_looks=4)) is Activity.COMPUTING  # type: ignore[arg-type]
    assert weight(Activity.UNCLEAR) == 0


def test_one_thread_of_many_may_work_alone() -> None:
    parsing = signals("R", 7.5, 0.2, faults=4_000, busy_threads=1)
    assert classify(parsing, learned_demand=16.0) is Activity.COMPUTING
    assert classify(signals("R", 1.2, 0.0, faults=4_000), learned_demand=0.4) is Activity.COMPUTING
    assert classify(signals("R", 1.2, 0.0, faults=4_000), learned_demand=2.0) is Activity.POLLING


def test_utilisation_says_nothing_power_and_memory_do() -> None:
    channel = GpuChannel()
    stuck, working = (GpuSignals(0, 150.0, 0.0),), (GpuSignals(0, 420.0, 40.0),)
    assert channel.read(stuck) == 0  # nothing learned yet
    for _ in range(20):
        channel.learn(working)
    assert channel.read(working) == 1
    assert channel.read(stuck) == -1
    assert channel.read((GpuSignals(0, 400.0, 0.0),)) == 0  # draws power, reads nothing: can't say
    assert channel.read((GpuSignals(0, 150.0, 5.0),)) == 0
    assert channel.read((*stuck, GpuSignals(1, 150.0, 0.0))) == 0  # the second device was never learned
    assert GpuChannel().read(()) == 0


def test_light_load_teaches_no_band_that_convicts() -> None:
    channel = GpuChannel()
    for _ in range(20):
        channel.learn((GpuSignals(0, 110.0, 1.0),))
    assert channel.read((GpuSignals(0, 40.0, 0.0),)) == 0


def test_fusion_over_processes() -> None:
    channel = ProcessChannel()
    work, spin, none = MEASURED["one thread"][0], MEASURED["spin"][0], MEASURED["no processor at all"][0]
    assert channel.read((work, spin)) == 1
    assert channel.read((spin, spin)) == -1
    assert channel.read((spin, none)) == 0
    assert channel.read(()) == 0
    server = ProcessSignals(2, "server", -1, "R", 8.0, 7.0, 0.0, 7.0, 100_000, 10)
    assert channel.read((spin, server)) == -1
    assert channel.activities == {1: Activity.SPINNING}


def test_learned_demands_are_bounded() -> None:
    channel = ProcessChannel()
    for pid in range(500):
        channel.learn((ProcessSignals(pid, window_s=1.0, run_s=1.0),))
    assert len(channel.learned) <= 21


def test_score_needs_agreement() -> None:
    score = Score()
    for _ in range(3):
        score.add(-1, 1.0)
    assert not score.stuck
    for _ in range(2):
        score.add(-1, 1.0)
    assert score.stuck
    for _ in range(30):
        score.add(1, 1.0)
    for _ in range(4):
        score.add(-1, 1.0)
        assert score.working
    for _ in range(5):
        score.add(-1, 1.0)
    assert not score.working
    half = Score()
    for _ in range(20):
        half.add(-1, 0.5)
    assert half.stuck


def test_idle_check() -> None:
    check = IdleCheck()
    for _ in range(100):
        check.idle(-1)
    assert check.trusted
    for _ in range(60):
        check.idle(1)
    assert not check.trusted
