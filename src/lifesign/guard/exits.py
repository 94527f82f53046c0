"""How did each process of an engine end? Asked without being its parent.

vLLM does not log it: a worker killed by SIGKILL reads `exit code: None` (a race), and the parent that knew is gone a
second later. Three sources, in this order: our own `waitpid` (children, and orphans that reached us because guard is a
child subreaper); the zombie's /proc/PID/stat; and from Linux 6.15 the pidfd itself, which keeps the wait status after
somebody else has reaped the process (ioctl PIDFD_GET_INFO with PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from contextlib import suppress

from lifesign.guard.procs import ProcId, read_stat

_PR_SET_CHILD_SUBREAPER = 36
_INFO_EXIT = 1 << 3
_INFO_SIZE = 64
_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11
MAX_WATCHED = 512
"""Open pidfds at a time; a compile storm must not eat the file table."""


def become_subreaper() -> bool:
    """Make orphans of our descendants our children, so that their wait status reaches us (prctl(2), Linux 3.4)."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def status_from_pidfd(fd: int) -> int | None:
    """Wait status of a process that has been reaped, from a pidfd that was opened while it lived; None if unknown."""
    info = bytearray(_INFO_SIZE)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    if not struct.unpack_from("=Q", info, 0)[0] & _INFO_EXIT:
        return None
    return int(struct.unpack_from("=i", info, 60)[0])


class ExitWatch:
    """Pidfds of the processes of one life. A pidfd becomes readable when its process ends."""

    def __init__(self) -> None:
        self._fds: dict[int, ProcId] = {}
        self._by_proc: dict[ProcId, int] = {}

    def add(self, proc: ProcId) -> int | None:
        """Watch a process; gives the pidfd to wait on, or None (too many, too old a kernel, or it is gone)."""
        if proc in self._by_proc:
            return self._by_proc[proc]
        if len(self._fds) >= MAX_WATCHED:
            return None
        try:
            fd = os.pidfd_open(proc.pid)
        except (OSError, AttributeError):
            return None
        stat = read_stat(proc.pid)
        if stat is None or stat.start_ticks != proc.start_ticks:
            os.close(fd)
            return None
        self._fds[fd] = proc
        self._by_proc[proc] = fd
        return fd

    def proc_of(self, fd: int) -> ProcId | None:
        """Whose pidfd this is."""
        return self._fds.get(fd)

    def status_of(self, proc: ProcId) -> int | None:
        """Wait status of a process that ended, if the zombie or the pidfd still tells; None if not."""
        stat = read_stat(proc.pid)
        if stat is not None and stat.start_ticks == proc.start_ticks:
            return stat.exit_status if stat.state in "ZX" else None
        fd = self._by_proc.get(proc)
        return status_from_pidfd(fd) if fd is not None else None

    def drop(self, proc: ProcId) -> int | None:
        """Stop watching; gives the closed pidfd, so that a selector can forget it."""
        fd = self._by_proc.pop(proc, None)
        if fd is not None:
            del self._fds[fd]
            with suppress(OSError):
                os.close(fd)
        return fd

    def close(self) -> None:
        """Close every pidfd."""
        for proc in list(self._by_proc):
            self.drop(proc)
