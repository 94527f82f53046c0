"""The keeper: what it says, when it waits on, when it gives up. Virtual time, the real detector, scripted processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lifesign.guard.detector.beacon import BeaconState, BeaconWriter, read_beacon
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin
from lifesign.guard.detector.evidence import ProcessSignals
from lifesign.guard.detector.policy import Backend, StepSize
from lifesign.guard.probes.gpu import GpuProbe
from lifesign.guard.probes.touched import WORKING_BYTES, SecondOpinion, Touched
from lifesign.vllm_plugin.keeper import LINES_PER_STEP, Keeper
from lifesign.vllm_plugin.waiting import StuckError, Wait

SIZE = StepSize(64, 64)


def working(pid: int = 11, rank: int = 0) -> ProcessSignals:
    return ProcessSignals(pid, "worker", rank, "R", 5.0, 4.8, 0.1, 4.8, 40_000, 20)


def spinning(pid: int = 11, rank: int = 0) -> ProcessSignals:
    return ProcessSignals(pid, "worker", rank, "R", 5.0, 4.9, 0.1, 4.9)


def blocked(pid: int = 11, rank: int = 0) -> ProcessSignals:
    return ProcessSignals(pid, "worker", rank, "S", 5.0)


def stopped(pid: int = 11, rank: int = 0) -> ProcessSignals:
    return ProcessSignals(pid, "worker", rank, "T", 5.0)


def unseen(rank: int = 0) -> ProcessSignals:
    return ProcessSignals(0, "worker", rank)


class ScriptedProbe:
    """Shows what the script says for the age of the step."""

    def __init__(self, script: Callable[[float], tuple[ProcessSignals, ...]]) -> None:
        self.script = script
        self.begun: list[float] = []
        self.opinions: dict[int, tuple[float, bool]] = {}

    def begin(self, now_s: float) -> None:
        self.begun.append(now_s)

    def sample(self, now_s: float) -> tuple[ProcessSignals, ...]:
        found = self.script(now_s - self.begun[-1] if self.begun else 0.0)
        for one in found:
            told_s, moves = self.opinions.get(one.pid, (-99.0, False))
            if now_s - told_s <= 5.0:
                one.stacks, one.stack_looks = 2 if moves else 1, 3
        return found

    def told(self, pid: int, moves: bool, now_s: float) -> None:
        self.opinions[pid] = (now_s, moves)


class Bench:
    """A keeper on virtual time."""

    def __init__(
        self,
        script: Callable[[float], tuple[ProcessSignals, ...]],
        *,
        beacon: BeaconWriter | None = None,
        touched: Callable[[int], Touched | None] = lambda pid: None,
        backend: Backend = "cpu",
        floor_s: float = 300.0,
        gpu: GpuProbe | None = None,
    ) -> None:
        self.now_s = 1000.0
        detector = Detector()
        detector.handle(Begin(backend=backend, tier="beacon", serving=True, restart_s=30.0), self.now_s)
        self.probe = ScriptedProbe(script)
        self.stacked: list[list[int]] = []
        self.keeper = Keeper(
            detector,
            self.probe,
            beacon,
            floor_s=floor_s,
            clock=lambda: self.now_s,
            stacks=self.stacks,
            opinion=SecondOpinion(touched, lambda: self.now_s),
            gpu=gpu,
        )

    def stacks(self, pids: list[int]) -> list[str]:
        self.stacked.append(pids)
        return [f"stack of {pid}" for pid in pids]

    def teach(self, seconds: float = 0.4, steps: int = 60) -> None:
        """Steps of the usual length."""
        for _ in range(steps):
            self.keeper.step_sent(SIZE)
            self.now_s += seconds
            self.keeper.step_finished(SIZE, seconds, self.now_s)

    def wait(self, seconds: float, size: StepSize = SIZE) -> float:
        """A step that doesn't come back for `seconds`; gives its age when the keeper gave up (it raises), else `seconds`."""
        self.keeper.step_sent(size)
        began_s = self.now_s
        while self.now_s - began_s < seconds:
            self.now_s += 0.5
            self.keeper.look(Wait("execute_model", 0, size, self.now_s - began_s, self.now_s))
        return self.now_s - began_s

    def wait_until_dead(self, limit_s: float) -> float:
        began_s = self.now_s
        with pytest.raises(StuckError):
            self.wait(limit_s)
        return self.now_s - began_s


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="vllm.lifesign")


def test_a_worker_that_works_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(lambda age_s: (working(),))
    bench.teach()
    assert bench.wait(330.0) == pytest.approx(330.0)
    bench.keeper.step_finished(SIZE, 330.0, bench.now_s)
    assert "UNHEALTHY" in caplog.text
    assert "worker 0 (pid 11): computing" in caplog.text
    assert "the wait is extended" in caplog.text
    assert "HEALTHY again" in caplog.text
    assert "DEAD" not in caplog.text
    assert len(caplog.records) <= LINES_PER_STEP + 1


def test_a_stopped_worker_is_unhealthy_within_two_seconds_and_dead_within_twenty(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    beacon = BeaconWriter("cpu", tmp_path)
    bench = Bench(lambda age_s: (working(11, 0), stopped(12, 1)), beacon=beacon)
    bench.teach()
    bench.wait(2.0)
    assert "UNHEALTHY" in caplog.text
    reading = read_beacon(beacon.path)
    assert reading is not None
    assert reading.state is BeaconState.UNHEALTHY
    assert reading.stuck_rank == 1
    dead_s = 2.0 + bench.wait_until_dead(40.0)
    assert 14.0 <= dead_s <= 20.0
    assert "worker 1 (pid 12): stopped" in caplog.text
    assert "stack of 12" in caplog.text
    assert bench.stacked == [[11, 12]]
    reading = read_beacon(beacon.path)
    assert reading is not None
    assert reading.state is BeaconState.DEAD
    assert "worker 1 (pid 12)" in reading.reason


def test_a_stop_that_ends_is_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(lambda age_s: (stopped() if age_s < 8.0 else working(),))
    bench.teach()
    bench.wait(60.0)
    bench.keeper.step_finished(SIZE, 60.0, bench.now_s)
    assert "UNHEALTHY" in caplog.text
    assert "HEALTHY again" in caplog.text


@pytest.mark.parametrize(("signals", "word"), [(spinning, "spinning"), (blocked, "blocked")])
def test_a_stuck_worker_is_dead_within_twenty_seconds(
    signals: Callable[[], ProcessSignals], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(lambda age_s: (signals(),))
    bench.teach()
    assert 15.0 <= bench.wait_until_dead(60.0) <= 20.0
    assert f"worker 0 (pid 11): {word}" in caplog.text


def test_a_spinner_that_touches_memory_is_at_work(caplog: pytest.LogCaptureFixture) -> None:
    """Measured on a real worker: seconds without a fault or a switch, in the middle of an honest prefill."""
    asked: list[int] = []

    def touched(pid: int) -> Touched:
        asked.append(pid)
        return Touched(2 * WORKING_BYTES, 1.0, 0.2)

    bench = Bench(lambda age_s: (spinning(),), touched=touched)
    bench.teach()
    assert bench.wait(200.0) == pytest.approx(200.0)
    assert "DEAD" not in caplog.text
    assert len(asked) <= 200.0 / 8.0 + 8, "a second opinion holds up the worker: it may not be asked for all the time"


def test_a_spinner_that_touches_little_is_dead(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(lambda age_s: (spinning(),), touched=lambda pid: Touched(WORKING_BYTES // 2, 1.0, 0.2))
    bench.teach()
    assert bench.wait_until_dead(60.0) <= 20.0
    assert "touched 6.0 MiB of memory in 1.0 processor seconds" in caplog.text


def test_a_spinner_too_starved_to_tell_is_not_called_dead() -> None:
    bench = Bench(lambda age_s: (spinning(),), touched=lambda pid: Touched(1 << 20, 0.1, 0.1))
    bench.teach()
    assert bench.wait(120.0) == pytest.approx(120.0)


def test_a_single_thread_that_could_be_either_is_decided_by_the_memory_it_touches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An interpreter that spins hands its lock to a heartbeat and takes it back: switches alone don't tell."""

    def either() -> ProcessSignals:
        return ProcessSignals(11, "worker", 0, "R", 5.0, 4.9, 0.1, 4.9, 0, 40, busy_threads=1)

    works = Bench(lambda age_s: (either(),), touched=lambda pid: Touched(2 * WORKING_BYTES, 1.0, 0.1))
    works.teach()
    assert works.wait(120.0) == pytest.approx(120.0)
    spins = Bench(lambda age_s: (either(),), touched=lambda pid: Touched(1 << 20, 1.0, 0.1))
    spins.teach()
    assert spins.wait_until_dead(120.0) <= 30.0


def test_where_nothing_can_be_seen_vllms_own_limit_is_the_floor() -> None:
    bench = Bench(lambda age_s: (unseen(),), floor_s=300.0)
    bench.teach()
    assert 300.0 <= bench.wait_until_dead(2000.0) <= 900.0


def test_a_worker_that_works_gets_at_least_the_limit_that_the_user_set_for_vllm() -> None:
    bench = Bench(lambda age_s: (working(),), floor_s=2000.0)
    bench.teach()
    assert bench.wait(1990.0) == pytest.approx(1990.0)
    short = Bench(lambda age_s: (working(),), floor_s=10.0)
    short.teach()
    assert 600.0 <= short.wait_until_dead(4000.0) <= 3600.0


def test_one_rank_on_another_node_keeps_local_blocked_ranks_from_being_called_dead() -> None:
    bench = Bench(lambda age_s: (blocked(11, 0), unseen(1)), floor_s=300.0)
    bench.teach()
    assert bench.wait(250.0) == pytest.approx(250.0)


def test_host_threads_prove_nothing_beside_a_gpu() -> None:
    bench = Bench(lambda age_s: (blocked(),), backend="gpu", floor_s=300.0)
    bench.teach()
    assert bench.wait(290.0) == pytest.approx(290.0)


class Device:
    """Two devices as NVML shows them, with a power draw and memory activity that the test sets."""

    def __init__(self) -> None:
        self.power_w, self.memory_pct = 600.0, 60
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 2
        self.nvmlDeviceGetHandleByIndex = lambda at: at
        self.nvmlDeviceGetComputeRunningProcesses = lambda at: [SimpleNamespace(pid=11 + at)]
        self.nvmlDeviceGetPowerUsage = lambda at: int(1000 * self.power_w)
        self.nvmlDeviceGetUtilizationRates = lambda at: SimpleNamespace(gpu=100, memory=self.memory_pct)


def test_a_gpu_that_works_is_waited_for_beyond_vllms_limit(caplog: pytest.LogCaptureFixture) -> None:
    """In a long step the host sleeps, or spins on an event: only the device shows that work goes on."""
    device = Device()
    bench = Bench(lambda age_s: (blocked(),), backend="gpu", gpu=GpuProbe(device))
    bench.teach()
    assert bench.wait(590.0) == pytest.approx(590.0)
    assert "late, works" in caplog.text
    assert "GPU 0: 600 W, memory 60 %" in caplog.text


def test_a_gpu_that_hangs_is_dead_at_vllms_limit_and_never_before(caplog: pytest.LogCaptureFixture) -> None:
    """A deadlocked collective: 100 % utilisation, but little power and no memory traffic."""
    device = Device()
    bench = Bench(lambda age_s: (blocked(),), backend="gpu", gpu=GpuProbe(device))
    bench.teach()
    device.power_w, device.memory_pct = 140.0, 0
    assert 300.0 <= bench.wait_until_dead(2000.0) <= 330.0
    assert "GPU 0: 140 W, memory 0 %" in caplog.text
    assert "stuck too long" in caplog.text


def test_a_gpu_that_does_not_answer_is_no_evidence() -> None:
    device = Device()
    bench = Bench(lambda age_s: (blocked(),), backend="gpu", gpu=GpuProbe(device))
    bench.teach()

    def fails(at: int) -> int:
        raise RuntimeError("GPU is lost")

    device.nvmlDeviceGetPowerUsage = fails
    assert bench.wait(290.0) == pytest.approx(290.0)


def test_each_step_is_judged_on_its_own_evidence() -> None:
    bench = Bench(lambda age_s: (blocked() if age_s < 12.0 else working(),))
    bench.teach()
    for _ in range(3):
        bench.wait(14.0)
        bench.keeper.step_finished(SIZE, 14.0, bench.now_s)
    assert len(bench.probe.begun) >= 3


def test_a_failed_step_leaves_no_step_in_the_beacon(tmp_path: Path) -> None:
    beacon = BeaconWriter("cpu", tmp_path)
    bench = Bench(lambda age_s: (working(),), beacon=beacon)
    bench.keeper.step_sent(SIZE)
    reading = read_beacon(beacon.path)
    assert reading is not None
    assert reading.stepping
    bench.keeper.step_failed()
    reading = read_beacon(beacon.path)
    assert reading is not None
    assert not reading.stepping


def test_what_a_restart_costs_is_asked_during_the_start_only() -> None:
    asked: list[float] = []
    bench = Bench(lambda age_s: (working(),))

    def restart_s() -> float:
        asked.append(1.0)
        return 77.0

    bench.keeper.restart_s = restart_s
    bench.keeper.other_call_done()
    assert bench.keeper.detector.life.restart_s == 77.0
    bench.teach(steps=1)
    bench.keeper.other_call_done()
    assert len(asked) == 1


def test_looking_while_all_is_well_is_bounded_by_its_cost() -> None:
    bench = Bench(lambda age_s: (working(),))
    samples: list[float] = []
    plain = bench.probe.sample

    def slow_sample(now_s: float) -> Any:
        samples.append(now_s)
        bench.now_s += 0.01  # a worker with very many threads
        return plain(now_s)

    bench.probe.sample = slow_sample  # type: ignore[method-assign]
    bench.teach(seconds=0.1, steps=3000)
    assert 5 <= len(samples) <= 11, "10 ms at most every 33 s"


def test_a_keeper_that_is_off_takes_its_beacon_back(tmp_path: Path) -> None:
    beacon = BeaconWriter("cpu", tmp_path)
    keeper = Keeper(Detector(), ScriptedProbe(lambda age_s: ()), beacon)
    keeper.step_sent(SIZE)
    assert beacon.path.exists()
    keeper.off()
    keeper.off()
    assert not beacon.path.exists()
    keeper.step_sent(SIZE)  # what is told all the same does no harm
