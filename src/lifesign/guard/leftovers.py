"""What dead engines left behind: processes, shared memory, sockets, files. Found by facts, never by a name alone.

A process is a left-over when a guard's record names it (pid and start time) and that guard is gone, or when it is an
engine process whose parent is no engine: it was orphaned to init or to a reaper. A name (`VLLM::Worker`) only says
what to look at. A file is a left-over when nobody can be using it any more, in this container or another one:

    /dev/shm segment    no process has it mapped or open (the kernel says so: see `shm`)
    IPC socket          nobody listens: connecting is refused
    vllm_dist_*         older than every living engine, so none of them made it
    lifesign-LIFE       temporary folder of a life of which nothing runs: no lock, no process, no socket with a listener

That nobody uses a segment doesn't make it an engine's: `psm_*` is what every Python program's shared memory is called, and
one may want to come back to it. Only what an engine that is known to be dead had is `certain`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import stat as statmod
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lifesign.guard import procs
from lifesign.guard.environment import LIFE_ID
from lifesign.guard.life import mapped_shm, orphans_of
from lifesign.guard.procs import ProcId, Stat
from lifesign.guard.shm import Use, Users, inodes_of, unlink_unused
from lifesign.guard.sockets import listening, listening_inodes, socket_inodes
from lifesign.guard.statedir import is_locked, read_json
from lifesign.text import T

MIN_AGE_S = 60.0
TERM_S = 5.0
KILL_S = 5.0
ENGINE_ROLES = ("core", "worker", "coordinator", "api")
INITS = (
    "init", "systemd", "tini", "tini-static", "dumb-init", "docker-init", "catatonit", "s6-svscan", "supervisord", "runit",
    "pause", "containerd-shim", "conmon", "bash", "sh",
)  # fmt: skip
"""Programs that take in orphans, or sit at the top of a container; a server among them is recognised by its session."""
_UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
_LIFE_FOLDER = re.compile(rf"^lifesign-{LIFE_ID.pattern}$")
_SHM_ENGINES = ("nccl-", "vllm", "VLLM_")
_SHM_ANYBODYS = ("psm_", "sem.mp-", "torch_", "cuda.shm.")
DEVICE_PATHS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/renderD", "/dev/davinci", "/dev/accel")

Kind = Literal["process", "zombie", "shm", "socket", "file", "folder"]
Certainty = Literal["certain", "anybody's", "unseen users"]
"""`certain`: of a dead engine, and unused. `anybody's`: unused, but another program may have left it on purpose.
`unseen users`: a process that we can't see may be using it; such a thing is shown and never removed."""


@dataclass
class Leftover:
    """One thing. `why` is the fact that makes it a left-over; `holds` what a process keeps others from having."""

    kind: Kind
    name: str
    why: T
    proc: ProcId | None = None
    path: str = ""
    size_bytes: int = 0
    holds: list[str] = field(default_factory=list)
    certainty: Certainty = "certain"

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "certainty": self.certainty,
            "why": self.why.en,
            "pid": self.proc.pid if self.proc else None,
            "start_ticks": self.proc.start_ticks if self.proc else None,
            "path": self.path or None,
            "size_bytes": self.size_bytes,
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A living process with an engine's title."""

    stat: Stat
    role: str
    name: str


def engine_processes() -> list[EngineProcess]:
    """Every process with a title of vLLM, living or defunct."""
    found = []
    for pid in procs.all_pids():
        stat = procs.read_stat(pid)
        if stat is None:
            continue
        role, name = procs.role_of(stat.comm, procs.read_cmdline(pid))
        if role in ENGINE_ROLES:
            found.append(EngineProcess(stat, role, name))
    return found


def is_orphan(process: EngineProcess) -> T | None:
    """Why an engine process has no living engine above it; None when it has, or when its parent can't be seen."""
    if process.role == "api":
        return None  # a server is nobody's child by nature
    # The kernel gives every orphan a new parent. One that we can't see is outside our container (pid 0) or another user's.
    parent = procs.read_stat(process.stat.ppid)
    if parent is None:
        return None
    role, _ = procs.role_of(parent.comm, procs.read_cmdline(parent.pid))
    if role in ENGINE_ROLES:
        return None
    if parent.session == process.stat.session and parent.comm not in INITS:
        return None  # vLLM's children stay in their server's session: this is the server, or a program around vLLM
    if _is_guard(parent.pid):
        return None  # its guard takes care of it
    if parent.pid == 1 or parent.comm in INITS or parent.session != process.stat.session:
        return _HANDED.fill(name=parent.comm, pid=parent.pid)
    return None


def _is_guard(pid: int) -> bool:
    words = procs.read_cmdline(pid)
    return "guard" in words and any("lifesign" in word for word in words[:4])


def find_processes(state_dirs: list[Path], device_pids: set[int] | None = None) -> list[Leftover]:
    """Orphaned, recorded and defunct engine processes."""
    found: dict[ProcId, Leftover] = {}
    for proc, name, why in _recorded(state_dirs):
        found[proc] = Leftover("process", name, why, proc)
    for process in engine_processes():
        if process.stat.id in found:
            continue
        if process.stat.state in "ZX":
            parent = procs.read_stat(process.stat.ppid)
            who = f"{parent.comm} (pid {parent.pid})" if parent else "?"
            found[process.stat.id] = Leftover("zombie", process.name, _DEFUNCT.fill(who=who), process.stat.id)
            continue
        orphaned = is_orphan(process)
        if orphaned is not None:
            found[process.stat.id] = Leftover("process", process.name, orphaned, process.stat.id)
    for item in list(found.values()):
        if item.kind == "process" and item.proc is not None:
            for child in _descendants(item.proc.pid):
                if child.id not in found:
                    found[child.id] = Leftover(
                        "process", child.comm, _CHILD.fill(name=item.name, pid=item.proc.pid), child.id
                    )
    for item in found.values():
        if item.proc is not None and item.kind == "process":
            item.holds = holdings(item.proc.pid, device_pids)
    return list(found.values())


def _recorded(state_dirs: list[Path]) -> Iterator[tuple[ProcId, str, T]]:
    """Processes that the record of a guard names, when that guard is gone."""
    for path, record in _records(state_dirs):
        for proc, _, name in orphans_of(str(record.get("id", "")), record):
            yield proc, name, _RECORDED.fill(path=path)


def _records(state_dirs: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The lives of guards that are gone. A guard holds its folder's lock, wherever it runs; a pid is one container's."""
    for folder in state_dirs:
        record = read_json(folder / "life.json")
        if not record or record.get("ended") or is_locked(folder / "lock"):
            continue
        guard = record.get("guard") or [0, 0]
        with suppress(TypeError, ValueError, IndexError):
            if procs.is_alive(ProcId(int(guard[0]), int(guard[1]))):
                continue
        yield folder / "life.json", record


def recorded_shm(state_dirs: list[Path]) -> set[str]:
    """Paths of the shared memory that a life had whose guard is gone, in this boot."""
    names: set[str] = set()
    for _, record in _records(state_dirs):
        if record.get("boot_id") == procs.boot_id() and isinstance(record.get("shm"), list):
            names |= {name for name in record["shm"] if isinstance(name, str)}
    return names


def _descendants(pid: int) -> list[Stat]:
    stats = [stat for one in procs.all_pids() if (stat := procs.read_stat(one)) is not None]
    wanted, found = {pid}, list[Stat]()
    while True:
        more = [stat for stat in stats if stat.ppid in wanted and stat.pid not in wanted]
        if not more:
            return found
        found += more
        wanted |= {stat.pid for stat in more}


def holdings(pid: int, device_pids: set[int] | None = None) -> list[str]:
    """What a process keeps from others: devices, listening ports, shared memory."""
    held: list[str] = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith(DEVICE_PATHS) and target not in held:
                    held.append(target)
    if device_pids and pid in device_pids:
        held.append("device memory")
    mine = socket_inodes(pid)
    held += [f"port {port}" for port, inode in listening() if inode in mine]
    size = sum(_size(name) for name in mapped_shm(pid))
    if size:
        held.append(f"{size >> 20} MiB of /dev/shm")
    return held


def _size(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def find_files(
    now: float,
    *,
    shm: Path = Path("/dev/shm"),
    tmp: Path | None = None,
    recorded: Collection[str] = (),
    ended: Collection[tuple[int, int]] = (),
    users: Callable[[Path], Users] = Users,
) -> list[Leftover]:
    """Shared memory, sockets and files that nobody can be using any more. `now` in seconds since the epoch.

    `recorded` and `ended` make shared memory certain: paths of `recorded_shm`, inodes that processes had which are ended.
    """
    found = list(_unowned_shm(shm, now, recorded, ended, users))
    folder = tmp or Path(tempfile.gettempdir())
    oldest = min((_started(process) for process in engine_processes() if process.stat.state not in "ZX"), default=None)
    lives = {marker for pid in procs.all_pids() if (marker := procs.marker_of(pid))}
    for path in _entries(folder):
        with suppress(OSError):
            info = path.lstat()
            if info.st_uid not in (os.geteuid(), os.getuid()) and os.geteuid() != 0:
                continue
            if now - info.st_mtime < MIN_AGE_S:
                continue
            if statmod.S_ISSOCK(info.st_mode) and _UUID.match(path.name) and _refused(path):
                found.append(Leftover("socket", path.name, _SILENT, path=str(path)))
            elif statmod.S_ISREG(info.st_mode) and path.name.startswith("vllm_dist_"):
                if oldest is None or info.st_mtime < oldest:
                    seen: Certainty = "certain" if procs.sees_everybody() else "unseen users"
                    found.append(Leftover("file", path.name, _OLDER[seen], path=str(path), certainty=seen))
            elif statmod.S_ISDIR(info.st_mode) and _LIFE_FOLDER.match(path.name):
                if path.name.removeprefix("lifesign-") in lives or _in_use(path):
                    continue
                found.append(Leftover("folder", path.name, _NOTHING_RUNS, path=str(path)))
    return found


def _in_use(folder: Path) -> bool:
    """Whether the guard or the engine of a life's temporary folder still runs, here or in another container.

    Here the file in it says who they are. Elsewhere the guard is known by its lock on that file, and an engine whose guard
    is gone by the sockets on which it listens.
    """
    owner_file = folder / ".lifesign-owner"
    if is_locked(owner_file):
        return True
    owner = read_json(owner_file) or {}
    for part in ("guard", "top"):
        with suppress(KeyError, TypeError, ValueError):
            if procs.is_alive(ProcId(*(int(number) for number in owner[part]))):
                return True
    top = owner.get("top")
    session = top[0] if isinstance(top, list) and top else 0
    if any(process.stat.session == session for process in engine_processes()):
        return True
    return any(path.is_socket() and not _refused(path) for path in _entries(folder))


def _unowned_shm(
    folder: Path,
    now: float,
    recorded: Collection[str],
    ended: Collection[tuple[int, int]],
    users: Callable[[Path], Users],
) -> Iterator[Leftover]:
    candidates: dict[Path, os.stat_result] = {}
    for path in _entries(folder):
        with suppress(OSError):
            info = path.lstat()
            owned = info.st_uid == os.geteuid() or os.geteuid() == 0
            known = str(path) in recorded or (info.st_dev, info.st_ino) in ended
            named = path.name.startswith((*_SHM_ENGINES, *_SHM_ANYBODYS)) and now - info.st_mtime >= MIN_AGE_S
            if owned and statmod.S_ISREG(info.st_mode) and (known or named):
                candidates[path] = info
    if not candidates:
        return
    who = users(folder)
    for path, info in candidates.items():
        use = who.use(path, info)
        if use != "used":
            known = str(path) in recorded or (info.st_dev, info.st_ino) in ended
            certainty = _certainty(use, known or path.name.startswith(_SHM_ENGINES))
            yield Leftover(
                "shm", path.name, _UNMAPPED[certainty], path=str(path), size_bytes=info.st_size, certainty=certainty
            )


def _certainty(use: Use, engines: bool) -> Certainty:
    if use == "unknown":
        return "unseen users"
    return "certain" if engines else "anybody's"


def _refused(path: Path) -> bool:
    """Whether nobody listens on a Unix socket: only a refused connection proves it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
    return False


def _started(process: EngineProcess) -> float:
    """When a process started, in seconds since the epoch."""
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s + process.stat.start_ticks / os.sysconf("SC_CLK_TCK")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:20_000]
    except OSError:
        return []


def port_holder(port: int) -> str:
    """Who listens on a port: `python (pid 4711)`, or what can be said without permission; empty when nobody does."""
    inodes = listening_inodes(port)
    if not inodes:
        return ""
    for pid in procs.all_pids():
        if inodes & socket_inodes(pid):
            stat = procs.read_stat(pid)
            return f"{stat.comm if stat else '?'} (pid {pid})"
    return "a process that we may not look into (another user's, or outside this container)"


def end_processes(
    items: list[Leftover], *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> list[Leftover]:
    """SIGTERM, patience, SIGKILL, to exactly these processes; gives those that could not be ended, with the reason."""
    targets = [item for item in items if item.kind == "process" and item.proc is not None]
    refused: list[Leftover] = []
    for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        for item in targets:
            assert item.proc is not None
            try:
                procs.signal_exactly(item.proc, number)
            except PermissionError:
                if item not in refused:
                    item.why = _FOREIGN
                    refused.append(item)
        until_s = clock() + patience_s
        while (
            any(item.proc and procs.is_alive(item.proc) for item in targets if item not in refused)
            and clock() < until_s
        ):
            sleep(0.05)
    left = [item for item in targets if item not in refused and item.proc and procs.is_alive(item.proc)]
    for item in left:
        item.why = _UNKILLABLE
    return refused + left


def shm_inodes(items: list[Leftover]) -> set[tuple[int, int]]:
    """(device, inode) of the shared memory that these processes have: to be asked before they are ended."""
    found: set[tuple[int, int]] = set()
    for item in items:
        if item.proc is not None:
            with suppress(PermissionError):
                found |= inodes_of(item.proc.pid)
    return found


def remove(item: Leftover) -> str:
    """Remove a file, socket, segment or folder; gives the reason when that fails, else an empty text."""
    try:
        if item.kind == "folder":
            shutil.rmtree(item.path)
        elif item.kind == "shm":
            return unlink_unused(Path(item.path))
        else:
            os.unlink(item.path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


_HANDED = T("its parent is gone: it was handed to {name} (pid {pid})", "父进程已不在，被 {name}（pid {pid}）收养")
_DEFUNCT = T("defunct: its parent {who} has not read its exit status", "僵尸进程：父进程 {who} 没有回收它")
_CHILD = T("child of {name} (pid {pid})", "{name}（pid {pid}）的子进程")
_RECORDED = T("its guard is gone; named in {path}", "守护它的 guard 已不在；{path} 里有它的记录")
_FOREIGN = T(
    "not permitted: it belongs to another user; run as that user or as root",
    "没有权限：它属于别的用户；请以该用户或 root 身份执行",
)
_UNKILLABLE = T(
    "SIGKILL has no effect: it is in uninterruptible sleep (state D), usually inside a driver",
    "SIGKILL 无效：它处于不可中断睡眠（D 状态），通常卡在驱动里",
)
_SILENT = T("nobody listens on it", "没有进程在监听")
_NOTHING_RUNS = T("nothing of that life runs", "那次运行的进程都已不在")
_OLDER: dict[Certainty, T] = {
    "certain": T("older than every living engine", "比所有在运行的引擎都早"),
    "unseen users": T(
        "older than every engine in this container; outside of it one may use it",
        "比本容器里所有在运行的引擎都早；容器外可能有引擎在用",
    ),
}
_UNMAPPED: dict[Certainty, T] = {
    "certain": T("no process has it mapped or open", "没有进程映射或打开它"),
    "anybody's": T(
        "no process has it mapped or open, but any Python program may have made it",
        "没有进程映射或打开它，但任何 Python 程序都可能建过这样的段",
    ),
    "unseen users": T(
        "no process here has it mapped or open, but outside this container, or as another user, one may",
        "这里没有进程映射或打开它，但容器外或别的用户的进程可能在用",
    ),
}
