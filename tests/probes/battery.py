"""Runs one actor under the real probe and the real detector, second by second, and says what became of it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.events import Begin, Kill, Poll
from lifesign.guard.detector.evidence import Activity
from lifesign.guard.detector.policy import StepSize
from lifesign.guard.detector.states import VIEW
from lifesign.guard.probes.process import ProcessProbe, Target
from lifesign.guard.probes.stacks import StackProbe

HERE = Path(__file__).parent
SIZE = StepSize(4, 4)
LEARN_S = 4.0
RESTART_S = 40.0

LIVE = ("layers", "single", "bandwidth", "python", "starved", "throttled")
STUCK = (
    "spin",
    "yield",
    "barrier",
    "poll",
    "lock",
    "pipe",
    "uninterruptible",
    "stop",
    "exit",
    "python-spin",
    "python-lock",
    "python-poll",
)
# What a person should read for each; more than one word where the machine's load decides.
NAMES = {
    "spin": {Activity.SPINNING},
    "yield": {Activity.SPINNING},
    "barrier": {Activity.SPINNING},
    "python-spin": {Activity.SPINNING},
    "poll": {Activity.POLLING, Activity.BLOCKED},
    "python-poll": {Activity.POLLING, Activity.BLOCKED},
    "lock": {Activity.BLOCKED, Activity.POLLING},
    "pipe": {Activity.BLOCKED, Activity.POLLING},
    "python-lock": {Activity.BLOCKED, Activity.POLLING},
    "uninterruptible": {Activity.BLOCKED, Activity.POLLING},
    "stop": {Activity.STOPPED},
    "exit": {Activity.EXITED},
}


def build_actor(folder: Path) -> Path | None:
    """The compiled actor, or None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    actor = folder / "actor"
    subprocess.run([compiler, "-O1", "-pthread", "-o", str(actor), str(HERE / "actor.c")], check=True, timeout=60)
    return actor


@dataclass
class Trial:
    """One actor and the detector that watches it. `suspect_s` and `dead_s` count from the change of behaviour."""

    behaviour: str
    process: subprocess.Popen[bytes]
    began_s: float
    neighbours: list[subprocess.Popen[bytes]] = field(default_factory=list)
    group: Path | None = None
    changed_s: float = 0.0
    suspect_s: float | None = None
    dead_s: float | None = None
    verdicts: list[Activity] = field(default_factory=list)
    commands: list[object] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.probe = ProcessProbe()
        self.stacks = StackProbe()
        self.detector = Detector()
        self.target = Target(self.process.pid, "worker", 0)
        self.detector.handle(Begin("cpu", "beacon", True, RESTART_S), self.began_s)

    def look(self, now_s: float) -> None:
        """One poll, as the guard does it."""
        if not self.changed_s and now_s - self.began_s >= LEARN_S:
            self._change(now_s)
        steps = 0 if self.changed_s else self._steps()
        if steps:
            self.probe.begin(now_s)
        self.steps += steps
        self._look_at_stacks(now_s)
        processes = self.probe.sample([self.target], now_s)
        poll = Poll(steps, True, 0.0, None, SIZE, processes)
        commands = self.detector.handle(poll, now_s)
        self.commands += commands
        if not self.changed_s:
            if steps:
                self.detector.cost.observe(SIZE, 0.2)
            return
        age_s = now_s - self.changed_s
        self.verdicts.append(self.detector.activities.get(self.process.pid, Activity.UNSEEN))
        if processes[0].state in ("X", "Z"):
            self.verdicts[-1] = Activity.EXITED
        if VIEW[self.detector.state] != "HEALTHY" and self.suspect_s is None:
            self.suspect_s = age_s
        if any(isinstance(one, Kill) for one in commands):
            self.dead_s = age_s

    def _look_at_stacks(self, now_s: float) -> None:
        found = self.stacks.poll()
        if found is not None:
            self.probe.saw_stacks(*found, now_s)
        last = self.verdicts[-1] if self.verdicts else None
        if last in (Activity.SPINNING, Activity.UNCLEAR, Activity.COMPUTING) and self.behaviour.startswith("python"):
            self.stacks.request(self.process.pid)

    def _steps(self) -> int:
        assert self.process.stdout is not None
        count = 0
        while select.select([self.process.stdout], [], [], 0)[0]:
            data = os.read(self.process.stdout.fileno(), 4096)
            count += data.count(b"s")
            if not data:
                break
        return count

    def _change(self, now_s: float) -> None:
        self.changed_s = now_s
        self.probe.begin(now_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
        if self.behaviour == "starved":
            os.setpriority(os.PRIO_PROCESS, self.process.pid, 19)
            busy = [sys.executable, "-c", "import time\nend = time.time() + 60\nwhile time.time() < end: pass"]
            self.neighbours = [subprocess.Popen(busy) for _ in range(2 * (os.cpu_count() or 1))]
        elif self.behaviour == "throttled" and self.group is not None:
            (self.group / "cgroup.procs").write_text(str(self.process.pid))

    @property
    def named(self) -> Activity:
        """The word that the detector used most in the last looks before its verdict."""
        if not self.verdicts or self.verdicts[-1] is Activity.EXITED:
            return self.verdicts[-1] if self.verdicts else Activity.UNSEEN
        return Counter(self.verdicts[-6:]).most_common(1)[0][0]

    def close(self) -> None:
        """End everything that this trial started."""
        self.stacks.close()
        for one in [*self.neighbours, self.process]:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            one.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.group is not None:
            with contextlib.suppress(OSError):
                time.sleep(0.1)
                self.group.rmdir()


def throttle_group(name: str) -> Path | None:
    """A control group that gives a tenth of a processor; None where we may not make one."""
    for root, settings in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}),
        ("/sys/fs/cgroup", {"cpu.max": "10000 100000"}),
    ):
        group = Path(root) / name
        try:
            group.mkdir()
            for file, value in settings.items():
                (group / file).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return group
    return None


def start(behaviour: str, actor: Path | None, now_s: float) -> Trial | None:
    """The trial, or None if this machine can't run it (no compiler, no control groups)."""
    group = None
    if behaviour.startswith("python"):
        command = [sys.executable, str(HERE / "actor.py"), behaviour]
    elif actor is None:
        return None
    else:
        mode = {"starved": "layers", "throttled": "layers"}.get(behaviour, behaviour)
        command = [str(actor), mode]
    if behaviour == "throttled":
        group = throttle_group(f"lifesign-test-{os.getpid()}-{time.monotonic_ns()}")
        if group is None:
            return None
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    return Trial(behaviour, process, now_s, group=group)


def run_together(behaviours: list[str], actor: Path | None, seconds: float) -> list[Trial]:
    """Run the actors side by side (they are each other's neighbours) for `seconds` after the change."""
    trials = [one for one in (start(name, actor, time.monotonic()) for name in behaviours) if one is not None]
    try:
        end_s = time.monotonic() + LEARN_S + seconds + 1.0
        while time.monotonic() < end_s:
            begun_s = time.monotonic()
            for trial in trials:
                if trial.dead_s is None:
                    trial.look(time.monotonic())
            if all(one.dead_s is not None for one in trials):
                break
            time.sleep(max(0.0, 1.0 - (time.monotonic() - begun_s)))
    finally:
        for trial in trials:
            trial.close()
    return trials
