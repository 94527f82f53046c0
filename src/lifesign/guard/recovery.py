"""A guard was killed, and this is the next one: find the engine it left, save what can be saved, leave nothing behind.

The old log keeper has outlived its guard and has written every line. What is missing are the exits; what is still there
are the processes, found by their recorded start times and by the life's marker in their environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifesign.guard import procs
from lifesign.guard.blackbox import CAPTURE_S, Capture, capture_in_background
from lifesign.guard.bundle import unfinished
from lifesign.guard.clearance import remove_shm
from lifesign.guard.closing import Closed, close_incident, drop_captures
from lifesign.guard.context import Context
from lifesign.guard.environment import LIFE_ID, private_tmp_places
from lifesign.guard.evidence.kernel import KernelReport
from lifesign.guard.life import Life, mapped_shm, orphans_of, top_of
from lifesign.guard.lifegroup import recorded_group
from lifesign.guard.logstore import segments
from lifesign.guard.outcome import Outcome
from lifesign.guard.restart import Decision, Died, RestartPolicy
from lifesign.guard.ruling import Ruling
from lifesign.guard.statedir import read_json, write_json
from lifesign.text import T

TERM_S = 3.0
KILL_S = 10.0
MAX_LOOKS = 5
Orphan = tuple[procs.ProcId, str, str]
"""(process, role, name)."""


@dataclass
class Recovered:
    """The death of the last life. `told`: the guard before this one has announced it already."""

    closed: Closed
    told: bool = False


def recover(context: Context, policy: RestartPolicy, decide: Callable[[str, Died], Decision]) -> Recovered | None:
    """Deal with what the guard before this one left; gives the death of its life, or None when there was none.

    Runs beside the loop that hears signals: every wait here is cut short by a request to stop. `decide` gets the life's
    id and its death. The record in life.json stays open; the caller calls `mark_ended`.
    """
    record = read_json(context.state.life_path)
    left = unfinished(context.state)
    if record is None or record.get("ended"):
        for folder in left:
            _mark_abandoned(folder)
        return None
    life = _life_of(record, context)
    orphans = orphans_of(life.id, record)
    if record.get("starting") and not orphans and not _said_anything(context, life.id):
        for folder in left:
            _mark_abandoned(folder)
        removed = _remove_tmp(record, life.id)
        context.note(f"recovery: the last guard was killed before it had started its engine; removed: {removed}")
        return None
    _find_top(life, orphans)
    if orphans:
        context.voice.say(_FOUND, n=len(orphans))
    elif record.get("boot_id") != procs.boot_id():
        context.voice.say(_REBOOTED)
    else:
        context.voice.say(_NOTHING_RUNS)
    settled = "stopped" if record.get("stopping") else record.get("settled")
    captures, ended = _end_what_runs(context, life, record, orphans, picture=not settled)
    removed = remove_shm(life.shm)
    if life.group is not None and life.group.remove():
        removed.append(str(life.group.path))
    removed += _remove_tmp(record, life.id)
    context.note(f"recovery: {len(ended)} processes ended, {len(removed)} left-overs removed")
    mine = _bundle_of(context, life.id)
    for folder in left:
        if folder != mine or settled in ("stopped", "finished"):
            _mark_abandoned(folder)
    if settled in ("stopped", "finished"):
        if mine is None:
            drop_captures(context.state.root, life.id)
        return None
    if mine is not None and mine not in left:
        return Recovered(_closed_in(mine), told=bool(settled))
    if settled:  # announced, and its bundle is elsewhere (a full disk) or pruned
        return None
    outcome = Outcome(
        "died", life, _number(record.get("started")) or 0.0, context.now(), _number(record.get("start_s")), 0.0, None,
        "guard killed", None, captures, {}, {}, KernelReport(note="guard was not there to read it"), {},
        ended,
    )  # fmt: skip
    words = record.get("command")
    closed = close_incident(
        context,
        outcome,
        command=[str(word) for word in words] if isinstance(words, list) and words else list(context.settings.command),
        environment=dict(os.environ),
        decide=lambda death: decide(life.id, death),
        incident=mine.name if mine is not None else None,
        orphaned=bool(orphans) or (mine is None and policy.decided(life.id) is None),
    )
    return Recovered(closed)


def abandon(context: Context) -> None:
    """After an error in `recover`: what it could not complete says so, and the next start is not to fail on it again."""
    for folder in unfinished(context.state):
        _mark_abandoned(folder)
    mark_ended(context)


def _said_anything(context: Context, life_id: str) -> bool:
    """Whether the log of a life has a single byte."""
    with suppress(OSError):
        return any(path.stat().st_size for _, path in segments(context.state.log_folder(life_id)))
    return False


def _find_top(life: Life, orphans: list[Orphan]) -> None:
    """A guard that was killed right after the spawn has left no top process on record: it leads the engine's session."""
    if life.top.pid == 0:
        leaders = {proc for proc, _, _ in orphans if (stat := procs.read_stat(proc.pid)) and stat.session == proc.pid}
        life.top = min(leaders, key=lambda proc: proc.start_ticks, default=life.top)


def _remove_tmp(record: dict[str, Any], life_id: str) -> list[str]:
    """Remove the life's own temporary folder, which a record from before the spawn doesn't name; gives what was there."""
    recorded = record.get("tmp")
    folders = {Path(recorded)} if isinstance(recorded, str) and Path(recorded).name == f"lifesign-{life_id}" else set()
    if LIFE_ID.fullmatch(life_id):
        folders.update(private_tmp_places(life_id, os.environ))
    there = [folder for folder in sorted(folders) if folder.is_dir()]
    for folder in there:
        shutil.rmtree(folder, ignore_errors=True)
    return [str(folder) for folder in there]


def _end_what_runs(
    context: Context, life: Life, record: dict[str, Any], orphans: list[Orphan], *, picture: bool
) -> tuple[list[Capture], set[procs.ProcId]]:
    """End the processes that were found, after a picture of them, and those that they have started meanwhile."""
    ours: set[procs.ProcId] = set()

    def take(found: list[Orphan]) -> bool:
        fresh = [one for one in found if one[0] not in ours]
        for proc, role, name in fresh:
            member = life.members.get(proc) or life.join(proc, 0, role, name)
            member.ended_s = None
            life.shm |= mapped_shm(proc.pid)
            ours.add(proc)
        return bool(fresh)

    take(orphans)
    captures = []
    if orphans:
        if picture:
            captures.append(
                capture_in_background(
                    context.helpers, life, context.state.root / "captures" / life.id / "recovery",
                    "found without a guard", engine_url=context.settings.engine_url, clock=context.clock,
                )
            )  # fmt: skip
            until_s = context.clock() + CAPTURE_S + 1.5
            while not captures[0].done.wait(0.1) and context.clock() < until_s and context.stop_signal is None:
                pass
        end_orphans(context, life, lambda: take(orphans_of(life.id, record)))
    wait_for_old_keeper(context, life.id)
    return captures, ours


def _bundle_of(context: Context, life_id: str) -> Path | None:
    """The bundle of a life, finished or not."""
    with suppress(OSError):
        for folder in sorted(context.state.incidents.iterdir(), reverse=True):
            if folder.is_dir() and _life_id(folder) == life_id:
                return folder
    return None


def _closed_in(folder: Path) -> Closed:
    """What a complete bundle says of a death."""
    incident = read_json(folder / "incident.json") or {}
    cause, decision = _part(incident, "cause"), _part(incident, "decision")
    title, why, reason = (str(text or "") for text in (cause.get("title"), cause.get("why"), decision.get("why")))
    action = decision.get("action")
    archive = folder.with_name(f"{folder.name}.tar.zst")
    poison, left_out = decision.get("poison"), incident.get("left_out")
    return Closed(
        folder.name,
        str(archive if archive.exists() else folder),
        Ruling(
            str(cause.get("cause") or "insufficient-log"), str(cause.get("subtype") or ""),
            str(cause.get("phase") or ""), str(cause.get("certainty") or "possible"), T(title, title), T(why, why),
            str(cause.get("source") or "log"),
        ),
        Decision(
            "hold" if action == "hold" else "stop" if action == "stop" else "restart", 0.0, T(reason, reason),
            str(decision.get("rule") or ""), tuple(map(str, poison)) if isinstance(poison, list) else (),
        ),
        read_json(folder / "report.json") or {},
        [str(line) for line in left_out] if isinstance(left_out, list) else [],
    )  # fmt: skip


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    return part if isinstance(part, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _life_of(record: dict[str, Any], context: Context) -> Life:
    """The recorded life, its members as they were last known."""
    life = Life(
        str(record.get("id", "unknown")), int(_number(record.get("number")) or 0), top_of(record), context.clock
    )
    members, names = record.get("members"), record.get("shm")
    for entry in members if isinstance(members, list) else []:
        with suppress(KeyError, TypeError, ValueError):
            proc = procs.ProcId(int(entry["pid"]), int(entry["start_ticks"]))
            member = life.join(proc, int(entry["ppid"]), str(entry["role"]), str(entry["name"]))
            member.ended_s = context.clock()
            code, name = entry.get("exit_code"), entry.get("signal")
            if isinstance(code, int):
                member.status = code << 8
            elif isinstance(name, str) and name in signal.Signals.__members__:
                member.status = signal.Signals[name].value
    life.shm = {str(name) for name in names} if isinstance(names, list) else set()
    life.group = recorded_group(record.get("cgroup"), life.id)
    return life


def end_orphans(context: Context, life: Life, find_more: Callable[[], bool]) -> None:
    """SIGTERM, a little patience (none once guard is asked to stop), SIGKILL: to exactly the recorded processes.

    An engine that starts has children by the second: `find_more` looks for those that came after the last look.
    """
    for _ in range(MAX_LOOKS):
        find_more()
        _end_members(context, life)
        if not find_more():
            return


def _end_members(context: Context, life: Life) -> None:
    for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        until_s = context.clock() + patience_s
        for member in life.running():
            with suppress(OSError):
                procs.signal_exactly(member.id, number)
        while life.running() and context.clock() < until_s:
            if number == signal.SIGTERM and context.stop_signal is not None:
                break
            time.sleep(0.1)
    for member in life.alive():
        life.ended(member.id, life.exits.status_of(member.id))


def wait_for_old_keeper(context: Context, life_id: str) -> None:
    """The keeper of the old guard ends when the engine's pipe does; its last lines must be on disk before we read."""
    folder = context.state.log_folder(life_id)
    until_s = context.clock() + 3.0
    while context.clock() < until_s:
        if not any(str(folder) in " ".join(procs.read_cmdline(pid)) for pid in procs.all_pids() if pid != os.getpid()):
            return
        time.sleep(0.1)


def mark_ended(context: Context) -> None:
    """Note in life.json that nothing of the last life is left to do."""
    with suppress(OSError):
        write_json(context.state.life_path, {"schema": "lifesign.life/1", "ended": True})


def _life_id(folder: Path) -> str:
    incident = read_json(folder / "incident.json") or {}
    life = incident.get("life")
    return str(life.get("id", "")) if isinstance(life, dict) else ""


def _mark_abandoned(folder: Path) -> None:
    """A bundle nobody can complete any more stays, and says so."""
    incident = read_json(folder / "incident.json") or {"schema": "lifesign.incident/1"}
    before = incident.get("left_out")
    left_out = [*(before if isinstance(before, list) else []), "guard was killed while it wrote this bundle"]
    with suppress(OSError, subprocess.SubprocessError):
        write_json(folder / "incident.json", {**incident, "complete": True, "abandoned": True, "left_out": left_out})


_FOUND = T(
    "the last guard was killed; {n} processes of its engine still run: saving what they show, then ending them",
    "上一个 guard 被杀死了，它的引擎还有 {n} 个进程在跑：先留存现场，再结束它们",
)
_REBOOTED = T(
    "the last guard did not end in order, and the machine was started again since",
    "上一个 guard 没有正常退出，其后机器重启过",
)
_NOTHING_RUNS = T(
    "the last guard did not end in order; nothing of its engine runs any more",
    "上一个 guard 没有正常退出；它的引擎已经没有进程在跑",
)
