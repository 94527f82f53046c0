"""How a life is brought to its end: evidence first, then what is left of it, then nothing is left.

stop     asked by a signal: `stopping.Stopper`, no capture
exited   the top process ended by itself: picture of the survivors, a moment to end by themselves, SIGKILL
lost     an engine process is gone but the server stays: the same
hang     the detector called it: picture, SIGABRT where no stack could be had otherwise, SIGKILL to all
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lifesign.guard import procs
from lifesign.guard.blackbox import CAPTURE_S, Capture
from lifesign.guard.evidence.stacks import abort_for_stack
from lifesign.guard.stopping import Stopper
from lifesign.text import T

if TYPE_CHECKING:
    from lifesign.guard.session import Session

SURVIVORS_S = 3.0
ABORT_S = 1.0
RECENT_CAPTURE_S = 8.0
GIVE_UP_S = 15.0
REPEAT_S = 0.5


@dataclass
class Ending:
    """State of one ending. `ours` are the processes that guard has signalled to end."""

    reason: Literal["stop", "exited", "lost", "hang"]
    started_s: float
    ours: set[procs.ProcId] = field(default_factory=set)
    _stopper: Stopper | None = None
    _capture: Capture | None = None
    _captured: bool = False
    _aborted_s: float | None = None
    _killing_s: float | None = None
    _sent_s: float = -1e9
    _empty_since_s: float | None = None

    def hurry(self) -> None:
        """Asked again: no more patience."""
        if self._stopper is not None:
            self._stopper.hurry()

    def over(self, session: Session) -> bool:
        """Whether nothing runs any more (or what runs can't be ended, which happens in uninterruptible sleep)."""
        now_s = session.context.clock()
        if self._killing_s is not None and now_s - self._killing_s > GIVE_UP_S:
            return True
        if session.life.running() or session.life.members[session.life.top].ended_s is None:
            return False
        if self._capture is not None and not self._capture.done.is_set():
            return now_s - self._capture.started_s > CAPTURE_S + 1.5 or not _may_wait(session, now_s)
        # One more scan: a process that was forked in the last moment.
        for member in session.life.scan():
            session.life.exits.add(member.id)
        return not session.life.running()

    def drive(self, session: Session, now_s: float) -> None:
        """Take the next step."""
        if self.reason == "stop":
            self._stop(session, now_s)
            return
        if not self._picture(session, now_s):
            return
        if self.reason == "hang" and not self._abort(session, now_s):
            return
        patience_s = 0.0 if self.reason == "hang" else SURVIVORS_S
        if now_s - self.started_s >= patience_s or not _may_wait(session, now_s):
            self._kill(session, now_s)

    def own_what_was_passed_on(self, session: Session, passed_on: set[int]) -> None:
        """A server that ended by a signal which guard passed on was not ended by a stranger, nor what followed it."""
        members = session.life.members
        top = members[session.life.top]
        if top.status is None or not os.WIFSIGNALED(top.status) or os.WTERMSIG(top.status) not in passed_on:
            return
        session.context.voice.say(_PASSED_ON, signal=procs.signal_name(os.WTERMSIG(top.status)))
        since_s = top.ended_s or 0.0
        self.ours |= {one.id for one in members.values() if one.ended_s is not None and one.ended_s >= since_s}

    def _stop(self, session: Session, now_s: float) -> None:
        context = session.context
        if self._stopper is None:
            assert context.stop_signal is not None
            assert context.stop_asked_s is not None
            # A server that drains on SIGTERM is cut off by SIGHUP: that one was meant for guard's terminal.
            number = signal.SIGTERM if context.stop_signal == signal.SIGHUP else context.stop_signal
            self._stopper = Stopper(context.stop_asked_s, context.settings.grace_s, session.start_s is not None, number)
            if context.stop_requests > 1:
                self._stopper.hurry()
        running = session.life.running()
        top_alive = any(member.id == session.life.top for member in running)
        others = [member for member in running if member.id != session.life.top]
        for_top, for_others = self._stopper.next(now_s, top_alive=top_alive, others_alive=bool(others))
        if for_top is not None and (for_top != signal.SIGKILL or self._may_repeat(now_s)):
            self._send(session, session.life.top, for_top)
        if for_others is not None:
            for member in others:
                self._send(session, member.id, for_others)
        if signal.SIGKILL in (for_top, for_others) and self._killing_s is None:
            self._killing_s = now_s
            context.note("patience is over: SIGKILL")

    def _may_repeat(self, now_s: float) -> bool:
        if now_s - self._sent_s < REPEAT_S:
            return False
        self._sent_s = now_s
        return True

    def _picture(self, session: Session, now_s: float) -> bool:
        """Take the picture unless there is a fresh one; True once it is there or its time is up."""
        if self._captured:
            return True
        if self._capture is None:
            recent = session.captures[-1] if session.captures else None
            if recent is not None and now_s - recent.started_s < RECENT_CAPTURE_S:
                self._capture = recent
            elif any(member.role != "tracker" for member in session.life.running()):
                self._capture = session.capture(f"death ({self.reason})")
            else:
                self._captured = True
                return True
        self._captured = (
            self._capture.done.is_set()
            or now_s - self._capture.started_s > CAPTURE_S + 1.5
            or not _may_wait(session, now_s)
        )
        return self._captured

    def _abort(self, session: Session, now_s: float) -> bool:
        """Where py-spy got nothing: let faulthandler print the stacks into the log. True once its time is up."""
        if self._aborted_s is None:
            self._aborted_s = now_s
            missing = self._capture.no_stack if self._capture is not None else []
            for proc in missing:
                if abort_for_stack(proc):
                    self.ours.add(proc)
            if not self.ours:
                return True
        return now_s - self._aborted_s > ABORT_S

    def _kill(self, session: Session, now_s: float) -> None:
        if self._killing_s is None:
            self._killing_s = now_s
        if not self._may_repeat(now_s):
            return
        for member in session.life.running():
            self._send(session, member.id, signal.SIGKILL)

    def _send(self, session: Session, proc: procs.ProcId, number: int) -> None:
        self.ours.add(proc)
        with suppress(OSError):
            if procs.signal_exactly(proc, number):
                session.context.note(f"sent {procs.signal_name(number)} to pid {proc.pid}")


def _may_wait(session: Session, now_s: float) -> bool:
    """Whether a death may take its time: not once half of the grace period of a request to stop is over."""
    context = session.context
    if context.stop_asked_s is None:
        return True
    return context.stop_requests < 2 and now_s - context.stop_asked_s < context.settings.grace_s / 2


_PASSED_ON = T(
    "{signal}, which guard was sent and passed on, ended the engine",
    "guard 收到并转发的 {signal} 结束了引擎",
)
