"""When guard itself breaks while an engine runs: nothing of the engine may be left alone, and its end is still decided on."""

from __future__ import annotations

from contextlib import suppress

from lifesign.guard.context import Context
from lifesign.guard.evidence.kernel import KernelReport
from lifesign.guard.life import Life, Member
from lifesign.guard.outcome import Outcome
from lifesign.guard.procs import ProcId
from lifesign.guard.recovery import end_orphans, wait_for_old_keeper
from lifesign.guard.session import Session


def rescue(context: Context, session: Session, error: Exception) -> Outcome:
    """End the processes of a session that broke off with `error`; its outcome, from what is known without it."""
    life = session.life
    with suppress(Exception):  # what broke the session may break this as well
        life.scan()
    ours = {member.id for member in life.running()}
    served_s = context.clock() - life.members[life.top].seen_s - session.start_s if session.start_s is not None else 0.0
    end_orphans(context, life, lambda: _more(life, ours))
    wait_for_old_keeper(context, life.id)
    top = life.members[life.top]
    stopped = session.ending is not None and session.ending.reason == "stop"
    started = life.details.get("started")
    outcome = Outcome(
        "stopped" if stopped else "died", life, started if isinstance(started, float) else context.now(),
        context.now(), session.start_s, max(0.0, served_s), top.status,
        f"an error in guard: {type(error).__name__}: {error}", session.call, session.captures, {}, {},
        KernelReport(note="guard broke off before it was read"), session.keeper_stats, ours,
    )  # fmt: skip
    life.exits.close()
    return outcome


def _more(life: Life, ours: set[ProcId]) -> bool:
    """Whether the engine has started further processes; they are ended by us as well."""
    found: list[Member] = []
    with suppress(Exception):
        found = life.scan()
    ours |= {member.id for member in found}
    return bool(found)
