"""The plan of a stop: whatever the engine does, it is over within the grace period."""

from __future__ import annotations

import signal

import pytest

from lifesign.guard.stopping import Stopper


def test_an_engine_that_obeys_gets_one_term_and_no_kill() -> None:
    stopper = Stopper(0.0, 25.0, ready=True)
    assert stopper.next(0.0, top_alive=True, others_alive=True) == (signal.SIGTERM, None)
    assert stopper.next(0.5, top_alive=True, others_alive=True) == (None, None)
    assert stopper.next(1.0, top_alive=False, others_alive=True) == (None, None)
    assert stopper.next(1.5, top_alive=False, others_alive=False) == (None, None)


def test_an_engine_that_ignores_term_is_killed_within_the_grace_period() -> None:
    stopper = Stopper(100.0, 25.0, ready=True)
    stopper.next(100.0, top_alive=True, others_alive=True)
    assert stopper.next(122.9, top_alive=True, others_alive=True) == (None, None)
    assert stopper.next(123.0, top_alive=True, others_alive=True) == (signal.SIGKILL, signal.SIGKILL)


def test_before_it_serves_there_is_nothing_to_drain() -> None:
    stopper = Stopper(0.0, 60.0, ready=False)
    stopper.next(0.0, top_alive=True, others_alive=False)
    assert stopper.next(4.9, top_alive=True, others_alive=True) == (None, None)
    assert stopper.next(5.0, top_alive=True, others_alive=True) == (signal.SIGKILL, signal.SIGKILL)


def test_children_that_outlive_the_server_get_a_little_time() -> None:
    stopper = Stopper(0.0, 60.0, ready=True)
    stopper.next(0.0, top_alive=True, others_alive=True)
    stopper.next(1.0, top_alive=False, others_alive=True)
    assert stopper.next(4.9, top_alive=False, others_alive=True) == (None, None)
    assert stopper.next(5.0, top_alive=False, others_alive=True) == (None, signal.SIGKILL)


def test_a_second_request_ends_patience() -> None:
    stopper = Stopper(0.0, 60.0, ready=True)
    stopper.next(0.0, top_alive=True, others_alive=True)
    stopper.hurry()
    assert stopper.next(0.1, top_alive=True, others_alive=True) == (signal.SIGKILL, signal.SIGKILL)


def test_the_signal_is_the_one_that_came() -> None:
    assert Stopper(0.0, 5.0, True, signal.SIGINT).next(0.0, top_alive=True, others_alive=False)[0] == signal.SIGINT


@pytest.mark.parametrize("grace_s", [0.5, 1.0, 5.0, 25.0, 3600.0])
@pytest.mark.parametrize("ready", [True, False])
def test_kill_always_comes_before_the_grace_period_ends(grace_s: float, ready: bool) -> None:
    assert 0.0 < Stopper(0.0, grace_s, ready).kill_at_s < grace_s
