"""Errors that no cause knows: which of them ended a process, where it was raised, and a fingerprint to search by."""

from __future__ import annotations

import re

from lifesign.causes import unclassified
from lifesign.causes.model import SYMPTOM, Finding
from lifesign.facts.model import Event, Life
from lifesign.logs.model import Frame
from lifesign.report.survival import lived_on

UNCLASSIFIED = "unclassified"


def error_of_the_program_around(life: Life) -> Finding | None:
    """An exception of the script that runs the engine, after the engine started and with no work after it."""
    started = next((event.index for event in life.events if event.kind == "milestone"), None)
    if started is None:
        return None
    for event in life.events[started:]:
        own = event.kind == "exception" and event.weight == "foreign" and not event.process.source
        if own and life.progress_index < event.index:
            return unknown_error(event)
    return None


def unknown_error(event: Event) -> Finding:
    finding = Finding(UNCLASSIFIED, "unknown-exception", event, certainty="possible", strength=SYMPTOM)
    frame = _vllm_frame(event)
    finding.values = {
        "exception": event.text.split("\n")[0][:300],
        "frame": f"{_short_path(frame.file)}:{frame.line} in {frame.func}" if frame else "",
        "fingerprint": fingerprint(event),
    }
    finding.remedies = unclassified.remedies_for(finding.values["exception"], frame.func if frame else "")
    return finding


def unclassified_error(life: Life) -> Finding | None:
    """The first exception that ended a process and that no cause knows."""
    died = next((e.index for e in life.events if e.kind == "death" and e.name in _REPORTED), len(life.events))
    for event in life.events:
        if (
            event.kind not in ("exception", "wrapper")
            or _says_only_where(event)
            or (event.index > died and event.process.role not in ("core", "worker"))
            or (event.kind == "wrapper" and _EMPTY_WRAPPER.fullmatch(event.text.strip()) is not None)
            or event.weight
            in (
                "request",
                "teardown",
                "advice",
                "quoted",
                "foreign",
            )
        ):
            continue
        if not event.text.strip() or lived_on(event, life):
            continue
        return unknown_error(event)
    return None


_REPORTED = ("core-died", "core-exited", "worker-died")
"""After these what the front end stumbles over is a consequence."""
_EMPTY_WRAPPER = re.compile(r"[\w.]{1,80}(?:Error|Exception)?:?")
"""A wrapper that repeats an exception without text: the worker's own traceback, which isn't here, had the line that failed."""

# Ray's words for "the process is gone": a report of a death, never its cause.
LOST_ACTOR = (
    "ActorDiedError",
    "RayActorError",
    "ActorUnavailableError",
    "WorkerCrashedError",
    "LocalRayletDiedError",
    "OwnerDiedError",
)


_TASK = re.compile(r"(?:ray\.exceptions\.)?RayTaskError: ray::[^\n]{1,400}")


def _says_only_where(event: Event) -> bool:
    """Ray's report of a lost process, or the head of a task's error, which names the task; what it met stands below it."""
    return event.name in LOST_ACTOR or _TASK.fullmatch(event.text.strip()) is not None


def _vllm_frame(event: Event) -> Frame | None:
    """The innermost frame inside the engine, else the innermost of all."""
    if event.exc is None:
        return None
    frames = [frame for frame in event.exc.frames if "vllm" in frame.file or "sglang" in frame.file] or event.exc.frames
    return frames[-1] if frames else None


def _short_path(path: str) -> str:
    path = path.replace("\\", "/")
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in path:
            return path.rpartition(marker)[2]
    return "/".join(path.split("/")[-3:])


def fingerprint(event: Event) -> str:
    """A stable name of an exception: type, text with its numbers and addresses taken out, and the functions it passed.

    Line numbers stay out: they move with every release.
    """
    import hashlib  # loads OpenSSL, which most reports don't need

    text = re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?", "N", event.text[:400])
    funcs = [f"{_short_path(frame.file)}:{frame.func}" for frame in (event.exc.frames if event.exc else [])[-6:]]
    return hashlib.sha256("\n".join([text, *funcs]).encode()).hexdigest()[:12]
