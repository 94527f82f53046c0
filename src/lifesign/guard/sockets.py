"""Who listens on a port of this network namespace? From /proc/net/tcp and the processes' descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

_LISTEN = "0A"


def listening() -> list[tuple[int, str]]:
    """(port, inode) of every TCP socket that listens here."""
    found: list[tuple[int, str]] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii", errors="replace") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTEN:
                    found.append((int(fields[1].rpartition(":")[2], 16), fields[9]))
    return found


def listening_inodes(port: int) -> set[str]:
    """Inodes of the sockets that listen on `port`."""
    return {inode for number, inode in listening() if number == port}


def socket_inodes(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open; empty when its descriptors may not be read."""
    inodes: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def listeners(port: int, pids: Iterable[int]) -> list[int]:
    """Which of `pids` listen on `port`."""
    wanted = listening_inodes(port)
    return [pid for pid in pids if wanted & socket_inodes(pid)] if wanted else []
