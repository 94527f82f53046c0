"""How `lifesign watch` shows what it sees: a live view on a terminal, plain lines elsewhere, JSON lines on request.

Nothing that comes from the engine (process names, error texts) reaches the screen unescaped: it is printable text already
when it arrives here, and the live view uses rich's `Text`, which knows no markup.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lifesign.guard.detector.events import Changed, Command, Degraded, Kill, to_dict
from lifesign.guard.detector.evidence import Activity, ProcessSignals, classify
from lifesign.guard.detector.policy import StepSize
from lifesign.guard.detector.replay import Replayed
from lifesign.guard.detector.states import VIEW, State
from lifesign.guard.detector.words import ACTIVITIES, FINDINGS
from lifesign.guard.probes.observer import Look
from lifesign.guard.probes.tree import is_foreign
from lifesign.text import Lang, T

if TYPE_CHECKING:
    from rich.live import Live

    from lifesign.cli.watch import Session

EVENTS_KEPT = 12
NAMED_AT_MOST = 4
IDLERS = (Activity.COMPUTING, Activity.STARVED, Activity.PAGING)
COLOURS = {"HEALTHY": "green", "UNHEALTHY": "yellow", "DEAD": "red"}


def headline(session: Session, look: Look, lang: Lang) -> str:
    """One line: how the engine is, what it does, how long it may take."""
    detector = session.detector
    parts: list[T] = []
    beacon = look.beacon
    if beacon is not None:
        size = StepSize(beacon.step_sequences, beacon.step_tokens)
        age_s = beacon.step_age_s(time.monotonic_ns())
        cost = detector.cost
        shown_s = age_s if age_s > beacon.last_step_s else beacon.last_step_s
        if age_s <= beacon.last_step_s:
            size = StepSize(beacon.last_sequences, beacon.last_tokens)
        limit_s = beacon.limit_s or cost.suspect_limit_s(size)
        expected_s = beacon.predicted_s if age_s > beacon.last_step_s else 0.0
        expected_s = expected_s or (cost.predicted_s(size) if cost.learned else 0.0)
        expected = f"{expected_s:.2f}" if expected_s else "?"
        parts.append(
            T(
                "step {n} · {s} s (expected {e}) · {q} sequences · limit now {l} s",
                "第 {n} 步 · {s} 秒（预期 {e}）· {q} 个序列 · 当前上限 {l} 秒",
            ).fill(n=f"{beacon.steps_started:,}", s=f"{shown_s:.2f}", e=expected, q=size.sequences, l=f"{limit_s:.0f}")
        )
    page = look.metrics
    if page is not None:
        running, waiting = page.values.get("running", 0.0), page.values.get("waiting", 0.0)
        parts.append(
            T("{r} running, {w} waiting", "{r} 个在跑，{w} 个排队").fill(r=f"{running:.0f}", w=f"{waiting:.0f}")
        )
    if detector.clock.wall_s >= 3.0:
        parts.append(T("no progress for {s} s", "{s} 秒没有进展").fill(s=f"{detector.clock.wall_s:.0f}"))
    if detector.slowness.on:
        parts.append(
            T("DEGRADED: {r} times slower than usual", "变慢（DEGRADED）：是平时的 {r} 倍").fill(
                r=f"{detector.slowness.ratio:.1f}"
            )
        )
    if not session.observer.sees_progress:
        parts.append(T("progress can't be seen, only stops and exits", "看不到进展，只能发现暂停和退出"))
    elif detector.state is State.IDLE:
        parts.append(T("idle", "空闲"))
    return f"{detector.view}  " + " · ".join(part.pick(lang) for part in parts)


def process_words(session: Session, look: Look, lang: Lang) -> list[str]:
    """One phrase per process: who, doing what, how many threads want to run."""
    if session.tree is None:
        return []
    phrases = []
    for one, activity in activities(session, look):
        phrase = f"{session.tree.name_of(one.pid)}  {ACTIVITIES[activity].pick(lang)}"
        if one.window_s > 0:
            phrase += T("  {d} threads runnable", "  {d} 个线程可运行").fill(d=f"{one.demand:.2f}").pick(lang)
        phrases.append(phrase)
    return phrases


def activities(session: Session, look: Look) -> list[tuple[ProcessSignals, Activity]]:
    """Each process with what it does: states as of now, counters as of the last full look."""
    counters = {one.pid: one for one in session.observer.full}
    learned = session.detector.process_channel.learned
    out = []
    for one in look.processes:
        if one.role == "compiler":
            continue
        now = one if one.window_s > 0 or one.state in ("T", "t", "Z", "X") else counters.get(one.pid, one)
        out.append((now, classify(now, learned.get(one.pid, 0.0))))
    return out


def culprits(session: Session, look: Look | None, lang: Lang) -> str:
    """Who stands out, with the others that wait for it."""
    if look is None or session.tree is None:
        return ""
    named: list[tuple[int, str, Activity]] = []
    for one in look.processes:
        if one.role == "compiler":
            continue
        activity = session.detector.activities.get(one.pid, Activity.UNSEEN)
        if one.state in ("Z", "X"):
            activity = Activity.EXITED
        elif one.state in ("T", "t") or one.frozen:
            activity = Activity.STOPPED
        named.append((one.pid, session.tree.name_of(one.pid), activity))
    gone = [one for one in named if one[2] in (Activity.EXITED, Activity.STOPPED)]
    idle = [one for one in named if one not in gone and one[2] not in IDLERS]
    first = gone or idle
    text = ", ".join(
        T("{who} (pid {pid}): {what}", "{who}（pid {pid}）：{what}")
        .fill(who=who, pid=pid, what=ACTIVITIES[what].pick(lang))
        .pick(lang)
        for pid, who, what in first[:NAMED_AT_MOST]
    )
    others = [who for _, who, what in named if what not in (Activity.EXITED, Activity.STOPPED, *IDLERS)]
    if gone and others:
        wait = (
            T(", while {others} waits", "，{others} 在等它")
            if len(others) == 1
            else T(", while {others} wait", "，{others} 在等它")
        )
        text += wait.fill(others=", ".join(others)[:120]).pick(lang)
    return text


def event_words(session: Session, change: Changed, look: Look | None, lang: Lang) -> str:
    """One line for a change of state."""
    word = FINDINGS[change.finding].pick(lang)
    parts = [word]
    beacon = look.beacon if look is not None else None
    if change.new in (State.SUSPECT, State.SLOW, State.DEAD, State.STOPPED, State.BLIND) and change.wall_s >= 1.0:
        step = (
            T("step {n}", "第 {n} 步").fill(n=f"{beacon.steps_started:,}")
            if beacon is not None and beacon.stepping
            else T("no progress", "没有进展")
        )
        if change.limit_s > 0:
            how = T("{step} for {s} s (limit {l} s)", "{step}已 {s} 秒（上限 {l} 秒）").fill(
                step=step.pick(lang), s=f"{change.wall_s:.0f}", l=f"{change.limit_s:.0f}"
            )
        else:
            how = T("{step} for {s} s", "{step}已 {s} 秒").fill(step=step.pick(lang), s=f"{change.wall_s:.0f}")
        parts.append(how.pick(lang))
    who = culprits(session, look, lang) if VIEW[change.new] != "HEALTHY" else ""
    if who:
        parts.append(who)
    return T("; ", "；").pick(lang).join(parts)


def sees(session: Session) -> list[T]:
    """What can be seen of this engine, and what can't and why."""
    tree, observer = session.tree, session.observer
    out: list[T] = []
    if tree is None:
        out.append(
            T(
                "processes: not visible (another machine, or another user's); only the metrics page can be watched",
                "进程：不可见（在另一台机器上，或属于其他用户），只能看指标页",
            )
        )
    else:
        names = ", ".join(f"{one.name} {one.pid}" for one in tree.members if one.role in ("server", "engine", "worker"))
        out.append(T("processes: {names}", "进程：{names}").fill(names=names[:300]))
        if len(tree.cores) > 1:
            out.append(
                T("several EngineCores: only the first one's beacon is read", "有多个 EngineCore：只读第一个的信标")
            )
        if observer.beacon is not None:
            out.append(T("beacon: steps and their sizes", "信标：可见每一步及其大小"))
        elif tree.beacon is not None:
            out.append(
                T(
                    "beacon: there is one, but it can't be read (another user's?)",
                    "信标：存在，但无法读取（属于其他用户？）",
                )
            )
        elif is_foreign(tree):
            text = "beacon: can't be looked for: the engine is another user's (run this as that user, or as root)"
            out.append(T(text, "信标：无权查看：引擎属于其他用户（请以该用户或 root 身份运行）"))
        else:
            text = "beacon: none (start the engine with LIFESIGN_PATIENCE=1 to get one); sizes of steps are unknown"
            out.append(T(text, "信标：没有（用 LIFESIGN_PATIENCE=1 启动引擎即可获得）；看不到每一步的大小"))
        if not observer.process.waits_known:
            out.append(
                T(
                    "no schedstat: the wait for a processor can't be seen, and a starved process looks blocked",
                    "没有 schedstat：看不到等待 CPU 的时间，抢不到 CPU 的进程会像是被阻塞",
                )
            )
        if not observer.stacks.available:
            out.append(
                T(
                    "no py-spy: stacks can't be compared (pip install lifesign[stacks])",
                    "没有 py-spy：无法比较调用栈（pip install lifesign[stacks]）",
                )
            )
    out += _sees_page(session) + _sees_gpu(session)
    return out


def _sees_page(session: Session) -> list[T]:
    if session.endpoint is None and session.tree is not None and is_foreign(session.tree):
        text = "metrics page: its port can't be seen: the engine is another user's (give it with --metrics URL)"
        return [T(text, "指标页：看不到端口：引擎属于其他用户（可用 --metrics URL 指定）")]
    if session.endpoint is None:
        return [
            T("metrics page: none found (give it with --metrics URL)", "指标页：没有找到（可用 --metrics URL 指定）")
        ]
    from lifesign.guard.probes.metrics import MOVING, WANTED

    page = session.observer.metrics.last if session.observer.metrics is not None else None
    out = [T("metrics page: {url}", "指标页：{url}").fill(url=session.endpoint.url)]
    if page is not None and page.missing:
        out.append(
            T(
                "the page lacks {names}: another release of vLLM; the rest is watched",
                "指标页缺少 {names}：是另一个版本的 vLLM；其余指标照常观察",
            ).fill(names=", ".join(page.missing))
        )
        if not any(name in page.values for name in MOVING):
            counters = ", ".join(WANTED[name][0] for name in MOVING)
            out.append(
                T(
                    "none of its counters is known ({names}): progress can't be seen there",
                    "其中没有已知的计数器（{names}），看不到进展",
                ).fill(names=counters)
            )
    return out


def _sees_gpu(session: Session) -> list[T]:
    if session.tree is None or session.detector.life.backend != "gpu":
        return []
    gpu = session.observer.gpu
    if gpu is not None and gpu.available:
        return [T("GPU: power and memory activity through NVML", "GPU：通过 NVML 读取功耗和显存活动")]
    reason = gpu.reason if gpu is not None else ""
    return [
        T(
            "GPU: not visible ({reason}); a stuck kernel is only suspected until the ceiling of the unknown",
            "GPU：不可见（{reason}）；卡死的内核要等到未知情形的上限才会判定",
        ).fill(reason=reason)
    ]


class Reporter:
    """Plain lines on standard output; the notes about what is seen go to standard error."""

    def __init__(self, lang: Lang, every_s: float) -> None:
        self.lang = lang
        self.every_s = every_s
        self._status_s = float("-inf")

    def begin(self, session: Session) -> None:
        """Watching begins."""
        time.sleep(0.3 if session.endpoint is not None else 0.0)  # the first page is on its way
        for line in sees(session):
            typer.echo(f"  {line.pick(self.lang)}", err=True)

    def status(self, session: Session, look: Look) -> None:
        """After every look."""
        now_s = time.monotonic()
        if now_s - self._status_s < self.every_s:
            return
        self._status_s = now_s
        self.line(" " + headline(session, look, self.lang))
        words = process_words(session, look, self.lang)
        if words:
            self.line(" " + "     ".join(words[:8]))

    def changed(self, session: Session, change: Changed, look: Look | None) -> None:
        """The state changed."""
        self.line(
            f" ─ {time.strftime('%H:%M:%S')} {change.new.value:<8} {event_words(session, change, look, self.lang)}"
        )

    def other(self, session: Session, command: Command) -> None:
        """A command that isn't a change of state."""
        if isinstance(command, Degraded):
            text = (
                T("slower than usual: {r} times", "比平时慢：{r} 倍")
                if command.on
                else T("as fast as usual again", "恢复到平时的速度")
            )
            self.line(f" ─ {time.strftime('%H:%M:%S')} DEGRADED {text.fill(r=f'{command.ratio:.1f}').pick(self.lang)}")

    def saved(self, path: Path) -> None:
        """Evidence was kept."""
        self.line(
            T("   /proc and stacks saved: {path}", "   已保存 /proc 与调用栈：{path}").fill(path=path).pick(self.lang)
        )

    def found_page(self, url: str) -> None:
        """The metrics page came up."""
        typer.echo(f"  {T('metrics page: {url}', '指标页：{url}').fill(url=url).pick(self.lang)}", err=True)

    def cannot_ask(self) -> None:
        """The server refuses the canary."""
        text = T(
            "the server refuses a one-token request: no canary is sent any more",
            "服务器拒绝单 token 请求：不再发送探测请求",
        )
        typer.echo(f"  {text.pick(self.lang)}", err=True)

    def came_back(self, session: Session) -> None:
        """Progress after DEAD."""
        self.line(
            f" ─ {time.strftime('%H:%M:%S')} "
            + T("it makes progress again: DEAD was wrong", "又有进展了：刚才的 DEAD 判断有误").pick(self.lang)
        )

    def replayed(self, told: Replayed) -> int:
        """One line of a recording; gives 1 for a death."""
        died = 0
        for command in told.commands:
            if isinstance(command, Changed):
                word = FINDINGS[command.finding].pick(self.lang)
                who = f": {', '.join(command.who)}" if command.who else ""
                self.line(f" ─ {told.now_s:.1f} s {command.new.value:<8} {word}{who}")
            died |= isinstance(command, Kill)
        return int(died)

    def end(self, session: Session) -> None:
        """Watching is over."""

    def line(self, text: str) -> None:
        """One line of the result."""
        typer.echo(text)
        sys.stdout.flush()


class JsonReporter(Reporter):
    """One JSON object per line."""

    def begin(self, session: Session) -> None:
        time.sleep(0.3 if session.endpoint is not None else 0.0)
        tree = session.tree
        members = [] if tree is None else [{"pid": one.pid, "role": one.role, "name": one.name} for one in tree.members]
        self.put("watching", processes=members, notes=[line.pick(self.lang) for line in sees(session)])

    def status(self, session: Session, look: Look) -> None:
        now_s = time.monotonic()
        if now_s - self._status_s < self.every_s:
            return
        self._status_s = now_s
        self.put("status", **snapshot(session, look))

    def changed(self, session: Session, change: Changed, look: Look | None) -> None:
        self.put(
            "changed", **to_dict(change), view=VIEW[change.new], text=event_words(session, change, look, self.lang)
        )

    def other(self, session: Session, command: Command) -> None:
        if isinstance(command, Degraded):
            self.put("degraded", on=command.on, ratio=round(command.ratio, 2))

    def saved(self, path: Path) -> None:
        self.put("saved", path=str(path))

    def came_back(self, session: Session) -> None:
        self.put("came_back")

    def replayed(self, told: Replayed) -> int:
        died = 0
        for command in told.commands:
            self.put("replayed", t=told.now_s, line=told.line, same=told.same, command=to_dict(command))
            died |= isinstance(command, Kill)
        return int(died)

    def put(self, event: str, **values: Any) -> None:
        """One event."""
        self.line(json.dumps({"event": event, "time": round(time.time(), 3), **values}, ensure_ascii=False))


def snapshot(session: Session, look: Look) -> dict[str, Any]:
    """The state in numbers."""
    detector, beacon, page = session.detector, look.beacon, look.metrics
    return {
        "state": detector.state.value,
        "view": detector.view,
        "wall_s": round(detector.clock.wall_s, 2),
        "own_s": round(detector.clock.own_s, 2),
        "limit_s": round(detector.limit_s, 2),
        "score": round(detector.score.value, 2),
        "degraded": detector.slowness.on,
        "steps": beacon.steps_done if beacon is not None else None,
        "step_s": round(beacon.last_step_s, 4) if beacon is not None else None,
        "metrics": page.values if page is not None else None,
        "processes": [
            {
                "pid": one.pid,
                "role": one.role,
                "state": one.state,
                "activity": activity.value,
                "demand": round(one.demand, 2),
            }
            for one, activity in activities(session, look)
        ],
    }


class LiveReporter(Reporter):
    """A view that is drawn in place, the last events below it."""

    def __init__(self, lang: Lang, every_s: float) -> None:
        super().__init__(lang, every_s)
        self._events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self._live: Live | None = None

    def begin(self, session: Session) -> None:
        from rich.live import Live

        super().begin(session)
        self._live = Live(refresh_per_second=2, transient=False)
        self._live.start()

    def status(self, session: Session, look: Look) -> None:
        from rich.console import Group
        from rich.text import Text

        if self._live is None:
            return
        view = session.detector.view
        head = Text(" " + headline(session, look, self.lang))
        head.stylize(f"bold {COLOURS[view]}", 1, 1 + len(view))
        rows = [head]
        words = process_words(session, look, self.lang)
        rows += [Text(" " + "     ".join(words[at : at + 2])) for at in range(0, min(len(words), 16), 2)]
        rows += [Text(line, style="dim" if "OK" in line else "") for line in self._events]
        self._live.update(Group(*rows))

    def end(self, session: Session) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, text: str) -> None:
        if self._live is None:
            super().line(text)
        else:
            self._events.append(text)


def make_reporter(as_json: bool, lang: Lang, every_s: float) -> Reporter:
    """The reporter for this output: JSON if asked for, live on a terminal, else plain lines."""
    if as_json:
        return JsonReporter(lang, every_s)
    return LiveReporter(lang, every_s) if sys.stdout.isatty() else Reporter(lang, every_s)
