"""Processes as the guard must see them: identified by pid *and* start time, so that no signal ever hits a stranger.

Pids are reused. Everything here therefore speaks of a `ProcId`: a pid together with the start time that the kernel
recorded (clock ticks since boot, field 22 of /proc/PID/stat). `signal_exactly` opens a pidfd first, compares the start
time, and only then signals through the pidfd: between the check and the signal the pid can't change its owner.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lifesign.text import is_whole

MARKER = "LIFESIGN_LIFE"
"""Environment variable that every process of one life inherits; its value is the id of the life."""

CMDLINE_BYTES = 8192
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace that every other one lies in (PROC_PID_INIT_INO of the kernel)."""
_TITLE = re.compile(r"VLLM::([A-Za-z]+)([A-Za-z0-9_]{0,60})")


class ProcId(NamedTuple):
    """A process for good: `start_ticks` is its start time in clock ticks since boot."""

    pid: int
    start_ticks: int


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that supervision needs. `exit_status` is a wait status, valid for a zombie only."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    start_ticks: int
    cpu_ticks: int
    exit_status: int

    @property
    def id(self) -> ProcId:
        """Pid and start time."""
        return ProcId(self.pid, self.start_ticks)


def parse_stat(raw: bytes) -> Stat | None:
    """`Stat` from the content of /proc/PID/stat; None when it is cut. The name may hold spaces and brackets."""
    left, right = raw.find(b"("), raw.rfind(b")")
    fields = raw[right + 2 :].split()
    if left < 0 or right < left or len(fields) < 20:
        return None
    return Stat(
        pid=int(raw[:left]),
        comm=raw[left + 1 : right].decode("utf-8", "replace"),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        exit_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def read_stat(pid: int) -> Stat | None:
    """The state of `pid` now, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read(4096))
    except (OSError, ValueError):
        return None


def identify(pid: int) -> ProcId | None:
    """The `ProcId` of a running process, or None."""
    stat = read_stat(pid)
    return stat.id if stat else None


def is_alive(proc: ProcId) -> bool:
    """Whether exactly this process still runs. A zombie doesn't: it only waits for its parent to read its status."""
    stat = read_stat(proc.pid)
    return stat is not None and stat.start_ticks == proc.start_ticks and stat.state not in "ZX"


def all_pids() -> list[int]:
    """Every pid that this mount of /proc shows."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if is_whole(name)]
    return []


def ended_children() -> list[int]:
    """Our children that have ended and wait for us to take their status (`waitid` names only the first of them)."""
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return []
    except ChildProcessError:
        return []
    me = os.getpid()
    stats = (stat for pid in all_pids() if (stat := read_stat(pid)) is not None)
    return [stat.pid for stat in stats if stat.ppid == me and stat.state == "Z"]


def pid_namespace() -> int:
    """The inode that names our pid namespace: pids mean nothing in another one. 0 when it can't be read."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def sees_everybody() -> bool:
    """Whether /proc shows the processes of all containers of this machine, and not only those of our own."""
    return pid_namespace() == INITIAL_PID_NAMESPACE


def read_cmdline(pid: int) -> list[str]:
    """The argument list of a process (cut to `CMDLINE_BYTES`); empty for kernel threads and zombies."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(CMDLINE_BYTES)
    except OSError:
        return []
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw else []


def read_environ(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it may not be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.split(b"=", 1) for part in raw.split(b"\0") if b"=" in part)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in pairs}


def marker_of(pid: int) -> str | None:
    """The life that a process belongs to by its environment, or None."""
    return read_environ(pid).get(MARKER)


def role_of(comm: str, cmdline: list[str]) -> tuple[str, str]:
    """(role, name) of an engine process from its title: `api`, `core`, `worker`, `coordinator`, `tracker` or `other`.

    vLLM names its processes `VLLM::EngineCore_DP0`, `VLLM::Worker_TP1` and so on; the name is what follows `VLLM::`.
    """
    title = cmdline[0] if cmdline else comm
    found = _TITLE.search(title[:200]) or _TITLE.search(comm)
    if found:
        kind, name = found.group(1).lower(), found.group(1) + found.group(2)
        if kind.startswith("enginecor"):
            return "core", name if name.startswith("EngineCore") else "EngineCore"  # the kernel's name is cut
        if kind.startswith("worker"):
            return "worker", name
        if kind.startswith("dpcoord"):
            return "coordinator", name
        if kind.startswith("api"):
            return "api", name
        return "other", name
    if any("resource_tracker" in part for part in cmdline[-3:]):
        return "tracker", "resource_tracker"
    return "other", comm


def signal_exactly(proc: ProcId, number: int) -> bool:
    """Send a signal to exactly this process. False when it has ended, or the pid belongs to another one by now.

    Raises PermissionError when the process belongs to somebody else.
    """
    try:
        fd = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # a kernel before 5.3: check, then signal, and live with the tiny gap
        if not is_alive(proc):
            return False
        with suppress(ProcessLookupError):
            os.kill(proc.pid, number)
            return True
        return False
    try:
        if not is_alive(proc):
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def boot_id() -> str:
    """Names this boot of the kernel: start times of an earlier boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 99` when there is no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_status(status: int) -> tuple[int | None, str | None]:
    """(exit code, signal name) of a wait status; exactly one of both is set."""
    if os.WIFSIGNALED(status):
        return None, signal_name(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status), None
