"""Traces are made from their seed alone, and hold what the world promises."""

from __future__ import annotations

import itertools
import math

import pytest

from lifesign.drill.sim.traces import Engine, Stretch
from lifesign.drill.sim.world import CLASSES, FAULTS, World, scenario
from lifesign.errors import UsageError

HOUR_S = 3600.0


def trace(index: int, fault: str = "", hours: float = 2.0, world: World | None = None) -> tuple[Engine, list[Stretch]]:
    engine = Engine(7, index, world or World(), fault, 0.4 * hours * HOUR_S if fault else math.inf)
    return engine, list(engine.trace(hours * HOUR_S))


@pytest.mark.parametrize("index", range(12))
def test_a_trace_is_whole_and_repeats(index: int) -> None:
    _, stretches = trace(index)
    assert stretches == trace(index)[1]
    assert stretches[0].start_s == 0.0
    for one, two in itertools.pairwise(stretches):
        assert one.end_s == pytest.approx(two.start_s)
    for one in stretches:
        assert one.pieces[-1].end_s == pytest.approx(one.end_s)
        assert one.end_s >= one.start_s
        assert (one.steps == 0) == (not one.busy) or one is stretches[-1]
        ends = [piece.end_s for piece in one.pieces]
        assert ends == sorted(ends)


def test_all_classes_and_disturbances_occur() -> None:
    kinds, causes = set(), set()
    for index in range(60):
        engine, stretches = trace(index, hours=6.0)
        kinds.add(engine.kind.name)
        causes |= {piece.cause for one in stretches for piece in one.pieces}
    assert kinds == {one.name for one in CLASSES}
    assert causes == {"step", "compile", "starved", "thermal", "opaque", "pause"}


def test_what_is_switched_off_does_not_occur() -> None:
    quiet = World(opaque_per_h=0.0, compile_per_h=0.0, compile_first_per_h=0.0, pause_per_h=0.0)
    causes = {p.cause for index in range(20) for one in trace(index, world=quiet)[1] for p in one.pieces}
    assert causes <= {"step", "starved", "thermal"}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_begin_when_busy_and_end_progress(fault: str) -> None:
    begun = 0
    for index in range(12):
        engine, stretches = trace(index, fault)
        if engine.fault_s == math.inf:
            continue
        begun += 1
        later = [one for one in stretches if one.start_s > engine.fault_s]
        if fault == "gradual":
            assert any(one.steps for one in later)
            continue
        assert not later
        assert stretches[-1].steps == 0
        assert stretches[-1].pieces[-1].fault == fault
    assert begun >= 8


def test_step_time_follows_its_size() -> None:
    calm = World(step_sigma=0.0, slow_step_share=0.0, compile_first_per_h=0, compile_per_h=0, starve_cpu_per_h=0,
                 starve_gpu_per_h=0, thermal_per_h=0, opaque_per_h=0, pause_per_h=0)  # fmt: skip
    checked = 0
    for index in range(20):
        engine, stretches = trace(index, world=calm)
        kind = engine.kind
        for one in stretches:
            if one.steps == 1 and len(one.pieces) == 1:
                expected = kind.base_s + kind.per_token_s * one.prefill + kind.per_sequence_s * one.sequences
                assert one.step_s == pytest.approx(expected * engine.scale)
                checked += 1
    assert checked > 100


def test_unknown_scenario() -> None:
    with pytest.raises(UsageError, match="choose one of"):
        scenario("perfect")
