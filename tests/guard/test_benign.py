"""Slow is not dead: engines that really compute, disturbed in ways that kill nobody, must not be killed by guard.

LIFESIGN_BENIGN_TRIALS sets the number of trials: 50 in CI, 16 elsewhere; `long` runs 300. Several engines run side by side on
purpose: they are one another's noisy neighbours.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lifesign.guard import procs

from ..engine_support import free_port
from .harness import GuardRun, wait_until

BUSY = str(Path(__file__).with_name("busy_engine.py"))
SIDE_BY_SIDE = 4
TRIALS = int(os.environ.get("LIFESIGN_BENIGN_TRIALS", "50" if os.environ.get("CI") else "16"))
LAST_S = 20.0
RECOVERY_S = 300.0
"""25 processor seconds beside three engines and two hogs on two processors, at low priority where it can't be taken back."""
HOG = [sys.executable, "-c", "while True: pass"]
GROUPS = Path("/sys/fs/cgroup")


class Busy:
    """One guarded engine that computes, and the ways to disturb it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.control = folder / "control.json"
        self.set()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, BUSY, "--port", str(port), "--control", str(self.control)]
        self.run = GuardRun(folder, "--engine-url", self.url, engine=command, http="127.0.0.1:0")

    def set(self, **values: float) -> None:
        partial = self.control.with_suffix(".part")
        partial.write_text(json.dumps(values))
        partial.rename(self.control)

    def steps(self) -> int:
        """Steps that the engine has really finished, from its own page."""
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            for line in answer.read().decode().split("\n"):
                if line.startswith("vllm:iteration_tokens_total_count"):
                    return int(line.rpartition(" ")[2])
        return 0


def giant_step(engine: Busy) -> None:
    """One step of 12 processor seconds after steps of a twentieth: 240 times what was ever seen."""
    engine.set(step_cpu_s=12.0, sequences=64)
    time.sleep(2)
    engine.set()


def quiet_step(engine: Busy) -> None:
    """25 processor seconds in which nothing but the walk over memory tells work from a spin: no page fault, no switch."""
    engine.set(step_cpu_s=25.0, sequences=64, quiet=1)
    time.sleep(2)
    engine.set()


def load_grows(engine: Busy) -> None:
    for sequences in (1, 8, 64):
        engine.set(step_cpu_s=0.03 * sequences, sequences=sequences)
        time.sleep(LAST_S / 3)
    engine.set()


def starved(engine: Busy) -> None:
    hogs = [subprocess.Popen(HOG) for _ in range(2)]
    worker = engine.run.pid("worker")
    try:
        os.setpriority(os.PRIO_PROCESS, worker, 15)
        time.sleep(LAST_S)
    finally:
        with suppress(PermissionError):  # only root may give it back
            os.setpriority(os.PRIO_PROCESS, worker, 0)
        for hog in hogs:
            hog.kill()
            hog.wait()


def cpu_group(name: str) -> Path | None:
    """A control group (version 1 or 2) that gives a tenth of a processor; None where we may not make one."""
    for root, settings in (
        (GROUPS / "cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}),
        (GROUPS, {"cpu.max": "10000 100000"}),
    ):
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for file, value in settings.items():
                if not (group / file).exists():  # on a plain tmpfs anybody can make a folder
                    raise OSError(f"{group}: no {file}")
                (group / file).write_text(value)
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        return group
    return None


def group_of(pid: int, root: Path) -> Path:
    """The control group below `root` that a process is in: of the controller `cpu`, or of version 2."""
    wanted = "cpu" if root.name == "cpu" else ""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(","):
            return root / path.lstrip("/")
    return root


def times_throttled(group: Path) -> int:
    """How often the group had to wait for its next share."""
    for line in (group / "cpu.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "nr_throttled":
            return int(value)
    return 0


def throttled(engine: Busy) -> None:
    """A tenth of a processor by the control group."""
    group = cpu_group(f"lifesign-test-{os.getpid()}-{threading.get_ident()}")
    assert group is not None, "a control group could be made a minute ago"
    pid = engine.run.pid("worker")
    home = group_of(pid, group.parent)
    try:
        (group / "cgroup.procs").write_text(str(pid))
        time.sleep(LAST_S)
        assert times_throttled(group) > 10, "the group throttled nobody: nothing was tried"
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            time.sleep(0.1)
            group.rmdir()


def guard_paused(engine: Busy) -> None:
    engine.run.process.send_signal(signal.SIGSTOP)
    time.sleep(LAST_S)
    engine.run.process.send_signal(signal.SIGCONT)


def page_late(engine: Busy) -> None:
    engine.set(page_delay_s=6.0)
    time.sleep(LAST_S)
    engine.set()


def short_stop(engine: Busy) -> None:
    proc = procs.identify(engine.run.pid("worker"))
    assert proc is not None
    procs.signal_exactly(proc, signal.SIGSTOP)
    time.sleep(6)
    procs.signal_exactly(proc, signal.SIGCONT)


DISTURBANCES: tuple[Callable[[Busy], None], ...] = (
    giant_step,
    quiet_step,
    load_grows,
    starved,
    throttled,
    guard_paused,
    page_late,
    short_stop,
)


def possible() -> tuple[Callable[[Busy], None], ...]:
    """The disturbances that this machine allows; a warning names the others."""
    group = cpu_group(f"lifesign-test-{os.getpid()}-probe")
    if group is not None:
        group.rmdir()
        return DISTURBANCES
    warnings.warn("throttled: not tried, no control group for processors may be made here", stacklevel=2)
    return tuple(one for one in DISTURBANCES if one is not throttled)


def trials(tmp_path: Path, count: int, disturbances: tuple[Callable[[Busy], None], ...]) -> dict[str, int]:
    """Run `count` trials; gives how often each disturbance was done. AssertionError names a killed engine."""
    seed = int(os.environ.get("LIFESIGN_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed} (repeat with LIFESIGN_SEED={seed})")
    draw = random.Random(seed)
    plan = [disturbances[index % len(disturbances)] for index in range(count)]
    draw.shuffle(plan)
    engines = [Busy(tmp_path / f"engine-{index}") for index in range(SIDE_BY_SIDE)]
    done: dict[str, int] = {}
    failures: list[str] = []
    lock = threading.Lock()

    def work(engine: Busy) -> None:
        try:
            engine.run.serving()
            time.sleep(5)  # some steps to learn from
            while True:
                with lock:
                    if not plan or failures:
                        return
                    disturb = plan.pop()
                disturb(engine)
                before = engine.steps()
                wait_until(lambda goal=before + 3: engine.steps() > goal, f"steps after {disturb.__name__}", RECOVERY_S)
                if engine.run.incidents() or engine.run.said.count("the engine serves") != 1:
                    raise AssertionError(f"{disturb.__name__} killed an engine:\n{engine.run.said[-2000:]}")
                with lock:
                    done[disturb.__name__] = done.get(disturb.__name__, 0) + 1
        except BaseException as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for engine in engines:
            engine.run.end()
    assert not failures, f"seed {seed}\n" + "\n".join(failures)
    return done


def test_disturbed_engines_are_not_killed(tmp_path: Path) -> None:
    disturbances = possible()
    done = trials(tmp_path, TRIALS, disturbances)
    print(done)
    assert sum(done.values()) == TRIALS
    assert set(done) == {one.__name__ for one in disturbances[:TRIALS]}


@pytest.mark.long
def test_three_hundred_disturbed_engines_are_not_killed(tmp_path: Path) -> None:
    """0 in 300 bounds the rate at 1 % (95 %)."""
    done = trials(tmp_path, 300, possible())
    print(done)
    assert sum(done.values()) == 300


def test_a_control_group_is_one_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "GROUPS", tmp_path)
    assert cpu_group("x") is None, "a plain folder throttles nobody"
    assert list(tmp_path.iterdir()) == []
    with pytest.warns(UserWarning, match="throttled: not tried"):
        assert throttled not in possible()

    really = Path.mkdir

    def kernel(self: Path, *args: object, **more: object) -> None:
        really(self)
        if self.parent == tmp_path:
            (self / "cpu.max").write_text("max 100000")

    monkeypatch.setattr(Path, "mkdir", kernel)
    group = cpu_group("y")
    assert group == tmp_path / "y"
    assert (group / "cpu.max").read_text() == "10000 100000"
    (group / "cpu.stat").write_text("nr_periods 200\nnr_throttled 190\nthrottled_usec 1\n")
    assert times_throttled(group) == 190
