"""Tells of a death everywhere where somebody may listen: stderr, the pages, webhooks, Kubernetes' termination message."""

from __future__ import annotations

from lifesign.guard.closing import Closed
from lifesign.guard.context import Context
from lifesign.guard.notify import termination_path, write_termination_message
from lifesign.text import T


def announce(context: Context, closed: Closed) -> None:
    """Say what died, and what was decided."""
    ruling, decision = closed.ruling, closed.decision
    lang = context.settings.lang
    name = f"{ruling.cause}/{ruling.subtype}" if ruling.subtype else ruling.cause
    context.board.metrics.deaths.labels(ruling.cause, ruling.subtype).inc()
    context.voice.say(_VERDICT, name=name, title=ruling.title.pick(lang))
    for line in closed.left_out[:5]:
        context.voice.note(f"left out: {line}")
    context.voice.say(_KEPT, path=closed.path)
    if decision.poison:
        context.board.metrics.poison.inc(len(decision.poison))
        context.voice.say(_POISON, requests=", ".join(decision.poison[:3]))
    if decision.undo is not None:
        context.voice.say(_UNDONE, change=decision.undo.show())
    summary = {
        "id": closed.id,
        "time": context.now(),
        "cause": ruling.cause,
        "subtype": ruling.subtype,
        "title": ruling.title.pick(lang),
        "action": decision.action,
        "why": decision.why.pick(lang),
        "poison": list(decision.poison),
        "path": closed.path,
    }
    context.board.add_incident(summary)
    context.notifier.send("death", ruling.title.pick(lang), incident=closed.id, cause=name, action=decision.action)
    _write_termination(context, closed, name)


def _write_termination(context: Context, closed: Closed, name: str) -> None:
    path = termination_path(context.settings.termination_message)
    if path is None:
        return
    lang, ruling, decision = context.settings.lang, closed.ruling, closed.decision
    remedies = [str(one.get("title", "")) for one in closed.report.get("verdict", {}).get("remedies", [])[:3]]
    text = f"{name}: {ruling.title.pick(lang)}\n{ruling.why.pick(lang)}\n{decision.action}: {decision.why.pick(lang)}\n"
    text += "".join(f"- {title}\n" for title in remedies) + f"incident {closed.id}\n"
    if not write_termination_message(path, text):
        context.note(f"{path}: the termination message could not be written")


_VERDICT = T("cause: {name}: {title}", "死因：{name}：{title}")
_KEPT = T("incident: {path}", "事故包：{path}")
_POISON = T(
    "in flight in two deaths, keep it away from every replica: {requests}",
    "两次死亡时都在执行的请求，别再发给任何副本：{requests}",
)
_UNDONE = T("{change} did not help and is undone", "{change} 没有用，已撤销")
