"""One life of the engine: which processes belong to it, what they are, how each one ended, what they hold.

A process belongs to a life when it is in the life's control group (where one could be made), when its parent belongs,
when it sits in the life's session, when it was orphaned to us (guard is a child subreaper), or when its environment
carries the life's marker. Group and marker also find the processes of a guard that was killed. Scans look only at pids that are new since the last one; a full look follows now and then,
because pids are reused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lifesign.guard import procs
from lifesign.guard.exits import ExitWatch
from lifesign.guard.lifegroup import LifeGroup, recorded_group
from lifesign.guard.procs import ProcId

FULL_SCAN_S = 30.0
TITLE_AGE_S = 120.0
MAX_MEMBERS = 4096
KEPT_ENDED = 256
"""Ended helpers (compilers, shells) that are remembered; processes of the engine always are."""
ENGINE_ROLES = ("core", "worker", "coordinator")


@dataclass
class Member:
    """One process. `status` is its wait status once it ended and the status could be learned; `ended_s` on our clock."""

    id: ProcId
    ppid: int
    role: str
    name: str
    seen_s: float
    ended_s: float | None = None
    status: int | None = None

    def as_json(self) -> dict[str, Any]:
        """For `incident.json`: exit code or signal, or null when nobody could tell."""
        code, signal_name = procs.describe_status(self.status) if self.status is not None else (None, None)
        return {
            "pid": self.id.pid,
            "start_ticks": self.id.start_ticks,
            "ppid": self.ppid,
            "role": self.role,
            "name": self.name,
            "ended": self.ended_s is not None,
            "exit_code": code,
            "signal": signal_name,
        }


@dataclass
class Life:
    """`top` is the process that guard started. Times are on the injected clock (seconds, monotone)."""

    id: str
    number: int
    top: ProcId
    clock: Callable[[], float] = time.monotonic
    is_helper: Callable[[int], bool] = lambda pid: False
    members: dict[ProcId, Member] = field(default_factory=dict)
    exits: ExitWatch = field(default_factory=ExitWatch)
    shm: set[str] = field(default_factory=set)
    changed: bool = True
    details: dict[str, Any] = field(default_factory=dict)
    group: LifeGroup | None = None
    _in_group: set[int] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)
    _full_at_s: float = 0.0
    _shm_listing: frozenset[str] = frozenset()

    def start(self, name: str) -> None:
        """Register the top process."""
        self.join(self.top, os.getpid(), "api", name)
        self._known = set(procs.all_pids()) - {self.top.pid}
        self._full_at_s = self.clock() + FULL_SCAN_S

    def scan(self) -> list[Member]:
        """Find new members and read the titles of young ones; gives the new members."""
        now_s = self.clock()
        pids = procs.all_pids()
        if now_s >= self._full_at_s:
            self._known.clear()
            self._full_at_s = now_s + FULL_SCAN_S
        fresh = [pid for pid in pids if pid not in self._known]
        self._known = set(pids)
        self._in_group = self.group.pids() if self.group is not None and fresh else set()
        self._forget_helpers()
        joined: list[Member] = []
        while len(self.members) < MAX_MEMBERS:
            found = [member for pid in fresh if (member := self._consider(pid)) is not None]
            joined += found
            if not found:  # a child may stand before its parent in the list: look until nothing changes
                break
        self._read_titles(now_s)
        return joined

    def _forget_helpers(self) -> None:
        """Let the oldest ended helpers go: they would fill the list in which a living child must find its place."""
        ended = [one for one in self.members.values() if one.ended_s is not None and one.role == "other"]
        for member in sorted(ended, key=lambda one: one.ended_s or 0.0)[: max(0, len(ended) - KEPT_ENDED)]:
            if member.id != self.top:
                del self.members[member.id]

    def _consider(self, pid: int) -> Member | None:
        stat = procs.read_stat(pid)
        if stat is None or stat.id in self.members or pid == os.getpid() or self.is_helper(pid):
            return None
        parents = {member.id.pid for member in self.members.values() if member.ended_s is None}
        belongs = (
            pid in self._in_group
            or stat.ppid in parents
            or stat.session == self.top.pid
            or procs.marker_of(pid) == self.id
            or (stat.ppid == os.getpid() and stat.session != os.getsid(0) and not procs.read_environ(pid))
        )
        if not belongs:
            return None
        role, name = procs.role_of(stat.comm, procs.read_cmdline(pid))
        return self.join(stat.id, stat.ppid, role, name)

    def join(self, proc: ProcId, ppid: int, role: str, name: str) -> Member:
        """Register a process as a member."""
        member = Member(proc, ppid, role, name, self.clock())
        self.members[proc] = member
        self.exits.add(proc)
        self.changed = True
        return member

    def _read_titles(self, now_s: float) -> None:
        """A process gets its title some time after it started; a forked one bears its parent's until then."""
        for member in self.alive():
            if member.id != self.top and now_s - member.seen_s < TITLE_AGE_S:
                stat = procs.read_stat(member.id.pid)
                if stat is not None and stat.id == member.id:
                    role, name = procs.role_of(stat.comm, procs.read_cmdline(member.id.pid))
                    if (role, name) != (member.role, member.name):
                        member.role, member.name = role, name
                        self.changed = True

    def alive(self) -> list[Member]:
        """Members that have not been seen to end."""
        return [member for member in self.members.values() if member.ended_s is None]

    def running(self) -> list[Member]:
        """Members that really run at this moment (checked against the kernel; zombies don't count)."""
        return [member for member in self.alive() if procs.is_alive(member.id)]

    def ended(self, proc: ProcId, status: int | None) -> Member | None:
        """Record the end of a member; gives it the first time, None afterwards or for a stranger."""
        member = self.members.get(proc)
        if member is None:
            return None
        first = member.ended_s is None
        if first:
            member.ended_s = self.clock()
            self.changed = True
        if member.status is None:
            member.status = status
        return member if first else None

    def notice_ends(self) -> list[Member]:
        """Look at every living member; gives those that have ended since, with their status where it can be learned."""
        gone = []
        for member in self.alive():
            if not procs.is_alive(member.id):
                self.ended(member.id, self.exits.status_of(member.id))
                gone.append(member)
        return gone

    def lost(self) -> list[Member]:
        """Engine processes (core, worker, coordinator) that have ended."""
        return [
            member for member in self.members.values() if member.ended_s is not None and member.role in ENGINE_ROLES
        ]

    def note_shm(self, *, again: bool = False) -> None:
        """Remember the segments of /dev/shm that members have mapped, so that we can tell ours when they are gone.

        Without a change in /dev/shm since the last look nothing is read, unless `again`: a segment may have been there
        before its second user.
        """
        try:
            listing = frozenset(os.listdir("/dev/shm"))
        except OSError:
            return
        if listing == self._shm_listing and not again:
            return
        self._shm_listing = listing
        for member in self.alive():
            self.shm |= mapped_shm(member.id.pid)

    def as_json(self) -> dict[str, Any]:
        """For `life.json`: enough for the next guard to find every process of this life, and nobody else's."""
        return {
            "schema": "lifesign.life/1",
            **self.details,
            "cgroup": str(self.group.path) if self.group is not None else None,
            "id": self.id,
            "number": self.number,
            "boot_id": procs.boot_id(),
            "pid_namespace": procs.pid_namespace(),
            "guard": list(procs.identify(os.getpid()) or (os.getpid(), 0)),
            "top": list(self.top),
            "members": [member.as_json() for member in self.members.values()][-MAX_MEMBERS:],
            "shm": sorted(self.shm)[:1000],
        }


def record_ahead(life_id: str, number: int, details: dict[str, Any]) -> dict[str, Any]:
    """For `life.json` before anything runs: killed between the spawn and the first record, guard would leave an engine that
    nobody knows. The id is enough to find it by marker; `starting` says that there may be nothing to find."""
    life = Life(life_id, number, ProcId(0, 0))
    life.details = {**details, "starting": True}
    return life.as_json()


def mapped_shm(pid: int) -> set[str]:
    """Names of the files in /dev/shm that a process has mapped (`/dev/shm/psm_1234`)."""
    found: set[str] = set()
    with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            at = line.find(b"/dev/shm/")
            if at >= 0:
                found.add(line[at:].strip().removesuffix(b" (deleted)").decode("utf-8", "replace"))
    return found


def orphans_of(life_id: str, record: dict[str, Any]) -> list[tuple[ProcId, str, str]]:
    """(process, role, name) of everything that still runs of a recorded life: by record, by group, by marker, by session.

    A title overwrites the environment that /proc shows, marker included; such a process is known by its session. The
    number of a session is not given away while it has members, unless its leader is another process by now. Numbers from
    another boot or another container mean nothing here: then only the marker counts, and the sessions of processes that
    bear it (which all begin below the top process).
    """
    found: dict[ProcId, tuple[str, str]] = {}
    namespace = procs.pid_namespace()
    same_numbers = record.get("boot_id") == procs.boot_id() and record.get("pid_namespace", namespace) == namespace
    if same_numbers:
        members = record.get("members")
        for entry in members if isinstance(members, list) else []:
            with suppress(KeyError, TypeError, ValueError):
                proc = ProcId(int(entry["pid"]), int(entry["start_ticks"]))
                if procs.is_alive(proc):
                    found[proc] = (str(entry["role"]), str(entry["name"]))
    top = top_of(record)
    leader = procs.identify(top.pid)
    session = top.pid if same_numbers and top.pid and leader in (None, top) else 0
    sessions = {session: top.start_ticks} if session else {}
    group = recorded_group(record.get("cgroup"), life_id)
    in_group = group.pids() if group is not None else set()
    stats = [stat for pid in procs.all_pids() if (stat := procs.read_stat(pid)) is not None and stat.state not in "ZX"]
    marked = {stat.id for stat in stats if procs.marker_of(stat.pid) == life_id}
    for stat in stats:
        if stat.id in marked:
            sessions[stat.session] = min(stat.start_ticks, sessions.get(stat.session, stat.start_ticks))
    for stat in stats:
        if stat.id in found:
            continue
        role, name = procs.role_of(stat.comm, procs.read_cmdline(stat.pid))
        in_session = stat.start_ticks >= sessions.get(stat.session, stat.start_ticks + 1) and role in ENGINE_ROLES
        if stat.pid in in_group or in_session or stat.id in marked:
            found[stat.id] = (role, name)
    return [(proc, role, name) for proc, (role, name) in found.items()]


def top_of(record: dict[str, Any]) -> ProcId:
    """The top process of a recorded life; pid 0 where the record doesn't say."""
    with suppress(KeyError, TypeError, ValueError):
        pid, start_ticks = record["top"]
        return ProcId(int(pid), int(start_ticks))
    return ProcId(0, 0)


def remove_files(paths: set[str], allowed: tuple[str, ...]) -> list[str]:
    """Remove files that lie directly in one of the `allowed` folders; gives those that were removed."""
    removed = []
    for path in sorted(paths):
        if str(Path(path).parent) in allowed:
            with suppress(OSError):
                os.unlink(path)
                removed.append(path)
    return removed
