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
from contextlib import suppress
from pathlib import Path
from typing import Any

from lifesign.guard import procs
from lifesign.guard.blackbox import CAPTURE_S, capture_in_background
from lifesign.guard.bundle import unfinished
from lifesign.guard.clearance import remove_shm
from lifesign.guard.closing import Closed, close_incident
from lifesign.guard.context import Context
from lifesign.guard.evidence.kernel import KernelReport
from lifesign.guard.life import Life, mapped_shm, orphans_of
from lifesign.guard.outcome import Outcome
from lifesign.guard.restart import Decision, Died, RestartPolicy
from lifesign.guard.statedir import read_json, write_json
from lifesign.text import T

TERM_S = 3.0
KILL_S = 10.0


def recover(context: Context, policy: RestartPolicy) -> Closed | None:
    """Deal with what the guard before this one left; gives its incident, or None when there was nothing."""
    record = read_json(context.state.life_path)
    left = unfinished(context.state)
    if record is None or record.get("ended"):
        for folder in left:
            _mark_abandoned(folder)
        return None
    life = _life_of(record, context)
    orphans = orphans_of(life.id, record)
    if orphans:
        context.voice.say(_FOUND, n=len(orphans))
    elif record.get("boot_id") != procs.boot_id():
        context.voice.say(_REBOOTED)
    else:
        context.voice.say(_NOTHING_RUNS)
    for proc, role, name in orphans:
        member = life.members.get(proc) or life.join(proc, 0, role, name)
        member.ended_s = None
        life.shm |= mapped_shm(proc.pid)
    captures = []
    if orphans:
        folder = context.state.root / "captures" / life.id / "recovery"
        url = context.settings.engine_url
        captures.append(
            capture_in_background(
                context.helpers, life, folder, "found without a guard",
                engine_url=url, clock=context.clock,
            )
        )  # fmt: skip
        captures[0].done.wait(CAPTURE_S + 1.5)
        end_orphans(context, life)
    _wait_for_old_keeper(context, life.id)
    removed = remove_shm(life.shm)
    tmp = record.get("tmp")
    if isinstance(tmp, str) and Path(tmp).name == f"lifesign-{life.id}":
        shutil.rmtree(tmp, ignore_errors=True)
        removed.append(tmp)
    context.note(f"recovery: {len(orphans)} processes ended, {len(removed)} left-overs removed")
    outcome = Outcome(
        "died", life, float(record.get("started", 0.0)), context.now(), record.get("start_s"), 0.0, None,
        "guard killed", None, captures, {}, {}, KernelReport(note="guard was not there to read it"), {},
        {proc for proc, _, _ in orphans},
    )  # fmt: skip
    match = next((folder.name for folder in left if _life_id(folder) == life.id), None)
    closed = close_incident(
        context,
        outcome,
        command=[str(word) for word in record.get("command", [])] or list(context.settings.command),
        environment=dict(os.environ),
        decide=lambda death: _decide(policy, death, context.now()),
        incident=match,
        orphaned=bool(orphans) or match is None,
    )
    for folder in left:
        if folder.name != match:
            _mark_abandoned(folder)
    mark_ended(context)
    return closed


def _decide(policy: RestartPolicy, death: Died, now: float) -> Decision:
    decision = policy.handle(death, now)
    assert decision is not None
    return decision


def _life_of(record: dict[str, Any], context: Context) -> Life:
    """The recorded life, its members as they were last known."""
    top = record.get("top") or [0, 0]
    life = Life(
        str(record.get("id", "unknown")),
        int(record.get("number", 0)),
        procs.ProcId(int(top[0]), int(top[1])),
        context.clock,
    )
    for entry in record.get("members", []):
        with suppress(KeyError, TypeError, ValueError):
            proc = procs.ProcId(int(entry["pid"]), int(entry["start_ticks"]))
            member = life.join(proc, int(entry["ppid"]), str(entry["role"]), str(entry["name"]))
            member.ended_s = context.clock()
            code, name = entry.get("exit_code"), entry.get("signal")
            if isinstance(code, int):
                member.status = code << 8
            elif isinstance(name, str) and name in signal.Signals.__members__:
                member.status = signal.Signals[name].value
    life.shm = {str(name) for name in record.get("shm", [])}
    return life


def end_orphans(context: Context, life: Life) -> None:
    """SIGTERM, a little patience, SIGKILL: to exactly the recorded processes."""
    for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        until_s = context.clock() + patience_s
        for member in life.running():
            with suppress(OSError):
                procs.signal_exactly(member.id, number)
        while life.running() and context.clock() < until_s:
            time.sleep(0.1)
    for member in life.alive():
        life.ended(member.id, life.exits.status_of(member.id))


def _wait_for_old_keeper(context: Context, life_id: str) -> None:
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
    left_out = [*incident.get("left_out", []), "guard was killed while it wrote this bundle"]
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
