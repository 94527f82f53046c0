"""Start-ups that failed because the awaited engine core never said a word (the start-up handshake of timeout-hang)."""

from __future__ import annotations

from collections.abc import Iterable

from lifesign.causes.model import SYMPTOM, Finding
from lifesign.facts.model import Life

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
