"""One life of the engine, from spawn to the last process gone: the loop that watches, and what it found.

Single-threaded: signals, process ends, the keeper's messages and the detector's commands all arrive here and nowhere
else. What takes time (captures, probes) runs beside it. How a life is brought to its end is in `ending.py`.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from lifesign.errors import UsageError
from lifesign.guard import inbox as signals
from lifesign.guard import procs, readiness
from lifesign.guard.blackbox import Capture, capture_in_background
from lifesign.guard.bundle import roomy_folder
from lifesign.guard.careful import Careful
from lifesign.guard.context import Context
from lifesign.guard.ending import Ending
from lifesign.guard.environment import OWNER_FILE
from lifesign.guard.evidence import memory
from lifesign.guard.evidence.kernel import KernelTail
from lifesign.guard.evidence.redact import redact_command
from lifesign.guard.life import ENGINE_ROLES, Life, Member
from lifesign.guard.lifegroup import make_group
from lifesign.guard.outcome import Call, Outcome, Watcher
from lifesign.guard.settings import serves_vllm
from lifesign.guard.spawn import KeeperLink, Streams, open_streams, spawn_engine, spawn_keeper
from lifesign.guard.statedir import write_json
from lifesign.guard.strangers import Strangers
from lifesign.text import Lang, T

TICK_S = 0.5
SCAN_S = 0.5
SHM_S = 5.0
LOST_GRACE_S = 10.0
KEEPER_END_S = 2.0
KEPT_CAPTURES = 3
STATS_S = 5.0
TAIL_BYTES = 4 << 20
IDLE_PROGRESS_S = 1800.0
MAX_FAILURES = 20


class Session:
    """Runs one life. `run` gives its outcome; UsageError when the command can't be started at all."""

    def __init__(self, context: Context, life_id: str, number: int, watcher: Watcher | None) -> None:
        self.context = context
        self.watcher = None if watcher is None else Careful(watcher, self._watcher_broke)
        self.captures: list[Capture] = []
        self.start_s: float | None = None
        self.ending: Ending | None = None
        self.call: Call | None = None
        self.keeper_stats: dict[str, object] = {}
        self._id, self._number = life_id, number
        self._selector = selectors.DefaultSelector()
        self._kernel = KernelTail(context.clock)
        self._scan_at_s = self._shm_at_s = 0.0
        self._lost_at_s: float | None = None
        self.on_progress: Callable[[], None] = lambda: None
        self._progress_told = False
        self._stats_at_s = 0.0
        self._strangers = Strangers(context.clock)
        self._keeper_ended = False
        self._disk_error: object = ""
        self._passed_on: set[int] = set()
        self._suspected = False
        self._failures = 0
        self.life: Life
        self._oom: memory.OomWatch
        self._streams: Streams
        self._keeper: KeeperLink | None = None
        self._popen: subprocess.Popen[bytes]

    def run(self, command: list[str], environment: dict[str, str], tmp: Path | None = None) -> Outcome:
        """Spawn, watch, end. `on_progress` is called once, when the life has done real work.

        An error of our own is raised once it has come again and again; `life` is there as soon as anything may run.
        """
        context = self.context
        started, self._spawned_s = context.now(), context.clock()
        details = {"started": started, "command": redact_command(command), "tmp": str(tmp) if tmp else None}
        self._spawn(command, environment, details)
        memory_folder = memory.memory_folder(self.life.top.pid)
        before = memory.read_memory(memory_folder)
        self._oom = memory.OomWatch(memory_folder)
        if self.watcher is not None:
            self.watcher.begin(self.life)
        try:
            while self.ending is None or not self.ending.over(self):
                self._wait()
                self._tick_or_note()
            self._reap()
            self._notice_ends()
        finally:
            if self.watcher is not None:
                self.watcher.end()
            try:
                self._finish_log()
            except Exception as error:
                context.note(f"the end of the log: {_named(error)}")
            self._selector.close()
        after = self._oom.complete(memory.read_memory(memory_folder), context.clock())
        kernel = self._kernel.read(context.helpers)
        self._kernel.close()
        top = self.life.members[self.life.top]
        ready_for_s = (
            (top.ended_s or context.clock()) - self._spawned_s - self.start_s if self.start_s is not None else 0.0
        )
        self.ending.own_what_was_passed_on(self, self._passed_on)
        outcome = Outcome(
            self._kind(), self.life, started, context.now(), self.start_s, max(0.0, ready_for_s), top.status,
            self.ending.reason, self.call, self.captures, before, after, kernel, self.keeper_stats, self.ending.ours,
            self._suspected,
        )  # fmt: skip
        self.life.exits.close()
        return outcome

    def _kind(self) -> Literal["died", "stopped", "finished"]:
        assert self.ending is not None
        if self.ending.reason == "stop":
            return "stopped"
        status = self.life.members[self.life.top].status
        was_engine = self.start_s is not None or any(
            member.role in ENGINE_ROLES for member in self.life.members.values()
        )
        if self.ending.reason == "exited" and status == 0 and not was_engine:
            return "finished"
        return "died"

    def _spawn(self, command: list[str], environment: dict[str, str], details: dict[str, object]) -> None:
        context, settings = self.context, self.context.settings
        self._kernel.open()
        self._streams = open_streams()
        folder = context.state.log_folder(self._id)
        try:
            self._start_keeper(folder)
            with context.helpers.lock:
                self._popen = spawn_engine(command, environment, self._streams)
        except (UsageError, OSError):
            self._streams.close_child_ends()
            self._streams.close()
            self._kernel.close()
            self._let_keeper_go(KEEPER_END_S)
            self._selector.close()
            raise
        self._streams.close_child_ends()
        top = procs.identify(self._popen.pid) or procs.ProcId(self._popen.pid, 0)
        self.life = Life(self._id, self._number, top, context.clock, context.helpers.owns)
        self.life.details = details
        self._save_life()
        self.life.group = make_group(self._id, top.pid) if settings.own_cgroup else None
        if details["tmp"]:
            owner = {"guard": procs.identify(os.getpid()), "top": top}
            with suppress(OSError):
                (Path(str(details["tmp"])) / OWNER_FILE).write_text(json.dumps(owner))
        self.life.start(
            "APIServer" if settings.engine_url or serves_vllm(settings.command) else Path(settings.command[0]).name
        )
        self._selector.register(context.inbox.fd, selectors.EVENT_READ)
        self._watch_exit(self.life.top)
        self._save_life()

    def _start_keeper(self, folder: Path) -> None:
        settings = self.context.settings
        self._keeper = spawn_keeper(
            self.context.helpers,
            self._streams,
            folder,
            marks=list(readiness.MARKS),
            segment_bytes=settings.log_segment_bytes,
            keep_bytes=settings.log_keep_bytes,
        )
        self._selector.register(self._keeper.control, selectors.EVENT_READ)

    def _watch_exit(self, proc: procs.ProcId) -> None:
        fd = self.life.exits.add(proc)
        if fd is not None:
            with suppress(KeyError, ValueError):
                self._selector.register(fd, selectors.EVENT_READ)

    def _wait(self) -> None:
        timeout_s = 0.1 if self.ending is not None else TICK_S
        for key, _ in self._selector.select(timeout_s):
            proc = self.life.exits.proc_of(key.fd)
            if proc is not None:  # readable for good: look at it once, in `_notice_ends`
                self._selector.unregister(key.fd)

    def _tick_or_note(self) -> None:
        """One round. An error of our own must not leave an engine without a guard: it is told once, then tried again."""
        try:
            self._tick()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            if self._failures == 1:
                self.context.voice.say(_OWN_ERROR, error=_named(error))
            if self._failures >= MAX_FAILURES:
                raise

    def _watcher_broke(self, error: Exception) -> None:
        self.context.voice.say(_DETECTOR_OFF, error=_named(error))
        self.context.board.update(view="HEALTHY")

    def _tick(self) -> None:
        now_s = self.context.clock()
        for number in self.context.inbox.read():
            self._on_signal(number)
        self._hear_keeper()
        self._kernel.drain()
        self._oom.look(now_s)
        self._reap()
        self._notice_ends()
        if now_s >= self._scan_at_s:
            self._scan_at_s = now_s + SCAN_S
            for member in self.life.scan():
                self._watch_exit(member.id)
        if now_s >= self._shm_at_s:
            self._shm_at_s = now_s + SHM_S
            self.life.note_shm(again=self.start_s is None)
        if now_s >= self._stats_at_s and self._keeper is not None:
            self._stats_at_s = now_s + STATS_S
            self._keeper.send({"op": "stats"})
        if self.life.changed:
            self._save_life()
        self._notice_progress(now_s)
        if self.ending is None:
            self._look(now_s)
        if self.ending is None:
            self._decide(now_s)
        if self.ending is not None:
            self.ending.drive(self, now_s)

    def _notice_progress(self, now_s: float) -> None:
        """Tell once that this life was worth its start: real work, or half an hour of service."""
        if self._progress_told or self.start_s is None or self.ending is not None:
            return
        idle_s = now_s - self._spawned_s - self.start_s
        if idle_s > IDLE_PROGRESS_S or (self.watcher is not None and self.watcher.progressed()):
            self._progress_told = True
            self.on_progress()

    def _look(self, now_s: float) -> None:
        """Let the detector look."""
        if self.watcher is None:
            return
        call = self.watcher.tick(self)
        if call is not None:
            self.call = call
            self.context.voice.say(
                _CALLED, finding=_said(call, self.context.settings.lang), who=", ".join(call.who) or "-"
            )
            self.begin_ending("hang")

    def _decide(self, now_s: float) -> None:
        """Has the life ended by itself, or must it be ended?"""
        context = self.context
        asked_s = context.stop_asked_s
        top = self.life.members[self.life.top]
        if top.ended_s is not None and (asked_s is None or top.ended_s < asked_s):
            self.begin_ending("exited")
            return
        lost = self.life.lost()
        if asked_s is not None:  # what died before the request did not end because of it
            self.begin_ending("lost" if any((one.ended_s or 0.0) < asked_s for one in lost) else "stop")
            return
        if lost and self._lost_at_s is None:
            self._lost_at_s = now_s
            context.board.update(lost=True)
            context.voice.say(_LOST, name=lost[0].name, pid=lost[0].id.pid)
        if self._lost_at_s is not None and now_s - self._lost_at_s > LOST_GRACE_S:
            self.begin_ending("lost")

    def begin_ending(self, reason: Literal["stop", "exited", "lost", "hang"]) -> None:
        """From here on the life is being ended."""
        context = self.context
        self.life.note_shm(again=True)
        self.ending = Ending(reason, context.clock())
        if reason == "stop":
            assert context.stop_signal is not None
            name = procs.signal_name(context.stop_signal)
            context.voice.say(_STOPPING, signal=name, grace=f"{context.settings.grace_s:g}")
            self._suspected = context.board.get("view") == "UNHEALTHY" and bool(self.captures)
            # Should guard be killed now, the next one must not take this end for a death.
            self.life.details["stopping"] = not self._suspected
            self.life.changed = True
            context.board.update(phase="stopping", ready=False)
        else:
            context.board.update(phase="dead", ready=False)
        context.note(f"ending: {reason}")

    def capture(self, why: str) -> Capture:
        """Take stacks and the rest now, in the background; only the last few captures of a life are kept."""
        context = self.context
        folder = context.state.root / "captures" / self._id / f"{len(self.captures) + 1:04d}"
        url = context.settings.engine_url
        capture = capture_in_background(context.helpers, self.life, folder, why, engine_url=url, clock=context.clock)
        self.captures = [*self.captures, capture]
        if len(self.captures) > KEPT_CAPTURES:
            shutil.rmtree(self.captures[-KEPT_CAPTURES - 1].folder, ignore_errors=True)
        context.note(f"capture {len(self.captures)}: {why}")
        return capture

    def mark_ready(self) -> None:
        """The engine serves."""
        if self.start_s is not None:
            return
        context = self.context
        self.start_s = context.clock() - self._spawned_s
        self.life.note_shm(again=True)
        self.life.details["start_s"] = round(self.start_s, 3)
        self.life.changed = True
        context.board.metrics.start_s.set(self.start_s)
        context.voice.say(_SERVING, seconds=f"{self.start_s:.1f}")
        if self.ending is None:
            context.board.update(phase="serving", ready=True)
        if self.watcher is not None:
            self.watcher.ready()

    def _on_signal(self, number: int) -> None:
        context = self.context
        if number in signals.STOPPING:
            context.ask_to_stop(number)
            if context.stop_requests > 1 and self.ending is not None:
                self.ending.hurry()
        elif number == signal.SIGWINCH:
            self._streams.copy_window_size()
        elif number in signals.PASSED_ON:
            with suppress(OSError):
                if procs.signal_exactly(self.life.top, number):
                    self._passed_on.add(number)
                    context.note(f"{procs.signal_name(number)} passed on to the engine")

    def _hear_keeper(self) -> None:
        if self._keeper is None:
            return
        for message in self._keeper.receive():
            if message["op"] == "mark":
                self._on_mark(str(message["mark"]))
            elif message["op"] == "gone":
                self._keeper_gone()
                return
            else:
                self._on_stats(message)

    def _on_stats(self, message: dict[str, object]) -> None:
        self.keeper_stats.update({key: value for key, value in message.items() if key != "op"})
        self._keeper_ended = self._keeper_ended or message["op"] == "eof"
        metrics = self.context.board.metrics
        for gauge, key in ((metrics.log_bytes, "bytes"), (metrics.log_lost_bytes, "unsaved_bytes")):
            value = self.keeper_stats.get(key)
            gauge.set(value if isinstance(value, int) else 0)
        error = message.get("disk_error")
        if error and error != self._disk_error:
            self.context.voice.say(_DISK, error=error)
        self._disk_error = error

    def _on_mark(self, mark: str) -> None:
        phase = readiness.MARKS.get(mark, mark)
        self.context.note(f"log: {phase}")
        if mark in readiness.READY_MARKS:
            self.mark_ready()
        elif self.watcher is not None and self.start_s is None:
            self.watcher.milestone(phase)

    def _keeper_gone(self) -> None:
        """The keeper has ended: in order after the engine closed its output, else it is started again on the same pipe."""
        self._let_keeper_go(1.0)
        if self._keeper_ended:
            return
        self.context.voice.say(_KEEPER)
        try:
            self._start_keeper(self.context.state.log_folder(self._id))
        except OSError as error:
            self.context.note(f"the log keeper can't be started: {error}")

    def _let_keeper_go(self, patience_s: float) -> KeeperLink | None:
        """Close the line to the keeper and give it a moment to end; the keeper that was there."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self._selector.unregister(keeper.control)
            keeper.control.close()
            with suppress(subprocess.TimeoutExpired):
                keeper.process.wait(patience_s)
            self.context.helpers.forget(keeper.process.pid)
        return keeper

    def _reap(self) -> None:
        """Take the wait status of every child that has ended: the engine's, and orphans that came to us."""
        with self.context.helpers.lock:
            for member in self.life.alive():
                with suppress(ChildProcessError):
                    pid, status = os.waitpid(member.id.pid, os.WNOHANG)
                    if pid:
                        self._ended(member.id, status)
            for child in procs.ended_children():
                if self._may_reap(child):
                    with suppress(ChildProcessError):
                        pid, status = os.waitpid(child, os.WNOHANG)
                        for member in self.life.alive():  # an orphan that came to us a moment ago
                            if member.id.pid == pid:
                                self._ended(member.id, status)

    def _may_reap(self, pid: int) -> bool:
        """Members and old orphans. A child that is no helper of ours may belong to a library that waits for it itself."""
        if any(member.id.pid == pid for member in self.life.alive()):
            return True
        return not self.context.helpers.owns(pid) and self._strangers.may_reap(pid)

    def _ended(self, proc: procs.ProcId, status: int | None) -> None:
        member = self.life.ended(proc, status)
        if proc == self.life.top and status is not None:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        if member is not None:
            self._tell_end(member)

    def _notice_ends(self) -> None:
        for member in self.life.notice_ends():
            self._tell_end(member)

    def _tell_end(self, member: Member) -> None:
        self.life.exits.drop(member.id)
        code, name = procs.describe_status(member.status) if member.status is not None else (None, None)
        how = f"signal {name}" if name else f"code {code}" if code is not None else "unknown how"
        self.context.note(f"ended: {member.name} (pid {member.id.pid}, {member.role}), {how}")
        if self.watcher is not None and member.role in ENGINE_ROLES and self.ending is None:
            self.watcher.exited(member)

    def _save_life(self) -> None:
        self.life.changed = False
        with suppress(OSError, ValueError):
            write_json(self.context.state.life_path, self.life.as_json(), durable=False)

    def _finish_log(self) -> None:
        """Wait a little for the end of the output: what the engine said last matters most."""
        if self._keeper is not None:
            self._keeper.send({"op": "sync"})
        self._hear_until(lambda: self._keeper_ended)
        if self._keeper is not None and self.keeper_stats.get("unsaved_bytes"):
            path = Path(roomy_folder() or "/dev/shm") / f"lifesign-{self._id}.tail"
            self._keeper.send({"op": "tail", "path": str(path), "bytes": TAIL_BYTES})
            self._hear_until(lambda: "tailed_bytes" in self.keeper_stats)
            self.keeper_stats["tail_path"] = str(path)
        self._streams.close()
        for fd in self._streams.terminals:
            with suppress(OSError):
                os.close(fd)
        keeper = self._let_keeper_go(0.5)
        if keeper is not None:
            self.context.note(f"log: {self.keeper_stats}, keeper {keeper.process.returncode}")

    def _hear_until(self, done: Callable[[], bool]) -> None:
        until_s = self.context.clock() + KEEPER_END_S
        while self._keeper is not None and not done() and self.context.clock() < until_s:
            self._selector.select(0.05)
            self._hear_keeper()


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _said(call: Call, lang: Lang) -> str:
    return call.words.pick(lang) if call.words is not None else call.finding


_OWN_ERROR = T(
    "an error in guard itself ({error}): trying to go on; please report it",
    "guard 自身出错（{error}）：尝试继续运行；请反馈这个问题",
)
_DETECTOR_OFF = T(
    "the detector broke ({error}) and is off for this life: hangs are not seen, ends of processes are; please report it",
    "检测器出错（{error}），这一轮不再使用：看不到卡死，但进程退出照样能看到；请反馈这个问题",
)
_SERVING = T("the engine serves after {seconds} s", "引擎 {seconds} 秒后开始服务")
_CALLED = T("the engine is dead: {finding} ({who})", "引擎已死：{finding}（{who}）")
_LOST = T(
    "{name} (pid {pid}) is gone; waiting for the server to end by itself",
    "{name}（pid {pid}）没了；等服务进程自己退出",
)
_STOPPING = T("{signal}: stopping the engine within {grace} s", "收到 {signal}：{grace} 秒内停掉引擎")
_DISK = T(
    "the log can't be written ({error}): its end is kept in memory, the engine is not affected",
    "日志写不进磁盘（{error}）：末尾留在内存里，引擎不受影响",
)
_KEEPER = T("the log keeper was killed: another one goes on where it stopped", "日志进程被杀死：已另起一个接着写")
