"""Hangs that no line names: the log falls silent, or counts on without a token, or waits for a core that never speaks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lifesign.causes.model import SYMPTOM, Finding
from lifesign.facts.model import Event, Life

STALL = "No available shared memory broadcast block found"
_NO_WORK = ("idle", "shutdown-step", "uvicorn-shutdown", "uvicorn-done", "worker-shutdown", "worker-orphaned")
AWAITED = "core engine proc(s) to start"
_SILENCE_S = 60
"""The front end repeats itself every ten seconds; a core that is well speaks long before a minute is over."""


def never_spoke(life: Life) -> Iterable[Finding]:
    """The last line of a wait of at least a minute for a core that wrote nothing at all, where no error explains the end."""
    first = last = None
    for event in life.events:
        if event.kind == "death" and event.name == "init-failed":
            break
        if event.kind in ("exception", "wrapper", "death", "native") or event.process.role in ("core", "worker"):
            return
        if AWAITED in event.text:
            first, last = first or event, event
    else:
        return
    if first is None or last is None or first.time_s is None or last.time_s is None:
        return
    if last.time_s - first.time_s >= _SILENCE_S:
        yield Finding("timeout-hang", "startup-handshake", last, certainty="possible", strength=SYMPTOM)


_WAITED_ON_S = 120.0


def silent_end(told: list[Event], stop: Event | None) -> Event | None:
    """The line on which a hang shows: the first ring notice after the last sign of work; None when the log goes on.

    When somebody ended it (`stop`), two notices are asked for, or two more minutes: one minute of waiting is no hang.
    """
    working = [e.index for e in told if e.kind in ("progress", "milestone") and e.name not in _NO_WORK]
    last_work = max(working, default=-1)
    stalls = [event for event in told if STALL in event.text and event.index > last_work]
    if not stalls:
        return None
    if any(e.kind in ("exception", "wrapper", "death", "native") for e in told if e.index > stalls[0].index):
        return None
    if stop is None or len(stalls) > 1:
        return stalls[0]
    if stop.time_s is None or stalls[0].time_s is None:
        return None
    return stalls[0] if stop.time_s - stalls[0].time_s >= _WAITED_ON_S else None


_STALL_S = 180.0
"""So long without a token is no slow step on an accelerator; the prefill of a very long prompt stays below it."""


def stalled(told: list[Event]) -> tuple[Event, float] | None:
    """The first statistics line of a stall that lasts to the log's end, with its length in seconds."""
    first: Event | None = None
    last: Event | None = None
    for event in reversed(told):
        if event.kind == "progress" and event.name != "idle":
            break
        loaded = re.search(r"(?:Running|Waiting): [1-9]\d{0,5} reqs", event.text[:2000])
        if event.name == "idle" and not loaded:
            break
        if event.name == "idle" and event.time_s is not None:
            first, last = event, last or event
    if first is None or last is None or first.time_s is None or last.time_s is None:
        return None
    span = last.time_s - first.time_s
    return (first, span) if span >= _STALL_S else None
