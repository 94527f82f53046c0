"""The turning points of a life, for the reader who asks what happened when."""

from __future__ import annotations

from lifesign.facts.model import Event, Life
from lifesign.report.model import TimelineEntry
from lifesign.report.rank import Ranking
from lifesign.text import Lang, T

MAX_ENTRIES = 24

_NAMES: dict[str, T] = {
    "engine-init": T("engine starts", "引擎启动"),
    "load": T("loading weights", "加载权重"),
    "weights-done": T("weights loaded", "权重加载完成"),
    "kv": T("KV cache sized", "KV cache 已分配"),
    "capture": T("capturing graphs", "捕获 CUDA graph"),
    "captured": T("graphs captured", "graph 捕获完成"),
    "ready": T("ready", "就绪"),
    "worker-died": T("worker died", "worker 死亡"),
    "core-died": T("engine core died", "EngineCore 死亡"),
    "core-exited": T("engine core exited", "EngineCore 退出"),
    "init-failed": T("initialisation failed", "初始化失败"),
    "engine-dead": T("engine dead", "引擎已死"),
    "core-signal": T("engine core got a signal", "EngineCore 收到信号"),
    "api-shutdown": T("shutdown requested", "收到停止请求"),
    "ctrl-c": T("Ctrl-C", "Ctrl-C"),
}
_PROGRESS = T("last work done", "最后一次正常工作")
_ROOT = T("root cause", "根因")


def timeline(life: Life, ranking: Ranking, lang: Lang) -> list[TimelineEntry]:
    """At most MAX_ENTRIES turning points in order: milestones, last progress, the root, deaths, signals."""
    root = ranking.verdict.event
    seen: set[tuple[str, str]] = set()
    entries: list[TimelineEntry] = []
    for event in life.events:
        if event.weight in ("quoted", "foreign"):
            continue
        text = _label(
            event, life, root is event and ranking.verdict.cause not in ("not-a-crash", "insufficient-log"), lang
        )
        if text is None:
            continue
        key = (text, event.process.name if event.kind == "death" else "")
        if key in seen:
            continue
        seen.add(key)
        who = event.process.name if root is event or event.kind in ("death", "signal") else ""
        entries.append(TimelineEntry(event.line, event.stamp, who, text, event.path))
    if len(entries) <= MAX_ENTRIES:
        return entries
    return entries[: MAX_ENTRIES // 2] + entries[-MAX_ENTRIES // 2 :]


def _label(event: Event, life: Life, is_root: bool, lang: Lang) -> str | None:
    if is_root:
        return f"{_ROOT.pick(lang)}: {event.text.splitlines()[0][:100] if event.text else ''}"
    if event.index == life.progress_index:
        return _PROGRESS.pick(lang)
    if event.kind in ("milestone", "death", "signal") and event.name in _NAMES:
        return _NAMES[event.name].pick(lang)
    return None
