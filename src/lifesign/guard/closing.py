"""After a death: everything into the bundle, the diagnosis, the decision. Runs beside the main loop, bounded in time.

The order is that of worth: first a small incident.json that says "unfinished" (should guard be killed now, the next one
completes it), then what decides, then what helps, then the archive.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lifesign.guard import procs
from lifesign.guard.bundle import SCHEMA, Bundle
from lifesign.guard.context import Context
from lifesign.guard.diagnosis import diagnose_bundle, fallback_report
from lifesign.guard.evidence import kernel
from lifesign.guard.evidence.gpu_faults import EngineGpus, Faults, is_evidence, weigh
from lifesign.guard.evidence.memory import host_memory, oom_kills
from lifesign.guard.evidence.redact import redact_command, redact_environment
from lifesign.guard.evidence.requests import in_flight
from lifesign.guard.evidence.versions import versions
from lifesign.guard.outcome import Outcome
from lifesign.guard.recording import drop_recording, newest_events
from lifesign.guard.restart import Change, Decision, Died
from lifesign.guard.ruling import End, Facts, Ruling, rule
from lifesign.text import T

MAX_EVENTS_BYTES = 9 << 20
MAX_SCAN_BYTES = 32 << 20
DYING_S = 60.0
MAX_NAMED = 40
REPORT_BYTES = 1 << 20
"""Room for the diagnosis: three reports of some tens of KiB each."""


@dataclass
class Closed:
    """What came out of a death. `path` is the archive, or the folder where there is none."""

    id: str
    path: str
    ruling: Ruling
    decision: Decision
    report: dict[str, Any]
    left_out: list[str]


def without_bundle(outcome: Outcome, decide: Callable[[Died], Decision], reason: str) -> Closed:
    """When the incident itself broke: the decision must be taken all the same, from what guard has seen."""
    report = fallback_report(f"the incident could not be written: {reason}")
    ruling = rule(report["verdict"], facts_of(outcome))
    death = Died(
        cause=ruling.cause,
        subtype=ruling.subtype,
        exit_code=outcome.exit_code,
        became_ready=outcome.became_ready,
        served_s=outcome.served_s,
    )
    return Closed("-", "-", ruling, decide(death), report, [reason])


def incident_id(now: float, number: int) -> str:
    """`20261130T114207Z-0003`: sorts by time; the last part counts the lives."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{number:04d}"


def close_incident(
    context: Context,
    outcome: Outcome,
    *,
    command: list[str],
    environment: dict[str, str],
    decide: Callable[[Died], Decision],
    incident: str | None = None,
    orphaned: bool = False,
) -> Closed:
    """Write the bundle of a death, diagnose it, and ask the policy. Never raises for want of disk or permission."""
    settings, life = context.settings, outcome.life
    bundle = Bundle(context.state, incident or incident_id(context.now(), life.number))
    facts = facts_of(outcome, orphaned)
    head = _head(context, outcome, command, facts)
    bundle.put_incident({**head, "complete": False})
    _put_evidence(context, bundle, outcome, command, environment)
    omitted = bundle.put_log(
        context.state.log_folder(life.id),
        settings.bundle_log_bytes,
        keep_prompts=settings.keep_prompts,
        tail=_memory_tail(outcome),
    )
    if (bundle.folder / "engine.log").exists():
        _drop_memory_tail(outcome)
    else:
        bundle.left_out += [f"the end of the log, from memory, stays in {path}" for path in _tail_paths(outcome)]
    bundle.make_room(REPORT_BYTES)
    facts = replace(facts, log_cut=omitted > 0 or bool(outcome.keeper.get("unsaved_bytes")))
    report, ruling = diagnose_bundle(
        context.helpers, bundle.folder, extra=["kernel.log"], facts=facts, lang=settings.lang
    )
    if not (bundle.folder / "report.json").exists():
        bundle.put("report.json", json.dumps(report, indent=1, ensure_ascii=False))
    if not (bundle.folder / "report.txt").exists():
        bundle.put("report.txt", report["verdict"]["title"] + "\n")
    if not (bundle.folder / "report.md").exists():
        bundle.left_out.append("report.md: it could not be written; report.json says the same")
    flying = in_flight(_log_lines(bundle.folder / "engine.log"))
    bundle.put("requests.json", json.dumps(flying, indent=1))
    decision = decide(
        Died(
            cause=ruling.cause,
            subtype=ruling.subtype,
            phase=ruling.phase,
            exit_code=outcome.exit_code,
            # A guard that was killed may not have seen what the log shows.
            became_ready=outcome.became_ready or ruling.phase in ("serving", "shutdown"),
            served_s=outcome.served_s,
            hung=outcome.call is not None,
            host_oom_kills=facts.oom_kill_delta,
            xids=facts.xids,
            requests=tuple(flying.values()),
            changes=changes_of(report),
        )
    )
    bundle.sync()
    bundle.put_incident({**head, **_end(context, outcome, ruling, decision, flying), "complete": True})
    archive = bundle.finish()
    if archive is None:  # the archive's absence must be readable in the folder
        bundle.put_incident({**head, **_end(context, outcome, ruling, decision, flying), "complete": True})
    return Closed(bundle.id, str(archive or bundle.folder), ruling, decision, report, bundle.left_out)


def keep_suspicion(context: Context, outcome: Outcome, command: list[str], environment: dict[str, str]) -> str:
    """A small bundle about an engine that was stopped while it was suspected of a hang; gives its path.

    Whoever restarts an engine that hangs stops it. That is no death and needs no decision, and nobody could call it a
    hang any more: but the pictures of that moment are the only ones there are. The log is not diagnosed, since it ends
    as every stopped engine's does.
    """
    settings, lang = context.settings, context.settings.lang
    bundle = Bundle(context.state, incident_id(context.now(), outcome.life.number))
    head = _head(context, outcome, command, facts_of(outcome))
    incident = {
        **head,
        "exit": {**head["exit"], "guard_code": outcome.exit_code},
        "cause": {
            "cause": "timeout-hang", "subtype": "", "phase": "serving" if outcome.became_ready else "startup-load",
            "certainty": "possible", "title": _SUSPECTED[0].pick(lang), "why": _SUSPECTED[1].pick(lang),
            "source": "guard",
        },
        "decision": {
            "action": "stop", "delay_s": 0.0, "rule": "asked", "why": _ASKED.pick(lang),
            "apply": None, "undo": None, "poison": [],
        },
    }  # fmt: skip
    bundle.put_incident({**incident, "complete": False})
    _put_evidence(context, bundle, outcome, command, environment)
    folder = context.state.log_folder(outcome.life.id)
    bundle.put_log(folder, settings.bundle_log_bytes, keep_prompts=settings.keep_prompts, tail=_memory_tail(outcome))
    bundle.put("report.txt", f"{_SUSPECTED[0].pick(lang)}\n{_SUSPECTED[1].pick(lang)}\n")
    bundle.put_incident({**incident, "complete": True})
    return str(bundle.finish() or bundle.folder)


def facts_of(outcome: Outcome, orphaned: bool = False) -> Facts:
    """What guard saw, for the ruling."""
    ended = sorted(
        (member for member in outcome.life.members.values() if member.ended_s is not None),
        key=lambda member: member.ended_s or 0.0,
    )
    ends = []
    for member in ended:
        code, signal_name = procs.describe_status(member.status) if member.status is not None else (None, None)
        ends.append(End(member.role, member.name, member.id.pid, code, signal_name, member.id in outcome.ours))
    known = kernel.numbers_processes_as_we_do()
    pids = {proc.pid for proc in outcome.life.members} if known else set()
    kills = outcome.kernel.oom_kills
    faults = gpu_faults_of(outcome)
    code, _ = procs.describe_status(outcome.status) if outcome.status is not None else (None, None)
    return Facts(
        ends=tuple(ends),
        became_ready=outcome.became_ready,
        top_code=code,
        hang=outcome.call.finding if outcome.call else "",
        who=outcome.call.who if outcome.call else (),
        stopped=outcome.call.stopped if outcome.call else False,
        oom_kill_delta=oom_kills(outcome.memory_before, outcome.memory_after),
        kernel_oom_pids=tuple(pid for pid, _ in kills if pid in pids),
        xids=faults.certain,
        xids_unsure=faults.unsure,
        orphaned=orphaned,
        # A kill that the kernel reports under a number that isn't ours may have been one of ours.
        oom_known="events.oom_kill" in outcome.memory_after or (not outcome.kernel.note and (known or not kills)),
    )


def gpu_faults_of(outcome: Outcome) -> Faults:
    """What the driver's errors say of this death."""
    gpus = EngineGpus.load(outcome.life.details.get("gpus"))
    pids = {proc.pid for proc in outcome.life.members} if kernel.numbers_processes_as_we_do() else set()
    return weigh(outcome.kernel.xids, gpus, pids, _died_s(outcome))


def _died_s(outcome: Outcome) -> float | None:
    """When the dying began: the first of the ends that belong together at the end of the life."""
    ends = [member.ended_s for member in outcome.life.members.values() if member.ended_s is not None]
    return min(end for end in ends if max(ends) - end <= DYING_S) if ends else None


def changes_of(report: dict[str, Any]) -> tuple[Change, ...]:
    """The remedies of a report that are a flag or a variable known to be valid in the engine's release."""
    changes = []
    for remedy in report.get("verdict", {}).get("remedies", []):
        if remedy.get("kind") in ("flag", "env") and remedy.get("valid_in_version") is True and remedy.get("knob"):
            value = str(remedy.get("value") or "")
            if "{" in value and not value.startswith('{"'):  # a value that could not be computed
                continue
            changes.append(Change(remedy["kind"], str(remedy["knob"]), value or None))
    return tuple(changes[:20])


def _head(context: Context, outcome: Outcome, command: list[str], facts: Facts) -> dict[str, Any]:
    code, signal_name = procs.describe_status(outcome.status) if outcome.status is not None else (None, None)
    return {
        "schema": SCHEMA,
        "life": {
            "id": outcome.life.id,
            "number": outcome.life.number,
            "started": outcome.started,
            "ended": outcome.ended,
            "ready_after_s": outcome.start_s,
            "served_s": round(outcome.served_s, 3),
        },
        "command": redact_command(command),
        "exit": {"code": code, "signal": signal_name, "guard_code": max(outcome.exit_code, 1)},
        "trigger": outcome.trigger,
        "processes": [
            {**member.as_json(), "ended_by_guard": member.id in outcome.ours}
            for member in outcome.life.members.values()
        ],
        "detector": None
        if outcome.call is None
        else {"finding": outcome.call.finding, "who": list(outcome.call.who), "stopped": outcome.call.stopped},
        "memory": {"before": outcome.memory_before, "after": outcome.memory_after, "host": host_memory()},
        "kernel": {
            "xids": list(facts.xids),
            "xids_seen": [
                {"xid": one.number, "device": one.pci, "pid": one.pid or None, "weight": weight}
                for one, weight in gpu_faults_of(outcome).weights
            ],
            "oom_kills": [list(kill) for kill in outcome.kernel.oom_kills],
        },
        "log": {**outcome.keeper, "folder": str(context.state.log_folder(outcome.life.id))},
        "captures": [{"why": one.why, "seconds": round(one.seconds, 2)} for one in outcome.captures],
        "timeline": [{"time": at, "event": text} for at, text in context.timeline],
    }


def _end(
    context: Context, outcome: Outcome, ruling: Ruling, decision: Decision, flying: dict[str, str]
) -> dict[str, Any]:
    lang = context.settings.lang
    return {
        "cause": {
            "cause": ruling.cause,
            "subtype": ruling.subtype,
            "phase": ruling.phase,
            "certainty": ruling.certainty,
            "title": ruling.title.pick(lang),
            "why": ruling.why.pick(lang),
            "source": ruling.source,
        },
        "decision": {
            "action": decision.action,
            "delay_s": round(decision.delay_s, 3),
            "rule": decision.rule,
            "why": decision.why.pick(lang),
            "apply": decision.apply.show() if decision.apply else None,
            "undo": decision.undo.show() if decision.undo else None,
            "poison": list(decision.poison),
        },
        "requests_in_flight": len(flying),
    }


def _put_evidence(
    context: Context, bundle: Bundle, outcome: Outcome, command: list[str], environment: dict[str, str]
) -> None:
    """Everything that is small or already on disk."""
    life = outcome.life
    for capture in outcome.captures:
        bundle.left_out += [f"captures/{capture.folder.name}/{line}" for line in capture.left_out[:MAX_NAMED]]
        if len(capture.left_out) > MAX_NAMED:
            more = len(capture.left_out) - MAX_NAMED
            bundle.left_out.append(f"captures/{capture.folder.name}: {more} more files")
        if not capture.done.is_set():
            bundle.left_out.append(f"captures/{capture.folder.name}: not complete in time")
    bundle.adopt(context.state.root / "captures" / life.id, "captures")
    bundle.put("guard.log", "".join(f"{line}\n" for line in context.voice.lines))
    _put_kernel_log(bundle, outcome)
    bundle.put("environment.json", json.dumps(redact_environment(environment), indent=1, ensure_ascii=False))
    bundle.put("command.txt", "\n".join(redact_command(command)) + "\n")
    bundle.put("versions.json", json.dumps(versions(context.helpers, command), indent=1))
    _put_events(context, bundle, life.id)


def _put_events(context: Context, bundle: Bundle, life_id: str) -> None:
    """The newest events of the detector; the originals go only once they are in the bundle."""
    folder = context.state.root / "events"
    try:
        content, omitted = newest_events(folder, life_id, MAX_EVENTS_BYTES)
    except OSError as error:
        bundle.left_out.append(f"events.jsonl: {error.strerror or error}; what there is lies in {folder}")
        return
    if not content:
        return
    if not bundle.put("events.jsonl", content):
        bundle.left_out.append(f"events.jsonl: the events stay in {folder}")
        return
    if omitted:
        bundle.left_out.append(f"events.jsonl: {omitted} bytes at its start")
    drop_recording(folder, life_id)


def _put_kernel_log(bundle: Bundle, outcome: Outcome) -> None:
    """`kernel.log`, which is diagnosed with the engine's log, and apart from it what is context only."""
    faults, report = gpu_faults_of(outcome), outcome.kernel
    pids: set[int] | None = {proc.pid for proc in outcome.life.members}
    if not kernel.numbers_processes_as_we_do():
        counted = "events.oom_kill" in outcome.memory_after
        pids = set() if counted and not oom_kills(outcome.memory_before, outcome.memory_after) else None
    any_of_ours = pids is not None and any(pid in pids for pid, _ in report.oom_kills)
    evidence: list[str] = []
    context: list[str] = []
    for line in report.lines:
        strange = pids is not None and kernel.is_strangers_end(line, pids, any_of_ours=any_of_ours)
        (evidence if is_evidence(line, faults) and not strange else context).append(line)
    bundle.put("kernel.log", "".join(f"{line}\n" for line in evidence))
    if context:
        bundle.put("kernel-context.log", "".join(f"{line}\n" for line in context))
    if report.note:
        bundle.left_out.append(f"kernel.log: {report.note}")
    if report.dropped:
        bundle.left_out.append(f"kernel.log: {report.dropped} older lines (their Xids and kills were taken down)")


def _tail_paths(outcome: Outcome) -> list[str]:
    """Where the keeper wrote the end of the log from its memory, when the disk had lost something."""
    path = outcome.keeper.get("tail_path")
    return [path] if isinstance(path, str) and Path(path).exists() else []


def _memory_tail(outcome: Outcome) -> bytes:
    for path in _tail_paths(outcome):
        with suppress(OSError):
            return Path(path).read_bytes()
    return b""


def _drop_memory_tail(outcome: Outcome) -> None:
    for path in _tail_paths(outcome):
        with suppress(OSError):
            os.unlink(path)


def _log_lines(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_SCAN_BYTES).decode("utf-8", "replace").split("\n")
    return []


def drop_captures(root: Path, life_id: str) -> None:
    """Captures of a life that didn't die (withdrawn suspicions) are not kept."""
    shutil.rmtree(root / "captures" / life_id, ignore_errors=True)
    drop_recording(root / "events", life_id)


_SUSPECTED = (
    T(
        "The engine was suspected of a hang when guard was asked to stop",
        "guard 收到停止请求时，引擎正被怀疑卡死",
    ),
    T(
        "Nobody can tell any more whether it would have gone on. The stacks taken at the suspicion are in captures/.",
        "它还会不会恢复，已无从知道。起疑时抓取的调用栈在 captures/ 里。",
    ),
)
_ASKED = T("guard was asked to stop", "guard 收到了停止请求")
