"""Finds the processes of an engine from any one of them, or from the port that it listens on. Reads /proc alone.

vLLM names its processes (`VLLM::EngineCore`, `VLLM::Worker_TP1`) where setproctitle is installed; otherwise the beacon
names the workers, and else the place in the tree has to do: `vllm serve` starts EngineCore, EngineCore starts workers.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from lifesign.errors import UsageError
from lifesign.guard.detector.beacon import find_beacon, read_beacon
from lifesign.guard.probes.process import Target
from lifesign.guard.procs import Stat, all_pids, read_cmdline, read_stat, role_of

COMPILERS = frozenset(
    {
        "cc1",
        "cc1plus",
        "g++",
        "gcc",
        "cc",
        "c++",
        "clang",
        "clang++",
        "ld",
        "as",
        "ninja",
        "nvcc",
        "cicc",
        "ptxas",
        "hipcc",
    }
)
DEPTH_MAX = 16
MEMBERS_MAX = 512
COMPILERS_MAX = 16
PORTS_MAX = 32
FDS_MAX = 4096


@dataclass(slots=True)
class Member:
    """One process of the engine. role: server, engine, worker, compiler or other; name: as a person would say it."""

    pid: int
    start_ticks: int
    role: str
    name: str
    rank: int = -1

    @property
    def target(self) -> Target:
        """What the process probe wants."""
        return Target(self.pid, self.role, self.rank, self.start_ticks)


@dataclass(slots=True)
class EngineTree:
    """An engine's processes. `root` is the one that a signal to the whole engine would go to."""

    root: int
    members: list[Member] = field(default_factory=list)
    beacon: Path | None = None

    @property
    def cores(self) -> list[Member]:
        """EngineCore processes (several with data parallelism)."""
        return [one for one in self.members if one.role == "engine"]

    @property
    def targets(self) -> list[Target]:
        """All that say something about the engine."""
        return [one.target for one in self.members if one.role in ("engine", "worker", "compiler")]

    def name_of(self, pid: int) -> str:
        """How a person would call the process."""
        return next((one.name for one in self.members if one.pid == pid), f"pid {pid}")


def find_engine(pid: int) -> EngineTree:
    """The engine that process `pid` belongs to.

    Raises UsageError if there is no such process, or it isn't part of a vLLM engine.
    """
    stat = read_stat(pid)
    if stat is None:
        raise UsageError(
            f"there is no process {pid}; give the pid of `vllm serve` or of EngineCore, or the server's URL"
        )
    stats = _all_stats()
    root = _root_of(pid, stats)
    tree = EngineTree(root)
    _fill(tree, stats)
    if not tree.cores and not any(one.role == "worker" for one in tree.members):
        name = " ".join(read_cmdline(pid))[:80] or stat.comm
        raise UsageError(
            f"process {pid} ({_printable(name)}) isn't part of a vLLM engine: no EngineCore, worker or beacon belongs to it; "
            "give the pid of `vllm serve` or of EngineCore, or the server's URL"
        )
    return tree


def refresh(tree: EngineTree) -> None:
    """Look for workers and compilers that came since. Members that are gone stay: their end is news."""
    fresh = EngineTree(tree.root)
    _fill(fresh, _all_stats())
    known = {(one.pid, one.start_ticks) for one in tree.members}
    tree.members = [one for one in tree.members if one.role != "compiler"]
    for one in fresh.members:
        if (one.pid, one.start_ticks) not in known or one.role == "compiler":
            tree.members.append(one)
    del tree.members[MEMBERS_MAX:]
    tree.beacon = tree.beacon or fresh.beacon


def _all_stats() -> dict[int, Stat]:
    return {pid: stat for pid in all_pids() if (stat := read_stat(pid)) is not None}


def _root_of(pid: int, stats: dict[int, Stat]) -> int:
    """The topmost ancestor that still is vLLM."""
    root = here = pid
    for _ in range(DEPTH_MAX):
        stat = stats.get(here)
        if stat is None or stat.ppid <= 1:
            break
        here = stat.ppid
        if here in stats and _is_vllm(here, stats[here]):
            root = here
    return root


def _is_vllm(pid: int, stat: Stat) -> bool:
    cmdline = read_cmdline(pid)
    return role_of(stat.comm, cmdline)[0] in ("api", "core", "worker") or _serves(cmdline)


def _serves(cmdline: list[str]) -> bool:
    """Whether this is a server's command line (`vllm serve`, `python -m vllm.entrypoints...`), not a shell around it."""
    for at, word in enumerate(cmdline[:4]):
        name = word.rpartition("/")[2]
        if name == "vllm" and "serve" in cmdline[at + 1 : at + 2]:
            return True
        if word.startswith("vllm.entrypoints") and cmdline[at - 1] == "-m":
            return True
    return False


def _fill(tree: EngineTree, stats: dict[int, Stat]) -> None:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.ppid, []).append(pid)
    queue = [(tree.root, 0)]
    compilers = 0
    serving = _serves(read_cmdline(tree.root))
    while queue and len(tree.members) < MEMBERS_MAX:
        pid, depth = queue.pop(0)
        if pid not in stats:
            continue
        member = _member(pid, stats[pid], serving, depth, bool(children.get(pid)))
        if member.role == "compiler":
            compilers += 1
        if member.role != "other" and (member.role != "compiler" or compilers <= COMPILERS_MAX):
            tree.members.append(member)
        queue += [(child, depth + 1) for child in sorted(children.get(pid, []))]
    _ask_beacons(tree, stats)
    _number(tree)


def _member(pid: int, stat: Stat, serving: bool, depth: int, parent: bool) -> Member:
    """What a process is, from its title; without one, from its place under a server."""
    cmdline = read_cmdline(pid)
    role, name = role_of(stat.comm, cmdline)
    words = {"core": "engine", "worker": "worker", "api": "server", "coordinator": "server"}
    if role in words:
        return Member(pid, stat.start_ticks, words[role], _printable(name))
    if stat.comm in COMPILERS:
        return Member(pid, stat.start_ticks, "compiler", _printable(stat.comm))
    if depth == 0 and serving:
        return Member(pid, stat.start_ticks, "server", "server")
    spawned = any("multiprocessing" in part and "spawn_main" in part for part in cmdline[:4])
    if serving and spawned and role != "tracker":
        if depth == 1:
            return Member(pid, stat.start_ticks, "engine", "EngineCore")
        if depth == 2:
            return Member(pid, stat.start_ticks, "worker", "worker")
    return Member(pid, stat.start_ticks, "other", _printable(name))


def _ask_beacons(tree: EngineTree, stats: dict[int, Stat]) -> None:
    """A beacon says who EngineCore is and who its workers are, whatever they are called."""
    known = {one.pid: one for one in tree.members}
    for pid in [tree.root, *known]:
        path = find_beacon(pid)
        reading = read_beacon(path) if path is not None else None
        if reading is None or pid not in stats or reading.start_ticks not in (0, stats[pid].start_ticks):
            continue
        tree.beacon = tree.beacon or path
        if pid not in known:
            known[pid] = Member(pid, stats[pid].start_ticks, "engine", "EngineCore")
            tree.members.append(known[pid])
        known[pid].role = "engine"
        for worker in reading.workers:
            if (
                worker.pid in stats
                and worker.start_ticks in (0, stats[worker.pid].start_ticks)
                and worker.pid not in known
            ):
                known[worker.pid] = Member(worker.pid, stats[worker.pid].start_ticks, "worker", "worker", worker.rank)
                tree.members.append(known[worker.pid])


def _number(tree: EngineTree) -> None:
    """Ranks in the order of the processes, and names that tell several workers apart."""
    workers = [one for one in tree.members if one.role == "worker"]
    names = [one.name for one in workers]
    for rank, one in enumerate(workers):
        if one.rank < 0:
            one.rank = rank
        # The kernel keeps 15 letters of a name, which makes all ranks alike.
        if one.name == "worker" or names.count(one.name) > 1:
            one.name = f"worker {one.rank}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def listener_of(port: int) -> int | None:
    """The process that listens on a TCP port of this machine, or None if there is none, or it may not be seen."""
    inodes = {inode for inode, listening in _listening() if listening == port}
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = [pid for pid in all_pids() if wanted & _sockets(pid)]
    return min(found) if found else None


def ports_of(tree: EngineTree) -> list[int]:
    """TCP ports on which a server process of the tree (or its root) listens."""
    servers = {tree.root, *(one.pid for one in tree.members if one.role == "server")}
    own = set().union(*(_sockets(pid) for pid in servers))
    return sorted({port for inode, port in _listening() if f"socket:[{inode}]" in own})[:PORTS_MAX]


def is_foreign(tree: EngineTree) -> bool:
    """Whether the engine is another user's, whose files and sockets we may not look at."""
    try:
        return os.geteuid() not in (0, os.stat(f"/proc/{tree.root}").st_uid)
    except OSError:
        return False


def uses_gpu(tree: EngineTree) -> bool:
    """Whether a process of the engine holds a device file of a GPU (as far as its open files may be seen)."""
    for one in tree.members:
        if one.role in ("engine", "worker") and _links(one.pid, ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")):
            return True
    return False


def _listening() -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                with contextlib.suppress(ValueError):
                    found.append((fields[9], int(fields[1].rpartition(":")[2], 16)))
    return found


def _sockets(pid: int) -> set[str]:
    return _links(pid, ("socket:",))


def _links(pid: int, starts: tuple[str, ...]) -> set[str]:
    """What the open files of a process are, as far as they begin with one of `starts` and may be seen."""
    base = f"/proc/{pid}/fd"
    found: set[str] = set()
    try:
        names = os.listdir(base)[:FDS_MAX]
    except OSError:
        return found
    for name in names:
        with contextlib.suppress(OSError):
            link = os.readlink(f"{base}/{name}")
            if link.startswith(starts):
                found.add(link)
    return found
