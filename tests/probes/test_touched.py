"""What tells honest work from a spin when no counter does: the memory touched. Real processes; the price in virtual time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin
from lifesign.guard.detector.evidence import Activity, classify
from lifesign.guard.detector.policy import Backend
from lifesign.guard.probes.observer import Observer
from lifesign.guard.probes.process import ProcessProbe, Target
from lifesign.guard.probes.touched import LONGEST_S, WATCH_S, SecondOpinion, Touched, TouchProbe, touched_in


@contextlib.contextmanager
def child(code: str) -> Iterator[int]:
    """A child process that runs `code` after printing a line; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print('go', flush=True)\n" + textwrap.dedent(code)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


WORK = """
    block = bytearray(96 << 20)
    while True:
        for at in range(0, len(block), 4096):
            block[at] = 1
"""


def test_work_touches_memory_and_a_spin_does_not() -> None:
    with child(WORK) as pid:
        time.sleep(0.5)
        worked = touched_in(pid)
    with child("while True: pass") as pid:
        time.sleep(0.2)
        spun = touched_in(pid)
    if worked is None or spun is None:
        pytest.skip("this kernel doesn't say which pages were touched")
    assert worked.working in (True, None), worked
    assert spun.working in (False, None), spun
    assert worked.bytes > spun.bytes
    assert worked.cost_s < 5.0


def test_too_little_processor_time_decides_nothing() -> None:
    assert Touched(0, 0.1, 0.0).working is None
    assert Touched(1 << 20, 0.5, 0.0).working is False
    assert Touched(9 << 20, 0.5, 0.0).working is True
    assert Touched(9 << 20, 1.0, 0.0).working is False
    assert Touched(13 << 20, 2.0, 0.0).working is True


def test_a_second_opinion_keeps_its_price_down() -> None:
    now_s = 0.0
    opinion = SecondOpinion(lambda pid: Touched(1 << 30, 1.0, 0.5), lambda: now_s)
    assert opinion.may_ask(7)
    assert opinion.ask(7) is True
    now_s = 19.9
    assert not opinion.may_ask(7)
    assert opinion.may_ask(8)
    now_s = 20.1
    assert opinion.may_ask(7)


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    assert touched_in(2**22 - 3, 0.01) is None


@pytest.mark.parametrize(("how", "works"), [("busy", True), ("native", True), ("forever", False)])
def test_the_slow_steps_of_the_drill_are_work_and_its_livelock_is_none(how: str, works: bool) -> None:
    with child(f"from lifesign.vllm_plugin import faults; faults.perform(['stall', {how!r}, 60.0, False], 1)") as pid:
        time.sleep(1.0)
        seen = touched_in(pid)
    if seen is None:
        pytest.skip("this kernel doesn't say which pages were touched")
    assert seen.working in (works, None), seen


def answered(probe: TouchProbe) -> tuple[int, bool, float] | None:
    """The answer of the look that is under way; None when there was none to give."""
    for _ in range(400):
        if probe._thread is None or not probe._thread.is_alive():
            return probe.poll()
        time.sleep(0.05)
    raise AssertionError("the look didn't end")


def test_the_probe_never_waits_and_looks_at_one_process_at_a_time() -> None:
    now_s = 100.0
    probe = TouchProbe(SecondOpinion(lambda pid: Touched(1 << 30, 1.0, 0.5), lambda: now_s))
    assert probe.poll() is None
    assert probe.request(7)
    assert answered(probe) == (7, True, pytest.approx(20.0 + LONGEST_S + WATCH_S))
    assert probe.poll() is None, "an answer is given once"
    assert not probe.request(7), "too early"
    assert probe.request(8)
    assert not probe.request(9), "one is under way"
    assert answered(probe) is not None


def test_a_look_at_the_step_before_is_void() -> None:
    probe = TouchProbe(SecondOpinion(lambda pid: Touched(1 << 30, 1.0, 0.0)))
    assert probe.request(7)
    probe.forget()
    assert answered(probe) is None
    assert probe.request(8)
    assert answered(probe) is not None
    probe.forget()
    assert probe.request(9), "nothing was under way: the next one counts"
    assert answered(probe) is not None


def test_a_look_that_says_nothing_gives_no_answer() -> None:
    probe = TouchProbe(SecondOpinion(lambda pid: None))
    assert probe.request(7)
    assert answered(probe) is None
    starved = TouchProbe(SecondOpinion(lambda pid: Touched(1 << 30, 0.1, 0.1)))
    assert starved.request(7)
    assert answered(starved) is None


def test_what_was_told_holds_for_its_time_and_for_this_step_only() -> None:
    with child("while True: pass") as pid:
        probe, targets = ProcessProbe(window_s=1.0), [Target(pid)]

        def activity() -> Activity:
            time.sleep(0.3)
            return classify(probe.sample(targets, time.monotonic())[0])

        activity()
        assert activity() is Activity.SPINNING
        probe.told(pid, True, time.monotonic() + 60.0)
        assert activity() in (Activity.COMPUTING, Activity.STARVED)
        probe.told(pid, True, time.monotonic() + 0.1)
        assert activity() is Activity.SPINNING
        probe.told(pid, True, time.monotonic() + 60.0)
        probe.begin(time.monotonic())
        activity()
        assert activity() is Activity.SPINNING


@pytest.mark.parametrize(("backend", "asked"), [("cpu", True), ("gpu", False)])
def test_the_observer_asks_about_a_late_spinner_unless_a_device_does_the_work(
    backend: Backend, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def measure(pid: int) -> Touched:
        pids.append(pid)
        return Touched(1 << 30, 1.0, 0.01)

    with child("while True: pass") as pid:
        tree = SimpleNamespace(targets=[Target(pid, "worker", 0)], beacon=None, members=[])
        observer = Observer(None, touches=TouchProbe(SecondOpinion(measure)))
        monkeypatch.setattr("lifesign.guard.probes.observer.refresh", lambda tree: None)
        observer.tree = tree  # type: ignore[assignment]
        observer.asking = True
        detector = Detector()
        detector.handle(Begin(backend=backend, serving=True), time.monotonic())

        def working() -> bool:
            return detector.activities.get(pid) in (Activity.COMPUTING, Activity.STARVED)

        for _ in range(20):
            time.sleep(0.5)
            now_s = time.monotonic()
            for event in observer.look(now_s, detector).events:
                detector.handle(event, now_s)
            if working():
                break
        observer.close()
    assert bool(pids) is asked
    assert working() is asked
