"""Did the engine live on after an error? Then that error can't be what killed it."""

from __future__ import annotations

from lifesign.facts.model import Event, Life, Phase

_ALIVE_EVENTS = 3
_ALIVE_SECONDS = 2.0
_RECOVERY_SECONDS = 3.0


def lived_on(event: Event, life: Life) -> bool:
    """Whether the engine went on working after `event`, so that it can't be what killed it.

    Three pieces of work (or one more than two seconds later) count, or reaching readiness after a start-up message. A
    message under a header that says "fatal" never counts as survived.
    """
    if event.weight == "fatal" or event.kind == "death":
        return recovered(event, life)
    later = 0
    for other in life.events[event.index + 1 :]:
        if other.weight in ("quoted", "foreign"):
            continue
        if event.phase is not Phase.SERVING and other.kind == "milestone" and other.name == "ready":
            return True
        if other.kind != "progress" or other.name == "idle":
            continue
        if event.time_s is not None and other.time_s is not None and other.time_s > event.time_s + _ALIVE_SECONDS:
            return True
        later += 1
        if later >= _ALIVE_EVENTS and (event.time_s is None or other.time_s is None):
            return True
    return False


def recovered(event: Event, life: Life) -> bool:
    """Whether work was done well after an error that usually ends an engine (fault tolerance brought it back).

    Requests that were in flight may still be logged as answered within seconds, so more distance is asked for.
    """
    healthy = next((other for other in life.events[event.index + 1 :] if other.has("status -> HEALTHY")), None)
    if healthy is not None and life.progress_index > healthy.index:
        return True
    if event.time_s is None:
        return False
    later = 0
    clock = event.time_s
    for other in life.events[event.index + 1 :]:
        clock = other.time_s if other.time_s is not None else clock
        if other.kind == "progress" and other.name != "idle" and clock > event.time_s + _RECOVERY_SECONDS:
            later += 1
        elif other.kind == "death" and other.name in ("engine-dead", "core-exited", "core-died"):
            return False
    return later >= _ALIVE_EVENTS
