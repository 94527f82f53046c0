"""The detector in guard's service: a sensor thread looks once a second, the session tells the detector, acts on it.

One watcher serves all lives of a guard: what a step costs, and what a restart costs, was learned in the lives before.
What is seen comes from /proc (every process of the life), the beacon where the plugin writes one, and the engine's
metrics page; where none of them can be read the detector is told so, and judges with patience or not at all.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TextIO, cast

from lifesign.guard import procs
from lifesign.guard.context import Context
from lifesign.guard.detector.beacon import BeaconReading, find_beacon, read_beacon
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.core import Settings as DetectorSettings
from lifesign.guard.detector.events import (
    AskOperator,
    Begin,
    Canary,
    CanaryAnswered,
    Capture,
    Changed,
    Command,
    Degraded,
    Event,
    Exited,
    Kill,
    Milestone,
    Poll,
    Ready,
    Resume,
)
from lifesign.guard.detector.evidence import Activity, ProcessSignals
from lifesign.guard.detector.policy import Backend, StepSize
from lifesign.guard.detector.replay import RecordingDetector
from lifesign.guard.detector.states import VIEW, Finding, State
from lifesign.guard.life import Life, Member
from lifesign.guard.probes.process import ProcessProbe, Target
from lifesign.guard.probes.stacks import StackProbe
from lifesign.guard.scrape import EnginePages, Page
from lifesign.guard.session import Call, Session
from lifesign.guard.settings import option_of
from lifesign.guard.sockets import listeners
from lifesign.text import T

LOOK_S = 1.0
UNCLEAR_S = 3.0
"""Age of a step from which stacks may be taken: each costs the engine's machine some tenths of a second."""
PROGRESS_STEPS, PROGRESS_REQUESTS = 200, 10
RECORDING_BYTES = 32 << 20
BEACON_SEARCH_S = 5.0
_RANK = re.compile(r"(?:TP|DP|PP|EP)(\d{1,4})")
_COMPILERS = ("cc1plus", "cc1", "nvcc", "cicc", "ptxas", "ninja", "gcc", "g++", "clang", "ld", "as")
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/davinci_manager", "/dev/dri/renderD128")


class EngineWatcher:
    """Implements `session.Watcher`. The sensor thread only fills `_looks`; all judging happens in the session's thread."""

    def __init__(self, context: Context, *, canary: bool = True, may_resume: bool = False) -> None:
        self._context = context
        url = context.settings.engine_url
        self._pages = EnginePages(url, option_of(context.settings.command, "--api-key")) if url else None
        self._port = int(url.rpartition(":")[2]) if url else 0
        self._core = Detector(DetectorSettings(may_resume=may_resume, canary=canary and url is not None))
        self._detector: Detector | RecordingDetector = self._core
        self._start_s: float | None = None
        self._sensor: Sensor | None = None
        self._recording: IO[str] | None = None
        self._recorded_bytes = 0
        self._finished_at_start = 0.0
        self._steps_at_start = 0
        self._begun_s = 0.0
        self._suspected = False
        self._verdict: Call | None = None

    def begin(self, life: Life) -> None:
        """A life starts: a new recording, the same memory."""
        context = self._context
        self._open_recording(life)
        self._verdict = None
        self._suspected = False
        self._steps_at_start = self._core.steps_seen
        self._begun_s = context.clock()
        self._sensor = Sensor(life, self._pages, self._port, context)
        restart_s = self._start_s if self._start_s is not None else 60.0
        self._tell(
            Begin(backend=backend(), tier="outside", restart_s=restart_s, max_size=max_size(context.settings.command))
        )
        self._sensor.start()

    def ready(self) -> None:
        """It serves: what the start took is what a restart costs."""
        self._start_s = self._context.clock() - self._begun_s
        if self._sensor is not None:
            self._sensor.serving = True
        self._tell(replace(self._core.life, restart_s=self._start_s, serving=False))
        self._tell(Ready())

    def milestone(self, phase: str) -> None:
        """Start-up went on."""
        self._tell(Milestone(phase))

    def exited(self, member: Member) -> None:
        """A process ended."""
        code, name = procs.describe_status(member.status) if member.status is not None else (None, None)
        number = getattr(signal.Signals, name, None) if name else None
        self._tell(Exited(member.name, member.id.pid, code, int(number) if number is not None else None))

    def tick(self, session: Session) -> Call | None:
        """Take what the sensor saw, let the detector judge it, act."""
        sensor = self._sensor
        if sensor is None:
            return None
        while sensor.looks:
            look = sensor.looks.popleft()
            if isinstance(look, Poll) and look.steps:
                sensor.progress_made = True
            for command in self._tell(look):
                self._act(command, session)
        unclear = [pid for pid, activity in self._core.activities.items() if activity is Activity.UNCLEAR]
        sensor.unclear = tuple(unclear) if self._core.clock.wall_s > UNCLEAR_S else ()
        if sensor.came_up and session.start_s is None:
            session.mark_ready()
        board = self._context.board
        board.update(engine=self._core.state.value, view=self._core.view)
        board.metrics.step_s.set(self._core.clock.own_s)
        board.metrics.step_limit_s.set(self._core.limit_s)
        verdict, self._verdict = self._verdict, None
        return verdict

    def progressed(self) -> bool:
        """200 steps or 10 finished requests in this life."""
        sensor = self._sensor
        if sensor is None:
            return False
        return self._core.steps_seen - self._steps_at_start >= PROGRESS_STEPS or sensor.finished >= PROGRESS_REQUESTS

    def end(self) -> None:
        """Stop looking, close the recording."""
        if self._sensor is not None:
            self._sensor.stop()
            self._sensor = None
        if self._recording is not None:
            with suppress(OSError):
                self._recording.close()
            self._recording = None

    def _tell(self, event: Event) -> list[Command]:
        commands = self._detector.handle(event, self._context.clock())
        if self._recording is not None:
            with suppress(OSError):
                self._recording.flush()
                if self._recording.tell() > RECORDING_BYTES:
                    self._context.note("the recording of detector events is full")
                    self._detector, self._recording = self._core, None
        return commands

    def _open_recording(self, life: Life) -> None:
        self._detector = self._core
        folder = self._context.state.root / "events"
        try:
            folder.mkdir(exist_ok=True)
            self._recording = (folder / f"{life.id}.jsonl").open("w", encoding="utf-8")
        except OSError:
            self._recording = None
            return
        self._detector = RecordingDetector(self._core, cast("TextIO", _Forgiving(self._recording)))

    def _act(self, command: Command, session: Session) -> None:
        context = self._context
        if isinstance(command, Changed):
            self._changed(command)
        elif isinstance(command, Capture):
            session.capture(command.why.value)
        elif isinstance(command, Kill):
            if command.why is not Finding.EXITED:  # ends of processes are the session's own business
                stopped = command.why is Finding.STOPPED_TOO_LONG
                self._verdict = Call(command.why.value, command.who, stopped)
        elif isinstance(command, Canary):
            if self._sensor is not None:
                self._sensor.ask(command.timeout_s)
        elif isinstance(command, Resume):
            for pid in command.pids:
                proc = procs.identify(pid)
                if proc is not None and proc in session.life.members:
                    with suppress(OSError):
                        procs.signal_exactly(proc, signal.SIGCONT)
                    context.voice.say(_RESUMED, pid=pid)
        elif isinstance(command, AskOperator):
            context.voice.say(_HELD_BY, what=command.what)
        elif isinstance(command, Degraded):
            context.voice.say(_DEGRADED if command.on else _SETTLED, ratio=f"{command.ratio:.1f}")

    def _changed(self, change: Changed) -> None:
        context = self._context
        metrics = context.board.metrics
        who = ", ".join(change.who) or "-"
        context.note(f"detector: {change.old.value} -> {change.new.value}: {change.finding.value} ({who})")
        if change.new is State.DEAD:
            metrics.detection_s.observe(change.wall_s)
            return
        bad = VIEW[change.new] == "UNHEALTHY"
        if bad and not self._suspected:
            metrics.suspicions.inc()
            metrics.suspicion_s.observe(change.wall_s)
            text = _SUSPECT if change.limit_s > 0 else _SUSPECT_AT_ONCE
            context.voice.say(
                text,
                finding=change.finding.value,
                who=who,
                age=f"{change.wall_s:.0f}",
                limit=f"{change.limit_s:.0f}",
            )
            context.notifier.send("suspicion", change.finding.value, state=change.new.value, who=list(change.who))
        elif not bad and self._suspected:
            metrics.withdrawn.inc()
            context.voice.say(_WELL)
            context.notifier.send("recovered", change.finding.value, state=change.new.value)
        self._suspected = bad


class _Forgiving:
    """A text stream whose writes may fail: a full disk must not stop the detector."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or don't."""
        with suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0


class Sensor:
    """Looks at one life once a second, in a thread of its own. `looks` is its only output (and a few plain flags)."""

    def __init__(self, life: Life, pages: EnginePages | None, port: int, context: Context) -> None:
        self.looks: deque[Poll | CanaryAnswered] = deque(maxlen=120)
        self.serving = False
        self.came_up = False
        self.finished = 0.0
        self.progress_made = False
        self._life, self._pages, self._port, self._context = life, pages, port, context
        self._probe = ProcessProbe()
        self._stacks = StackProbe()
        self._page: Page | None = None
        self._first_finished: float | None = None
        self._beacons: dict[int, Path] = {}
        self._beacon_at_s = 0.0
        self._steps: dict[int, int] = {}
        self.unclear: tuple[int, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lifesign-sensor", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; doesn't wait longer than a page's time-out."""
        self._stop.set()
        self._thread.join(3.0)

    def ask(self, timeout_s: float) -> None:
        """Send the one-token request, in a thread: it may hang for as long as the engine does."""
        pages = self._pages
        if pages is None:
            return

        def work() -> None:
            again, seconds = pages.canary(max(5.0, timeout_s))
            if seconds != float("inf") or not again:
                self.looks.append(CanaryAnswered(min(seconds, 1e6)))

        threading.Thread(target=work, name="lifesign-canary", daemon=True).start()

    def _work(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            try:
                self.looks.append(self._look())
            except Exception as error:  # a broken probe is no reason to be blind for ever, nor to die
                self._context.note(f"sensor: {type(error).__name__}: {error}")
            next_s = max(next_s + LOOK_S, time.monotonic())
            self._stop.wait(max(0.0, next_s - time.monotonic()))
        self._stacks.close()

    def _look(self) -> Poll:
        now_s = self._context.clock()
        if self.progress_made:
            self.progress_made = False
            self._probe.begin(now_s)
        targets = targets_of(self._life)
        processes = self._probe.sample(targets, now_s)
        self._look_at_stacks(processes, now_s)
        if not self.serving:
            self._look_for_health()
            return Poll(steps=0, processes=processes)
        beacon = self._beacon_poll(processes, now_s)
        page = self._pages.metrics() if self._pages is not None else None
        steps, demand = self._from_page(page)
        if beacon is not None:
            return replace(beacon, demand=beacon.demand or demand)
        return Poll(steps=steps, demand=demand, processes=processes)

    def _from_page(self, page: Page | None) -> tuple[int | None, bool]:
        before = self._page
        if page is None:
            return None, before is not None and before.demand
        if self._first_finished is None:
            self._first_finished = page.finished
        self.finished = page.finished - self._first_finished
        self._page = page
        return (page.steps_since(before) if before is not None else 0), page.demand

    def _look_for_health(self) -> None:
        """Engines whose log says nothing: up once /health answers *and* the port is one of ours."""
        if self._pages is None or self.came_up:
            return
        pids = [member.id.pid for member in self._life.alive()]
        if listeners(self._port, pids) and self._pages.healthy():
            self.came_up = True

    def _look_at_stacks(self, processes: tuple[ProcessSignals, ...], now_s: float) -> None:
        """One process at a time, only those of which the counters can't say whether they compute or spin."""
        taken = self._stacks.poll()
        if taken is not None:
            self._probe.saw_stacks(*taken, now_s)
        living = {one.pid for one in processes if one.state not in "ZX"}
        for pid in self.unclear:
            if pid in living and self._stacks.request(pid):
                return

    def _beacon_poll(self, processes: tuple[ProcessSignals, ...], now_s: float) -> Poll | None:
        """Progress as the plugin's beacons tell it (one per EngineCore); None without any."""
        if now_s >= self._beacon_at_s:
            self._beacon_at_s = now_s + BEACON_SEARCH_S
            for member in self._life.alive():
                if member.role == "core" and member.id.pid not in self._beacons:
                    path = find_beacon(member.id.pid)
                    if path is not None:
                        self._beacons[member.id.pid] = path
        readings: list[BeaconReading] = []
        for pid, path in list(self._beacons.items()):
            reading = read_beacon(path)
            if reading is not None and reading.pid == pid:
                readings.append(reading)
        if not readings:
            return None
        steps = 0
        for reading in readings:
            steps += max(0, reading.steps_done - self._steps.get(reading.pid, reading.steps_done))
            self._steps[reading.pid] = reading.steps_done
        oldest = max(readings, key=lambda one: one.step_age_s(time.monotonic_ns()))
        running = StepSize(oldest.step_sequences, oldest.step_tokens) if oldest.stepping else None
        demand = any(one.stepping or one.requests_running + one.requests_waiting > 0 for one in readings)
        size = StepSize(oldest.last_sequences, oldest.last_tokens) if steps and oldest.last_step_s > 0 else None
        return Poll(
            steps=steps,
            demand=demand,
            step_s=oldest.last_step_s if size else 0.0,
            size=size,
            running=running,
            processes=processes,
        )


def targets_of(life: Life) -> list[Target]:
    """The processes of a life as the process probe wants them."""
    targets = []
    for member in life.alive():
        role = {"core": "engine", "worker": "worker", "api": "server"}.get(member.role)
        if role is None and member.name in _COMPILERS:
            role = "compiler"
        if role is None:
            continue
        if role == "server":
            stat = procs.read_stat(member.id.pid)
            # A server is no evidence of work, but one that is stopped is as good as gone.
            role = "engine" if stat is not None and stat.state in "Tt" and stat.id == member.id else "server"
        found = _RANK.search(member.name)
        targets.append(Target(member.id.pid, role, int(found.group(1)) if found else -1, member.id.start_ticks))
    return targets


def backend() -> Backend:
    """`gpu` where a device of some maker is to be seen, else `cpu`."""
    return "gpu" if any(Path(path).exists() for path in _ACCELERATORS) else "cpu"


def max_size(command: tuple[str, ...]) -> StepSize:
    """The largest step that the command line allows; vLLM's usual defaults where it doesn't say."""
    sequences = option_of(command, "--max-num-seqs")
    tokens = option_of(command, "--max-num-batched-tokens")
    return StepSize(
        int(sequences) if sequences and sequences.isdigit() else 256,
        int(tokens) if tokens and tokens.isdigit() else 8192,
    )


_SUSPECT = T(
    "suspect: {finding} ({who}); nothing for {age} s, expected within {limit} s",
    "可疑：{finding}（{who}）；{age} 秒没有进展，预期 {limit} 秒以内",
)
_SUSPECT_AT_ONCE = T("suspect: {finding} ({who})", "可疑：{finding}（{who}）")
_WELL = T("the engine is well again", "引擎恢复正常")
_RESUMED = T("pid {pid} was stopped by somebody: sent SIGCONT", "pid {pid} 被人暂停：已发 SIGCONT")
_HELD_BY = T("somebody holds the engine on purpose: {what}; waiting for them", "有人有意按住了引擎：{what}；等他放手")
_DEGRADED = T("steps take {ratio} times as long as they used to", "每步耗时是平时的 {ratio} 倍")
_SETTLED = T("steps are as fast as they used to be", "每步耗时恢复到平时水平")
