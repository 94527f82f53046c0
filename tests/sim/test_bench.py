"""The bench with the production core: pinned seeds, the targets, and that nobody's numbers depend on how it is run."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys

import pytest

from lifesign.drill.sim.cli import table
from lifesign.drill.sim.eyes import Eyes
from lifesign.drill.sim.runner import OURS, Plan, Result, Tally, poisson_upper, quantile_s, rows, run
from lifesign.drill.sim.traces import Engine
from lifesign.drill.sim.world import DEADLY_FAULTS, World, scenario
from lifesign.guard.detector.core import Detector, Settings
from lifesign.guard.detector.events import Event
from lifesign.guard.detector.replay import RecordingDetector, replay

SEED = 1
JOBS = min(2, os.cpu_count() or 1)
HUNG = ("livelock", "partition", "blocked", "zero-token")
RIVALS = {
    "fixed 40 s",
    "fixed 300 s",
    "health ping 60 s",
    "simple policy",
    "simple policy + CPU>5% extension",
    "Jacobson/Karels",
    "phi accrual",
    "max seen x 5",
    "token counter 120 s",
}


def ours(result: Result) -> dict[str, object]:
    row = rows(result)[0]
    assert row["detector"] == OURS
    print("seed", SEED, json.dumps(row))
    return row


def check_times(row: dict[str, object]) -> None:
    faults: dict[str, dict[str, float]] = row["faults"]  # type: ignore[assignment]
    assert set(faults) == set(DEADLY_FAULTS)
    assert faults["exit"]["p99_s"] <= 1.0
    assert faults["stop"]["p50_s"] <= 15.0
    for fault in HUNG:
        assert faults[fault]["p50_s"] <= 20.0, fault
    for fault, times in faults.items():
        assert times["suspect_p50_s"] <= 10.0, fault


# The promise: at most 3 false kills in 1000 h, at most 0.3 where no stall heals itself.
PROMISE, PROMISE_NO_STALLS = 3.0, 0.3
HOURS, FAULTS = (12000.0, 500) if os.environ.get("CI") else (1000.0, 60)
"""In CI the mixed fleet is watched for 12,000 h (4 minutes on two processors), elsewhere for 1,000. With the pinned seed the
measured rate must keep the promise: at most 3 kills in 1,000 h, and none without stalls that heal."""


def test_mixed_fleet_keeps_the_times_and_the_promise_about_false_kills() -> None:
    # One test: side by side, two would each run the bench.
    row = ours(run(Plan(HOURS, SEED, FAULTS, World(), with_rivals=False), JOBS))
    print(f"{row['hours']} h, {row['false_kills']} false kills")
    check_times(row)
    assert float(row["hours"]) >= HOURS  # type: ignore[arg-type]
    assert row["false_kills_per_1000h"] <= PROMISE  # type: ignore[operator]


def test_without_stalls_that_heal_nobody_is_killed() -> None:
    row = ours(run(Plan(1000.0, SEED, 0, scenario("no-opaque"), with_rivals=False), JOBS))
    print(f"{row['hours']} h, {row['false_kills']} false kills")
    assert float(row["hours"]) >= 1000.0  # type: ignore[arg-type]
    assert row["false_kills_per_1000h"] <= PROMISE_NO_STALLS  # type: ignore[operator]


@pytest.mark.long
def test_twelve_thousand_hours() -> None:
    row = ours(run(Plan(12000.0, SEED, 500, World(), with_rivals=False)))
    assert row["false_kills_per_1000h"] <= PROMISE  # type: ignore[operator]
    check_times(row)


@pytest.mark.long
def test_twelve_thousand_hours_without_stalls_that_heal() -> None:
    row = ours(run(Plan(12000.0, SEED, 0, scenario("no-opaque"), with_rivals=False)))
    assert row["false_kills_per_1000h"] <= PROMISE_NO_STALLS  # type: ignore[operator]


def test_result_does_not_depend_on_the_number_of_processes() -> None:
    plan = Plan(72.0, 3, 11, World())
    one, two = rows(run(plan, 1)), rows(run(plan, 2))
    assert one == two
    assert {str(row["detector"]) for row in one} >= RIVALS | {OURS}
    assert "never" in table(one)


def test_a_fatal_impatience_is_seen() -> None:
    # The bench can tell a bad detector from a good one: without patience the stalls that heal are killed.
    world = World(opaque_per_h=2.0, opaque_looks_stuck=1.0)
    calm = rows(run(Plan(60.0, SEED, 0, world, patience=20.0, with_rivals=False), 1))[0]
    hasty = rows(run(Plan(60.0, SEED, 0, world, patience=0.0, with_rivals=False), 1))[0]
    assert hasty["false_kills"] > calm["false_kills"]  # type: ignore[operator]


@pytest.mark.parametrize("index", range(6))
def test_a_simulated_engine_can_be_replayed(index: int) -> None:
    told: list[tuple[float, Event]] = []
    engine = Engine(SEED, index, World(), "livelock", 1800.0)
    eyes = Eyes(engine, hook=lambda event, now_s: told.append((now_s, event)))
    for stretch in engine.trace(4000.0):
        eyes.see(stretch)
    out = io.StringIO()
    recorder = RecordingDetector(Detector(Settings()), out)
    for now_s, event in told:
        recorder.handle(event, now_s)
    again = list(replay(out.getvalue().splitlines()))
    assert all(one.same for one in again)
    kills = [one.now_s for one in again for command in one.commands if type(command).__name__ == "Kill"]
    assert kills == [at_s for at_s, _ in eyes.seen.kills]
    if engine.fault_s < math.inf:
        assert kills


def test_quantiles_and_bounds() -> None:
    assert quantile_s([], 0.5) is None
    assert quantile_s([1.0, 2.0, math.inf], 0.5) == 2.0
    assert quantile_s([1.0, 2.0, math.inf], 0.99) is None
    assert poisson_upper(0) == pytest.approx(3.689, abs=0.001)
    assert poisson_upper(5) == pytest.approx(11.668, abs=0.001)
    both = Tally()
    both.kills["a"] = 2
    both.add(both)
    assert both.kills["a"] == 4


def test_command_line_gives_the_contract() -> None:
    command = [sys.executable, "-m", "lifesign.drill.sim", "--hours", "12", "--faults", "1", "--jobs", "1"]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=300, check=True)
    data = json.loads(done.stdout)
    assert {row["detector"] for row in data["rows"]} >= RIVALS | {OURS}
    for row in data["rows"]:
        assert isinstance(row["false_kills_per_1000h"], float)
        assert all(set(times) >= {"p50_s", "p99_s"} for times in row["faults"].values())
    for bad in (["--hours", "-1"], ["--scenario", "x"], ["--format", "xml"], ["--hours", "0", "--faults", "0"]):
        refused = subprocess.run([*command, *bad], capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr
        assert refused.stderr.startswith("lifesign: ")
