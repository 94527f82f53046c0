"""The detector in guard's service: a sensor thread looks once a second, the session tells the detector, acts on it.

One watcher serves all lives of a guard: what a step costs, and what a restart costs, was learned in the lives before.
What is seen comes from /proc (every process of the life), the beacon where the plugin writes one, the engine's metrics
page and NVML; where none of them can be read the detector is told so, and judges with patience or not at all.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lifesign.guard import procs
from lifesign.guard.context import Context
from lifesign.guard.detector.core import Detector
from lifesign.guard.detector.core import Settings as DetectorSettings
from lifesign.guard.detector.events import (
    AskOperator,
    Begin,
    Canary,
    Capture,
    Changed,
    Command,
    Degraded,
    Event,
    Exited,
    Kill,
    Milestone,
    Ready,
    Resume,
)
from lifesign.guard.detector.policy import Backend, StepSize
from lifesign.guard.detector.states import VIEW, Finding, State
from lifesign.guard.life import Life, Member
from lifesign.guard.outcome import Call
from lifesign.guard.recording import Recording
from lifesign.guard.sensor import Sensor
from lifesign.guard.session import Session
from lifesign.guard.settings import serves_vllm, setting_of
from lifesign.text import T, is_whole

PROGRESS_STEPS, PROGRESS_REQUESTS = 200, 10
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/davinci_manager", "/dev/dri/renderD128")


class EngineWatcher:
    """Implements `session.Watcher`. The sensor thread only fills `Sensor.events`; all judging happens in the session's thread."""

    def __init__(self, context: Context, *, canary: bool = True, may_resume: bool = False) -> None:
        self._context = context
        command = context.settings.command
        self._key = setting_of(command, "--api-key") or os.environ.get("VLLM_API_KEY")
        may_ask = context.settings.engine_url is not None or serves_vllm(command)
        self._core = Detector(DetectorSettings(may_resume=may_resume, canary=canary and may_ask))
        self._start_s: float | None = None
        self._sensor: Sensor | None = None
        self._recording: Recording | None = None
        self._steps_at_start = 0
        self._begun_s = 0.0
        self._suspected = False
        self._verdict: Call | None = None

    def begin(self, life: Life) -> None:
        """A life starts: a new recording, the same memory."""
        context = self._context
        self._recording = Recording(context.state.root / "events", life.id, self._core, context.note)
        self._verdict = None
        self._suspected = False
        self._steps_at_start = self._core.steps_seen
        self._begun_s = context.clock()
        self._sensor = Sensor(life, self._key, context, self._core)
        restart_s = self._start_s if self._start_s is not None else 60.0
        self._tell(
            Begin(backend=backend(), tier="outside", restart_s=restart_s, max_size=max_size(context.settings.command))
        )
        self._sensor.start()

    def ready(self) -> None:
        """It serves: what the start took is what a restart costs."""
        self._start_s = self._context.clock() - self._begun_s
        if self._sensor is not None:
            self._sensor.serve()
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
        while sensor.events:
            for command in self._tell(sensor.events.popleft()):
                self._act(command, session)
        if sensor.gpus.visible:
            session.life.details["gpus"] = sensor.gpus.as_json()
        if sensor.page:
            session.life.details["page"] = sensor.page
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
            self._recording.close()
            self._recording = None

    def _tell(self, event: Event) -> list[Command]:
        judge = self._recording or self._core
        return judge.handle(event, self._context.clock())

    def _act(self, command: Command, session: Session) -> None:
        context = self._context
        if isinstance(command, Changed):
            self._changed(command)
        elif isinstance(command, Capture):
            session.capture(command.why.value)
        elif isinstance(command, Kill):
            if command.why is not Finding.EXITED:  # ends of processes are the session's own business
                stopped = command.why is Finding.STOPPED_TOO_LONG
                self._verdict = Call(in_words(command.why).en, command.who, stopped, in_words(command.why))
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
            lang = context.settings.lang
            text = _SUSPECT if change.limit_s > 0 else _SUSPECT_AT_ONCE
            context.voice.say(
                text,
                finding=in_words(change.finding).pick(lang),
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


def in_words(finding: Finding) -> T:
    """What the detector found, for a person."""
    return T(finding.value, _FINDINGS_ZH.get(finding, finding.value))


def backend() -> Backend:
    """`gpu` where a device of some maker is to be seen, else `cpu`."""
    return "gpu" if any(Path(path).exists() for path in _ACCELERATORS) else "cpu"


def max_size(command: tuple[str, ...]) -> StepSize:
    """The largest step that the command line allows; vLLM's usual defaults where it doesn't say."""
    sequences = setting_of(command, "--max-num-seqs")
    tokens = setting_of(command, "--max-num-batched-tokens")
    return StepSize(
        int(sequences) if sequences and is_whole(sequences) else 256,
        int(tokens) if tokens and is_whole(tokens) else 8192,
    )


_FINDINGS_ZH = {
    Finding.HALTED: "进程被暂停（T 状态）",
    Finding.STOPPED_TOO_LONG: "被暂停太久",
    Finding.START_STUCK: "启动卡死",
    Finding.STUCK_EARLY: "看起来卡住了",
    Finding.STUCK_TOO_LONG: "卡住太久",
    Finding.SILENT_TOO_LONG: "太久没有动静，也看不出原因",
    Finding.WORKING_TOO_LONG: "还在算，但已远超任何合理时间",
    Finding.LATE: "超时，且没有在工作",
    Finding.LATE_WORKING: "超时，但在工作",
    Finding.LATE_UNSEEN: "超时，看不到它在做什么",
    Finding.PROGRESS: "有进展",
    Finding.EXITED: "有进程退出",
}
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
