"""The guard itself: life after life, until it is asked to stop, or must not go on.

recover -> [ start -> watch -> (stopped: leave) -> bury -> decide -> clear -> wait ] -> leave
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import select
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from lifesign.errors import UsageError
from lifesign.guard import inbox as signals
from lifesign.guard import procs
from lifesign.guard.announce import announce
from lifesign.guard.board import Board
from lifesign.guard.clearance import clear
from lifesign.guard.closing import Closed, close_incident, drop_captures, keep_suspicion, without_bundle
from lifesign.guard.context import Context
from lifesign.guard.environment import engine_environment, private_tmp
from lifesign.guard.evidence.redact import redact_command
from lifesign.guard.exits import become_subreaper
from lifesign.guard.helpers import Helpers
from lifesign.guard.http import HttpThread, explain_bind, listen
from lifesign.guard.inbox import Inbox
from lifesign.guard.life import record_ahead
from lifesign.guard.notify import Notifier
from lifesign.guard.outcome import Outcome, Watcher
from lifesign.guard.recovery import Recovered, abandon, mark_ended, recover
from lifesign.guard.rescue import rescue
from lifesign.guard.restart import Decision, Died, Memory, Progressed, RestartPolicy, Started, apply_changes
from lifesign.guard.session import Session
from lifesign.guard.settings import Settings, address_of, engine_url
from lifesign.guard.statedir import StateDir, read_json, write_json
from lifesign.guard.voice import Voice
from lifesign.text import T

BURY_MARGIN_S = 2.0
BURY_LIMIT_S = 120.0
RECOVER_LIMIT_S = 150.0
MAX_SPAWN_FAILURES = 4
SPAWN_DELAY_S = 5.0
"""Before a start is tried again whose program could not even be spawned; twice as long each time."""


class Guard:
    """One run of `lifesign guard`. `run` gives the exit code."""

    def __init__(
        self,
        settings: Settings,
        *,
        make_watcher: Callable[[Context], Watcher | None] = lambda context: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if settings.engine_url is None:
            settings = replace(settings, engine_url=engine_url(settings.command))
        voice = Voice(settings.lang)
        board = Board()
        notifier = Notifier(settings.webhooks, os.environ, lambda text: voice.say(T(text, text)))
        self.context = Context(settings, StateDir(settings.state_dir), Helpers(), Inbox(), voice, board, notifier)
        self._make_watcher = make_watcher
        self._draw = draw
        self._http: HttpThread | None = None
        self._policy: RestartPolicy
        self._deciding = threading.Lock()
        self._lives = 0

    def run(self) -> int:
        """Run until the end. Raises UsageError when the command or the folder can't be used."""
        context = self.context
        context.state.open()
        try:
            return self._run()
        finally:
            if self._http is not None:
                self._http.stop()
            context.notifier.flush(3.0)
            context.voice.flush()
            context.state.close()

    def _run(self) -> int:
        context = self.context
        context.voice.keep_in(context.state.root / "guard.log")
        if context.state.fallback_note:
            context.voice.say(T(context.state.fallback_note, context.state.fallback_note))
        become_subreaper()
        context.inbox.open()
        try:
            self._policy = self._load_policy()
            self._serve_pages()
            closed, whole = self._recover()
            # Somebody started us anew, perhaps with another command: only a spent budget or broken hardware forbids it.
            if closed is not None and closed.decision.action == "hold":
                return self._leave(closed, 1)
            if not self._listen(0.0):  # asked to stop while the last life was being taken care of
                return 1 if closed is not None or not whole else 0
            return self._lives_loop()
        finally:
            context.inbox.close()

    def _recover(self) -> tuple[Closed | None, bool]:
        """(the death that the guard before this one left, whether nothing is left to be done about it)."""
        context = self.context
        box: list[Recovered | None] = []
        end, error = self._beside(lambda: box.append(recover(context, self._policy, self._decide)), RECOVER_LIMIT_S)
        if end == "asked":
            context.voice.say(_UNFINISHED)
            return None, False
        if end == "late" or error is not None:
            context.voice.say(_BROKEN, error=_named(error) if error is not None else _LATE.pick(context.settings.lang))
            self._carefully("recovery", lambda: abandon(context))
        found = box[0] if box else None
        if found is not None and not found.told:
            self._announce(found.closed)
        mark_ended(context)
        return (found.closed if found is not None else None), True

    def _lives_loop(self) -> int:
        context = self.context
        code, lived, failed = 1, False, 0
        while True:
            try:
                outcome, command, environment, tmp = self._live()
            except UsageError as error:
                # Where it ran before, the machine may only be short of processes or memory: a death leaves it so.
                failed += 1
                if not lived or failed > MAX_SPAWN_FAILURES:
                    raise
                words = T(str(error), str(error))
                if not self._back_off(Decision("restart", SPAWN_DELAY_S * 2 ** (failed - 1), words, "spawn")):
                    return code
                continue
            lived, failed = True, 0
            if outcome.kind != "died":
                self._settle(outcome, outcome.kind)
                if outcome.suspected:
                    self._keep_suspicion(outcome, command, environment)
                drop_captures(context.state.root, outcome.life.id)
                self._clear(outcome, tmp, patient=False)
                mark_ended(context)
                if outcome.kind == "finished":
                    context.voice.say(_FINISHED, seconds=f"{outcome.ended - outcome.started:.1f}")
                context.board.update(phase="ended", ready=False)
                return outcome.exit_code
            code = max(outcome.exit_code, 1)
            closed = self._bury(outcome, command, environment)
            if closed is not None:
                self._announce(closed)
                self._settle(outcome, closed.id)
            if closed is None or context.stop_signal is not None:
                self._clear(outcome, tmp, patient=False)
                if closed is not None:
                    mark_ended(context)
                context.board.update(phase="ended", ready=False)
                return code
            self._clear(outcome, tmp, patient=closed.decision.action == "restart")
            mark_ended(context)
            if closed.decision.action != "restart":
                return self._leave(closed, code)
            if not self._back_off(closed.decision):
                return code

    def _settle(self, outcome: Outcome, how: str) -> None:
        """Note in life.json what became of a life: a guard that is killed while it clears up has no second death to report."""
        outcome.life.details["settled"] = how
        with suppress(OSError, ValueError):
            write_json(self.context.state.life_path, outcome.life.as_json())

    def _live(self) -> tuple[Outcome, list[str], dict[str, str], Path | None]:
        """One life, from spawn to the last process gone."""
        context, memory = self.context, self._policy.memory
        self._lives += 1
        life_id = f"{context.now():.0f}-{secrets.token_hex(4)}"
        self._record_start(life_id)
        tmp = private_tmp(life_id, os.environ) if context.settings.private_tmp else None
        environment = engine_environment(context.settings, life_id, os.environ, tmp)
        changes = [*memory.active, *([memory.on_trial] if memory.on_trial else [])]
        command, environment = apply_changes(list(context.settings.command), environment, changes)
        context.timeline = []
        context.voice.lines = []
        context.board.update(
            phase="starting", engine="STARTING", view="HEALTHY", ready=False, lost=False, life=self._lives,
            command=redact_command(command), changes=[change.show() for change in changes], reason="",
        )  # fmt: skip
        context.note("start: " + " ".join(redact_command(command)))
        self._prune(life_id)
        session = Session(context, life_id, self._lives, self._make_watcher(context))
        session.on_progress = self._on_progress
        try:
            self._policy.handle(Started(), context.now())
            context.board.metrics.starts.inc()
            if self._lives > 1:
                context.board.metrics.restarts.inc()
            self._save_policy()
            outcome = session.run(command, environment, tmp)
        except Exception as error:
            if not hasattr(session, "life"):  # nothing was started
                if tmp is not None:
                    shutil.rmtree(tmp, ignore_errors=True)
                mark_ended(context)
                if isinstance(error, UsageError):
                    raise
                raise UsageError(f"the engine can't be started ({_named(error)}); see `lifesign check`") from error
            context.voice.say(_BROKE_OFF, error=_named(error))
            outcome = rescue(context, session, error)
        return outcome, command, environment, tmp

    def _record_start(self, life_id: str) -> None:
        """From here on the next guard can find what is about to be started."""
        details = {"started": self.context.now(), "command": redact_command(list(self.context.settings.command))}
        with suppress(OSError, ValueError):
            record = record_ahead(life_id, self._lives, details)
            write_json(self.context.state.life_path, record, durable=False)

    def _on_progress(self) -> None:
        self._policy.handle(Progressed(), self.context.now())
        self._save_policy()
        self.context.note("progress: real work was done")

    def _bury(self, outcome: Outcome, command: list[str], environment: dict[str, str]) -> Closed | None:
        """Write the incident; None when asked to stop, and there was no time to finish."""
        context = self.context
        context.voice.say(_DIED, how=_how(outcome).pick(context.settings.lang))
        box: list[Closed] = []

        taken: list[Decision] = []

        def decide(death: Died) -> Decision:
            if not taken:  # one that was taken without the bundle holds for a bundle that is completed too late
                taken.append(self._decide(outcome.life.id, death))
            return taken[0]

        def work() -> None:
            box.append(close_incident(context, outcome, command=command, environment=environment, decide=decide))

        end, error = self._beside(work, BURY_LIMIT_S)
        if end == "asked":
            context.voice.say(_UNFINISHED)
            return None
        if end == "done" and error is None:
            return box[0]
        reason = _named(error) if error is not None else _LATE.pick(context.settings.lang)
        context.voice.say(_BROKEN, error=reason)
        return without_bundle(outcome, decide, reason)

    def _keep_suspicion(self, outcome: Outcome, command: list[str], environment: dict[str, str]) -> None:
        context = self.context
        box: list[str] = []
        end, error = self._beside(
            lambda: box.append(keep_suspicion(context, outcome, command, environment)), BURY_LIMIT_S
        )
        if end == "done" and error is None:
            context.voice.say(_SUSPECTED, path=box[0])
        else:
            context.voice.say(_BROKEN, error=_named(error) if error is not None else _LATE.pick(context.settings.lang))

    def _decide(self, life_id: str, death: Died) -> Decision:
        """Ask the policy, and keep what it said: a death that was decided is not counted again, not even by the next guard."""
        with self._deciding:
            decision = self._policy.handle(replace(death, life=life_id), self.context.now())
            assert decision is not None
            self._save_policy()
        return decision

    def _beside(
        self, work: Callable[[], None], limit_s: float
    ) -> tuple[Literal["done", "asked", "late"], Exception | None]:
        """Do something slow in a thread, so that a request to stop is heard: how it ended, and the error it ended with.

        `asked`: guard must leave now, or it would not keep to its grace period. `late`: it took longer than `limit_s`.
        """
        context = self.context
        failure: list[Exception] = []

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # whatever goes wrong with the evidence, the engine's service goes on
                failure.append(error)

        thread = threading.Thread(target=guarded, name="lifesign-closing", daemon=True)
        thread.start()
        limit_at_s = context.clock() + limit_s
        while thread.is_alive():
            self._listen(0.2)
            asked_s = context.stop_asked_s
            if asked_s is not None and (
                context.clock() > asked_s + max(0.0, context.settings.grace_s - BURY_MARGIN_S)
                or context.stop_requests > 1
            ):
                return "asked", None
            if context.clock() > limit_at_s:
                return "late", None
        return "done", failure[0] if failure else None

    def _carefully(self, what: str, step: Callable[[], None]) -> None:
        """A step that may fail without taking guard along."""
        try:
            step()
        except Exception as error:
            self.context.note(f"{what}: {_named(error)}")

    def _prune(self, current: str) -> None:
        settings, state = self.context.settings, self.context.state
        self._carefully(
            "old logs and incidents",
            lambda: state.prune(
                keep_incidents=settings.keep_incidents, keep_log_bytes=settings.log_keep_bytes, current=current
            ),
        )

    def _announce(self, closed: Closed) -> None:
        """Say what died and what follows, everywhere where somebody may listen."""
        if self.context.stop_signal is not None:  # whatever was decided: guard is leaving
            closed = replace(closed, decision=replace(closed.decision, action="stop", why=_ASKED))
        self._carefully("announcement", lambda: announce(self.context, closed))

    def _clear(self, outcome: Outcome, tmp: Path | None, *, patient: bool) -> None:
        context = self.context

        def work() -> None:
            address = address_of(context.settings.engine_url) if patient else None
            result = clear(outcome.life, context.helpers, private_tmp=tmp, address=address, wait=self._listen)
            for line in result.removed:
                context.voice.note(f"removed {line}")
            for line in result.in_the_way:
                context.voice.say(_IN_THE_WAY, what=line)

        self._carefully("clearing up", work)

    def _back_off(self, decision: Decision) -> bool:
        """Wait before the next start; False when asked to stop meanwhile."""
        context = self.context
        delay_s = decision.delay_s * context.settings.backoff_scale
        context.voice.say(_AGAIN, seconds=f"{delay_s:.0f}", why=decision.why.pick(context.settings.lang))
        context.board.update(phase="backoff", reason=decision.why.pick(context.settings.lang), restarts=self._lives)
        until_s = context.clock() + delay_s
        while (left_s := until_s - context.clock()) > 0:
            if not self._listen(min(left_s, 1.0)):
                return False
        return context.stop_signal is None

    def _leave(self, closed: Closed, code: int) -> int:
        """No further start: say why, and end (or stay, with --hold)."""
        context, decision = self.context, closed.decision
        lang = context.settings.lang
        text = _HELD if decision.action == "hold" else _NOT_AGAIN
        context.voice.say(text, why=decision.why.pick(lang))
        for remedy in closed.report.get("verdict", {}).get("remedies", [])[:3]:
            knob = " ".join(str(remedy.get(key) or "") for key in ("knob", "value")).strip()
            context.voice.say(_REMEDY, what=": ".join(part for part in (str(remedy.get("title", "")), knob) if part))
        context.notifier.send("held", decision.why.pick(lang), incident=closed.id, action=decision.action)
        if not context.settings.hold:
            context.board.update(phase="ended", ready=False, reason=decision.why.pick(lang))
            return code
        context.board.update(phase="held", ready=False, view="HEALTHY", engine="HELD", reason=decision.why.pick(lang))
        context.voice.say(_STAYING)
        while self._listen(3600.0):
            pass
        return code

    def _listen(self, seconds: float) -> bool:
        """Wait, hearing signals; False once asked to stop."""
        context = self.context
        readable, _, _ = select.select([context.inbox.fd], [], [], max(0.0, seconds))
        if readable:
            for number in context.inbox.read():
                if number in signals.STOPPING:
                    context.ask_to_stop(number)
            _reap_strangers(context.helpers)
        return context.stop_signal is None

    def _serve_pages(self) -> None:
        context = self.context
        if context.settings.http is None:
            return
        host, port = context.settings.http
        try:
            sock = listen(host, port)
        except (OSError, UnicodeError, TypeError) as error:  # the last two: a name that can't be one of a host
            text = explain_bind(host, port, error if isinstance(error, OSError) else OSError(str(error)))
            context.voice.say(T(text, text))
            return
        bound = sock.getsockname()[:2]
        self._http = HttpThread(context.board, sock)
        self._http.start()
        context.board.update(http=f"{bound[0]}:{bound[1]}")
        context.voice.say(_PAGES, where=f"http://{bound[0]}:{bound[1]}")

    def _load_policy(self) -> RestartPolicy:
        settings = self.context.settings
        raw = read_json(self.context.state.policy_path)
        memory = None
        # Another command is another engine: what was learned of the last one, and its spent budget, don't count.
        if raw is not None and raw.get("command") == self._command_mark():
            try:
                memory = Memory.load(raw)
            except (KeyError, TypeError, ValueError):
                self.context.note("policy.json can't be read; the restart budget starts anew")
        return RestartPolicy(
            self._draw, memory=memory, max_restarts=settings.max_restarts, apply_remedies=settings.apply_remedies
        )

    def _save_policy(self) -> None:
        with suppress(OSError, ValueError):
            value = {"command": self._command_mark(), **self._policy.memory.export()}
            write_json(self.context.state.policy_path, value)

    def _command_mark(self) -> str:
        """Recognises the command line without writing down what may be secret in it."""
        return hashlib.sha256("\0".join(self.context.settings.command).encode("utf-8", "replace")).hexdigest()[:16]


def _reap_strangers(helpers: Helpers) -> None:
    """As PID 1, take the status of orphans that come to us between two lives."""
    with helpers.lock:
        for child in procs.ended_children():
            if not helpers.owns(child):
                with suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _how(outcome: Outcome) -> T:
    """How the server process ended, as the outside shows it."""
    if outcome.status is None:
        return T(outcome.trigger, outcome.trigger)
    code, name = procs.describe_status(outcome.status)
    return T(name, name) if name is not None else T(f"exit code {code}", f"退出码 {code}")


_DIED = T("the engine died ({how}); saving the evidence", "引擎死亡（{how}）；正在保存现场")
_FINISHED = T(
    "the command ended by itself with code 0 after {seconds} s without ever being an engine; nothing to guard",
    "命令运行 {seconds} 秒后自行结束（退出码 0），期间没有出现过引擎；没有需要守护的东西",
)
_AGAIN = T("starting again in {seconds} s: {why}", "{seconds} 秒后重新启动：{why}")
_HELD = T("HELD, no further start: {why}", "HELD，不再启动：{why}")
_NOT_AGAIN = T("not started again: {why}", "不再启动：{why}")
_REMEDY = T("  try: {what}", "  可以试：{what}")
_STAYING = T("staying without an engine until stopped (--hold)", "没有引擎，留守到被停止为止（--hold）")
_IN_THE_WAY = T("still in the way: {what}", "仍未清除：{what}")
_UNFINISHED = T(
    "asked to stop while saving the evidence: the next guard completes the bundle",
    "保存现场时被要求停止：下一个 guard 会把事故包补完",
)
_LATE = T("it takes too long", "耗时太久")
_BROKE_OFF = T(
    "an error in guard itself ({error}): ending what runs of the engine; please report it",
    "guard 自身出错（{error}）：正在结束仍在运行的引擎进程；请反馈这个问题",
)
_SUSPECTED = T(
    "the engine was suspected of a hang when it was stopped; what was seen is kept: {path}",
    "停止时引擎正被怀疑卡死；现场已保存：{path}",
)
_ASKED = T("guard was asked to stop", "guard 收到了停止请求")
_BROKEN = T("the incident could not be written ({error})", "事故包写不出来（{error}）")
_PAGES = T("pages on {where}: /livez /readyz /metrics /state", "页面在 {where}：/livez /readyz /metrics /state")
