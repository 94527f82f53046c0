"""Each rival on traces made by hand: when it kills, what it learns, what it can't see."""

from __future__ import annotations

import pytest

from lifesign.drill.sim.rivals import burns_cpu, rivals
from lifesign.drill.sim.traces import Engine, Piece, Stretch
from lifesign.drill.sim.world import CLASSES, World


def engine(name: str, spins: bool = False) -> Engine:
    made = Engine(1, 1, World())
    made.kind = next(one for one in CLASSES if one.name == name)
    made.spin_sync = spins
    return made


def stall(start_s: float, end_s: float, fault: str = "", sequences: int = 64, **piece: object) -> Stretch:
    steps = 0 if fault else 1
    one = Piece(end_s, fault=fault, **piece)  # type: ignore[arg-type]
    return Stretch(start_s, end_s, steps, end_s - start_s, sequences, 0, True, False, [one])


def warm(name: str, rival: str, step_s: float = 1.0, spins: bool = False):
    made = rivals(engine(name, spins))[rival]
    at_s = 0.0
    for _ in range(300):
        made.see(stall(at_s, at_s + step_s))
        at_s += step_s
    return made, at_s


@pytest.mark.parametrize(
    ("rival", "name", "limit_s"),
    [
        ("fixed 40 s", "cpu-small", 40.0),
        ("fixed 300 s", "cpu-small", 300.0),
        ("health ping 60 s", "gpu-small", 60.0),
        ("simple policy", "gpu-small", 42.8),
        ("simple policy", "cpu-small", 364.0),
        ("Jacobson/Karels", "cpu-small", 10.0),
        ("max seen x 5", "cpu-small", 10.0),
        ("token counter 120 s", "gpu-large", 120.0),
    ],
)
def test_kills_after_its_limit(rival: str, name: str, limit_s: float) -> None:
    made, at_s = warm(name, rival)
    assert made.see(stall(at_s, at_s + limit_s - 0.5)) == []
    made, at_s = warm(name, rival)
    kills = made.see(stall(at_s, at_s + 3600.0, "livelock"))
    assert kills[0] - at_s == pytest.approx(limit_s)


def test_phi_adapts_to_the_usual_interval() -> None:
    fast, at_s = warm("cpu-small", "phi accrual", 1.0)
    slow, slow_at_s = warm("cpu-small", "phi accrual", 20.0)
    first = fast.see(stall(at_s, at_s + 900.0, "livelock"))[0] - at_s
    second = slow.see(stall(slow_at_s, slow_at_s + 900.0, "livelock"))[0] - slow_at_s
    assert 4.0 < first < 6.0
    assert 23.0 < second < 30.0


def test_the_extension_keeps_what_burns_cpu_and_gives_up_at_the_cap() -> None:
    name = "simple policy + CPU>5% extension"
    made, at_s = warm("cpu-small", name)
    assert made.see(stall(at_s, at_s + 3600.0, "livelock"))[0] - at_s == pytest.approx(1800.0)
    made, at_s = warm("cpu-small", name)
    assert made.see(stall(at_s, at_s + 3600.0, "blocked"))[0] - at_s == pytest.approx(364.0)
    # The two mistakes of "CPU above 5 %": a starved worker is killed, a spinning one is kept.
    made, at_s = warm("cpu-small", name)
    assert made.see(stall(at_s, at_s + 400.0, starved=0.03))


def test_a_scheduler_that_schedules_nothing_is_invisible_to_call_timeouts() -> None:
    for rival in ("fixed 300 s", "health ping 60 s", "simple policy", "simple policy + CPU>5% extension"):
        made, at_s = warm("gpu-small", rival)
        assert made.see(stall(at_s, at_s + 3600.0, "zero-token")) == []
    made, at_s = warm("gpu-small", "token counter 120 s")
    assert made.see(stall(at_s, at_s + 3600.0, "zero-token"))[0] - at_s == pytest.approx(120.0)


def test_silent_prefill_fools_the_token_counter() -> None:
    made, at_s = warm("cpu-large", "token counter 120 s")
    silent = Stretch(at_s, at_s + 70.0, 1, 70.0, 64, 8192, True, True, [Piece(at_s + 70.0)])
    assert made.see(silent) == []
    assert made.see(stall(at_s + 70.0, at_s + 140.0)) == [pytest.approx(at_s + 120.0)]


def test_a_run_of_short_steps_is_no_stall() -> None:
    for name, made in rivals(engine("gpu-small")).items():
        run = Stretch(0.0, 60.0, 3000, 0.02, 64, 0, True, False, [Piece(60.0)])
        assert made.see(run) == [], name


def test_after_a_kill_the_engine_is_away_for_its_restart() -> None:
    made, at_s = warm("cpu-small", "fixed 40 s")
    kills = made.see(stall(at_s, at_s + 200.0))
    assert [kill_s - at_s for kill_s in kills] == [pytest.approx(40.0), pytest.approx(120.0), pytest.approx(200.0)]


def test_an_exit_is_seen_by_all() -> None:
    for name, made in rivals(engine("gpu-small")).items():
        gone = Stretch(0.0, 100.0, 0, 0.0, 1, 0, True, False, [Piece(5.0), Piece(100.0, fault="exit")])
        assert made.see(gone) == [6.0], name


def test_what_more_than_five_percent_reads() -> None:
    cpu, sleeper, spinner = engine("cpu-small"), engine("gpu-small"), engine("gpu-small", spins=True)
    assert burns_cpu(cpu, Piece(1.0))
    assert not burns_cpu(sleeper, Piece(1.0))
    assert burns_cpu(spinner, Piece(1.0, fault="partition"))
    assert not burns_cpu(sleeper, Piece(1.0, fault="partition"))
    assert not burns_cpu(cpu, Piece(1.0, starved=0.03))
    assert not burns_cpu(cpu, Piece(1.0, paused=True))
