"""Chooses the verdict of one life: which finding is the root, which only confirm it or follow from it.

The laws (DESIGN 1.4): the earliest decisive line over all processes wins; a finding counts only if the engine did not
live on after it; consequences, clean-up, advice and users' text never win; when only consequences are left, the
honest answer is that the log can't say.
"""

from __future__ import annotations

import re

import msgspec

from lifesign.causes.model import SYMPTOM, TRACE, Cause, CauseRole, Finding
from lifesign.causes.not_a_crash import name_the_error
from lifesign.facts.events import exit_code
from lifesign.facts.model import Event, Life, Phase
from lifesign.report.survival import lived_on, recovered
from lifesign.report.unknown import LOST_ACTOR, error_of_the_program_around, unclassified_error

INSUFFICIENT, NOT_A_CRASH = "insufficient-log", "not-a-crash"
NO_ENGINE = (INSUFFICIENT, "empty")
"""Cause and subtype of a text in which no engine speaks."""

_KERNEL_SLACK_S = 600.0
_ZONE_SLACK_S = 120.0


class Ranking(msgspec.Struct):
    """The verdict's finding, all other findings with their role in this death, and the events that only followed."""

    verdict: Finding
    others: list[Finding] = msgspec.field(default_factory=list)
    cascade: list[Event] = msgspec.field(default_factory=list)


def rank(life: Life, causes: tuple[Cause, ...], notes: list[str] | None = None) -> Ranking:
    """The ranking of one life. A cause whose own code fails is left out, and `notes` gets a sentence: the others still count."""
    findings: list[Finding] = []
    for cause in causes:
        try:
            findings.extend(cause.findings(life))
        except Exception as error:
            if notes is None:
                raise
            note = f"the cause {cause.slug} could not be judged ({type(error).__name__}: {error}): please report this"
            if note not in notes:
                notes.append(note)
    candidates = [finding for finding in findings if _can_be_root(finding, life)]
    verdict = _choose(candidates, life)
    ranking = Ranking(verdict)
    for finding in findings:
        if finding is not verdict:
            finding.role = _role(finding, verdict, life)
            ranking.others.append(finding)
    ranking.others.sort(key=lambda finding: finding.event.index)
    ranking.cascade = [event for event in life.events if event.kind == "death" and event is not verdict.event]
    return ranking


def _is_of_this_life(event: Event, life: Life) -> bool:
    """Whether a kernel line belongs to this engine: by its time, and by the process that it names."""
    named = re.search(
        r"name=([^\s,]{1,40})|task=([^\s,]{1,40})|(?:Killed|reaped) process \d+ \(([^)]{1,40})\)", event.text
    )
    if named is not None:
        who = (named[1] or named[2] or named[3]).lower()
        if not any(
            part in who
            for part in ("vllm", "python", "pt_main", "ray", "sglang", "worker", "engine", "uvicorn", "api", "unknown")
        ):
            return False
    if event.time_s is None:
        return True
    times = [other.time_s for other in life.events if other.time_s is not None and other.kind != "kernel"]
    if not times:
        return True
    if min(times) - _KERNEL_SLACK_S <= event.time_s <= max(times) + _KERNEL_SLACK_S:
        return True
    # Another time zone: whole half hours away from the very minute of the death.
    died = next(
        (other.time_s for other in life.events if other.ends and other.time_s is not None and other.kind != "kernel"),
        None,
    )
    if died is None:
        return False
    apart = abs(event.time_s - died)
    return apart <= 14 * 3600 + _ZONE_SLACK_S and min(apart % 1800, 1800 - apart % 1800) <= _ZONE_SLACK_S


_WORKED_S = 120.0


def _worked_after(event: Event, life: Life) -> bool:
    """Whether the engine still worked minutes after a kernel line, by the clock: such lines often stand below the log.

    A distance to the death of whole half hours (none included) may be another time zone, and then tells nothing.
    """
    if event.time_s is None:
        return False
    died = next((other.time_s for other in life.events if other.ends and other.kind != "kernel"), None)
    if died is not None:
        apart = abs(event.time_s - died)
        if min(apart % 1800, 1800 - apart % 1800) <= _ZONE_SLACK_S:
            return False
    worked = (other.time_s for other in life.events if other.kind == "progress" and other.name != "idle")
    return any(time_s is not None and time_s > event.time_s + _WORKED_S for time_s in worked)


def _can_be_root(finding: Finding, life: Life) -> bool:
    event = finding.event
    if finding.role != "root" or event.weight in ("request", "teardown", "advice", "quoted", "foreign"):
        return False
    if event.kind == "kernel":
        # Memory that the machine lacked for a moment is no reason for what happened long after; a fault of the device may be.
        memory = finding.cause in ("device-oom", "host-oom")
        passed = memory and (lived_on(event, life) or _worked_after(event, life))
        return _is_of_this_life(event, life) and not passed
    return not lived_on(event, life)


def _choose(candidates: list[Finding], life: Life) -> Finding:
    """The earliest candidate of the highest strength, or an honest verdict where there is none."""
    if not _engine_speaks(life):
        return Finding(*NO_ENGINE, _last(life), certainty="possible", strength=TRACE)
    if life.orderly and not any(_breaks_order(finding, life) for finding in candidates):
        return _not_a_crash(life)
    strong = [finding for finding in candidates if finding.strength > TRACE]
    if life.died and _recovered_all(life):
        return Finding(NOT_A_CRASH, "recovered", _last(life), certainty="supported", strength=SYMPTOM)
    if _exit_race(life):
        return Finding(NOT_A_CRASH, "clean-exit-race", _last(life), certainty="supported", strength=SYMPTOM)
    if not life.died:
        hangs = [
            finding
            for finding in strong
            if finding.cause == "timeout-hang"
            or finding.subtype == "transfer-hang"
            or finding.event.kind in ("kernel", "native")
            or _broke_an_operation(finding, life)
            or (finding.cause == "process-lifecycle" and not life.served)
        ]
        if not hangs:
            return error_of_the_program_around(life) or _quiet_end(life)
        strong = hangs
    gone = _reported_gone(candidates)
    if gone is not None and strong and all(_waited_for(finding, gone) for finding in strong):
        return gone
    if strong and not all(_is_guess(finding) for finding in strong):
        return min(strong, key=lambda finding: _key(finding))
    unknown = unclassified_error(life)
    if strong and (unknown is None or not all(_only_waits_for(finding, unknown) for finding in strong)):
        return min(strong, key=lambda finding: _key(finding))
    if unknown is not None:
        return unknown
    traces = [finding for finding in candidates if finding.strength <= TRACE]
    if traces and not _tail_only(life):
        return min(traces, key=lambda finding: _key(finding))
    if traces and any(
        finding.event.name in ("worker-died", "core-died") and finding.certainty != "possible" for finding in traces
    ):
        return min(traces, key=lambda finding: _key(finding))
    return _insufficient(life)


def _reported_gone(candidates: list[Finding]) -> Finding | None:
    """The first line that reports the unexplained end of a process as such."""
    found = [
        finding
        for finding in candidates
        if finding.strength <= TRACE
        and finding.event.name in ("worker-died", "core-died")
        and finding.certainty != "possible"
    ]
    return min(found, key=lambda finding: _key(finding)) if found else None


def _waited_for(finding: Finding, gone: Finding) -> bool:
    """Whether `finding` is a wait that ran out after a process was reported gone: it waited for the dead one."""
    after = finding.event.index > gone.event.index
    return finding.cause == "timeout-hang" and finding.strength <= SYMPTOM and after


def _only_waits_for(finding: Finding, unknown: Finding) -> bool:
    """Whether `finding`, a guess, comes after an unknown error of the core or a worker: the others wait for that one."""
    return finding.event.index > unknown.event.index and unknown.event.process.role in ("core", "worker")


def _is_guess(finding: Finding) -> bool:
    """A hang that is read from silence alone."""
    return finding.cause == "timeout-hang" and finding.certainty == "possible"


_ENGINE_WORDS = (
    "vllm", "sglang", "enginecore", "enginedeaderror", "llm engine", "mindie", "nccl", "hccl", "torch", "cuda", "hip ", "rocm", "transformers",
    "huggingface", "api_server.py", "safetensors", "npu", "xpu", "triton", "flashinfer", "lmcache", "nixl", "worker_tp", "raylet",
)  # fmt: skip


def _engine_speaks(life: Life) -> bool:
    """Whether any line comes from an inference engine or its libraries; a log of another program is no case for us."""
    for event in life.events:
        if event.process.name or event.origin not in ("", "uvicorn"):
            return True
        text = event.text[:3000].lower()
        if any(word in text for word in _ENGINE_WORDS):
            return True
        if event.exc is not None and any(
            word in frame.file.lower()
            for frame in event.exc.frames
            for word in ("vllm", "sglang", "torch", "transformers")
        ):
            return True
    return False


_RESOURCES = ("host-resource", "collective-comm", "device-oom", "host-oom", "env-install")


def _broke_an_operation(finding: Finding, life: Life) -> bool:
    """An engine that stays up but can't do what it was asked for: an error of its own processes, and no work after it.

    What a whole process has run out of (files, threads) counts in the front end as well.
    """
    event = finding.event
    return (
        finding.strength > SYMPTOM
        and finding.cause in _RESOURCES
        and (event.process.role in ("core", "worker") or finding.subtype in ("fd-limit", "threads"))
        and event.kind == "exception"
        and life.progress_index < event.index
    )


# On one and the same line the cause that says why goes before the one that says what.
_SAYS_WHY = {
    "request-poison": 0,
    "host-resource": 0,
    "kv-connector": 0,
    "host-oom": 0,
    "silent-death": 2,
    "engine-bug": 3,
}


def _key(finding: Finding) -> tuple[int, int, int, int]:
    wrapped = 1 if finding.event.kind == "wrapper" else 0
    return (-finding.strength, wrapped, finding.event.index, _SAYS_WHY.get(finding.cause, 1))


def _breaks_order(finding: Finding, life: Life) -> bool:
    """Whether a finding stands before the first signal, so that the end wasn't orderly after all."""
    if finding.strength <= TRACE:
        return False
    if finding.cause == "process-lifecycle":
        return True
    event = finding.event
    signal = next((other.index for other in life.events if other.kind == "signal"), None)
    if event.kind == "kernel":
        # A hang is usually ended with Ctrl-C, and the kernel log read after it.
        return life.progress_index < 0 or finding.certainty == "established"
    if signal is None or event.index > signal:
        return False
    return event.weight == "fatal" or finding.cause in ("timeout-hang", "hardware-fault")


def _recovered_all(life: Life) -> bool:
    """Whether the engine worked on after everything that looks like its death."""
    stop = next(
        (event.index for event in life.events if event.kind == "signal" and event.name != "exit"), len(life.events)
    )
    fatal = [event for event in life.events[:stop] if event.weight == "fatal" or event.kind in ("death", "native")]
    return bool(fatal) and all(recovered(event, life) for event in fatal)


def _exit_race(life: Life) -> bool:
    """An offline script that ended: the only death line is the monitor's, after all work, with no error and no server."""
    deaths = [event for event in life.events if event.kind == "death" and event.weight not in ("quoted", "foreign")]
    if not deaths or any(event.name not in ("core-died", "worker-died", "core-exited") for event in deaths):
        return False
    if any(
        event.kind in ("exception", "wrapper", "native", "kernel") and event.weight != "teardown"
        for event in life.events
    ):
        return False
    if any(event.kind == "milestone" and event.name in ("ready", "uvicorn-start") for event in life.events):
        return False
    codes = [exit_code(event.text) for event in deaths]
    if any(code not in (None, 0) for code in codes):
        return False
    return any(
        event.kind == "progress" and event.name == "batch" and event.index < deaths[0].index for event in life.events
    )


def _tail_only(life: Life) -> bool:
    """Whether the log starts after the cause: a consequence stands before any sign of life."""
    for event in life.events:
        if event.weight in ("quoted", "foreign"):
            continue
        if event.kind in ("progress", "milestone") and event.name not in (
            "shutdown-step",
            "uvicorn-shutdown",
            "uvicorn-done",
            "worker-orphaned",
        ):
            return False
        if event.kind in ("death", "exception", "wrapper"):
            return True
    return True


def _last(life: Life) -> Event:
    return life.events[-1] if life.events else Event(0, "", 0, "plain", "")


def _not_a_crash(life: Life) -> Finding:
    signal = next(
        (event for event in life.events if event.kind == "signal" and event.weight not in ("quoted", "foreign")),
        _last(life),
    )
    return Finding(NOT_A_CRASH, _stop_subtype(life, signal), signal, certainty="established", strength=SYMPTOM)


def _stop_subtype(life: Life, signal: Event) -> str:
    """A stop after a step that took long, a stop by the shutdown procedure of 0.18+, or any other orderly one."""
    told = [event for event in life.events if event.weight not in ("quoted", "foreign")]
    if any(
        event.index < signal.index
        and event.phase is Phase.SERVING
        and event.has("No available shared memory broadcast block")
        for event in told
    ):
        return "slow-step"
    if not life.followed and any(event.has("[shutdown] ") for event in told):
        return "clean-shutdown"
    return "orderly-shutdown"


def _quiet_end(life: Life) -> Finding:
    """No death in the log: a healthy one, one that stops in start-up, or no engine's log at all."""
    last = _last(life)
    if life.progress_index >= 0 or life.served:
        alive = Finding(NOT_A_CRASH, _alive_subtype(life), last, certainty="supported", strength=SYMPTOM)
        return name_the_error(alive, life) if alive.subtype in ("request-failed", "request-aborted") else alive
    if any(event.name == "weights-done" or event.name == "kv" for event in life.events if event.kind == "milestone"):
        return Finding(NOT_A_CRASH, "slow-load", last, certainty="possible", strength=SYMPTOM)
    return Finding(
        INSUFFICIENT, "stops-without-trace" if life.events else "empty", last, certainty="possible", strength=TRACE
    )


def _alive_subtype(life: Life) -> str:
    """What worried the reader of a healthy log: a failed request, an aborted one, a slow load, or nothing."""
    told = [event for event in life.events if event.weight not in ("quoted", "foreign", "advice")]
    if any(
        event.has("No available shared memory broadcast block") and event.phase is not Phase.SERVING for event in told
    ):
        return "slow-load"
    errors = [
        event
        for event in told
        if event.phase is Phase.SERVING and (event.kind == "exception" or event.level == "ERROR")
    ]
    if any(event.process.role in ("core", "worker") for event in errors):
        return "request-aborted"
    refused = ("ValueError", "VLLMValidationError", "ValidationError", "RequestValidationError", "BadRequestError")
    if any(event.has('" 500 ', "500 Internal Server Error") for event in told) or any(
        event.exc is not None and event.exc.short_type not in refused for event in errors
    ):
        return "request-failed"
    return "healthy"


_DEATH_WORDS = {
    "engine-dead": "EngineDeadError",
    "init-failed": "Engine core initialization failed",
    "worker-init-failed": "WorkerProc initialization failed",
    "worker-died": "Worker proc died unexpectedly",
    "core-died": "Engine core proc died unexpectedly",
    "core-exited": "engine core exited unexpectedly",
    "cancelled": "RuntimeError: cancelled",
}


def _insufficient(life: Life) -> Finding:
    told = [event for event in life.events if event.weight not in ("quoted", "foreign")]
    first = next((event for event in told if event.kind in ("death", "wrapper")), _last(life))
    finding = Finding(INSUFFICIENT, "tail-only", first, certainty="possible", strength=TRACE)
    seen: dict[str, int] = {}
    for event in told:
        if event.kind == "death":
            word = _DEATH_WORDS.get(event.name)
            if word:
                seen.setdefault(word, event.line)
        elif event.name in LOST_ACTOR:
            seen.setdefault(event.name, event.line)
    finding.values = {
        "seen": ", ".join(f"{word} ({first.path.rpartition('/')[2]}:{line})" for word, line in list(seen.items())[:4])
        or "-"
    }
    return finding


def _role(finding: Finding, verdict: Finding, life: Life) -> CauseRole:
    event = finding.event
    if event.weight == "teardown":
        return "teardown"
    if event.weight == "advice":
        return "advice"
    if finding.cause == verdict.cause:
        return "confirmation"
    if event.weight == "request" or (event.index < verdict.event.index and lived_on(event, life)):
        return "context"
    return "cascade" if event.index > verdict.event.index else "context"
