"""Does anybody use a file in shared memory: a process that we see, or one that we don't?

A look through /proc shows the processes of one pid namespace. /dev/shm can be shared more widely: containers with
--ipc=host, the containers of a pod, a bind mount. The kernel knows every user of a file, wherever it runs: it grants a
write lease only on a file that nobody else has open or mapped (fcntl(2), F_SETLEASE). Where leases say nothing (tmpfs
before Linux 5.3, some sandboxes, another user's file), /proc has to do, but only where it shows everybody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from lifesign.guard import procs

Use = Literal["used", "unused", "unknown"]
Lease = Literal["granted", "refused", "no answer"]


@contextmanager
def write_lease(path: Path) -> Iterator[Lease]:
    """Ask for a write lease. While it is "granted", nobody else has the file open or mapped, and nobody can open it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        yield "refused" if error.errno == errno.EWOULDBLOCK else "no answer"  # somebody else holds a lease
        return
    try:
        yield _ask(fd)
    finally:
        os.close(fd)  # gives the lease back


def _ask(fd: int) -> Lease:
    try:
        # When somebody wants the file meanwhile, the kernel signals us. SIGIO, its usual choice, would end this process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return "refused" if error.errno == errno.EAGAIN else "no answer"
    return "granted"


def leases_tell(folder: Path) -> bool:
    """Whether leases mean something in this folder, by trying: refused while we read a file of our own, granted after."""
    with suppress(OSError):
        fd, name = tempfile.mkstemp(prefix=".lifesign-", dir=folder)
        path = Path(name)
        try:
            os.close(fd)
            with path.open("rb"), write_lease(path) as shared:
                pass
            with write_lease(path) as alone:
                pass
            return (shared, alone) == ("refused", "granted")
        finally:
            path.unlink()
    return False


class Users:
    """Who uses the files of a folder in memory. Looks at all processes once, when it is made."""

    def __init__(
        self,
        folder: Path = Path("/dev/shm"),
        *,
        leases: Callable[[Path], bool] = leases_tell,
        sees_everybody: Callable[[], bool] = procs.sees_everybody,
    ) -> None:
        self.folder = folder
        self._leases = leases(folder)
        self._everybody = sees_everybody()
        self._seen: set[tuple[int, int]] = set()
        self._hidden_users: set[int] = set()
        for pid in procs.all_pids():
            try:
                self._seen |= inodes_of(pid, folder)
            except PermissionError:
                with suppress(OSError):
                    self._hidden_users.add(os.stat(f"/proc/{pid}").st_uid)

    def use(self, path: Path, info: os.stat_result) -> Use:
        """Whether a process, seen or not, has the file open or mapped."""
        if (info.st_dev, info.st_ino) in self._seen:
            return "used"
        if self._leases:
            with write_lease(path) as lease:
                pass
            if lease != "no answer":
                return "unused" if lease == "granted" else "used"
        return "unused" if self._everybody and info.st_uid not in self._hidden_users else "unknown"


def inodes_of(pid: int, folder: Path = Path("/dev/shm")) -> set[tuple[int, int]]:
    """(device, inode) of the files below `folder` that a process has mapped or open, whatever they are called there.

    Raises PermissionError when we may not look; a process that is gone has none.
    """
    found: set[tuple[int, int]] = set()
    prefix = f"{folder}/"
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                if prefix in line:
                    fields = line.split(None, 5)
                    major, _, minor = fields[3].partition(":")
                    found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(prefix):
                    info = os.stat(f"/proc/{pid}/fd/{name}")
                    found.add((info.st_dev, info.st_ino))
    except PermissionError:
        raise
    except (OSError, ValueError):
        pass
    return found


def unlink_unused(path: Path) -> str:
    """Remove a file that nobody uses; gives the reason when that can't be done, else an empty text.

    The lease is held meanwhile: who wants to open the file in this moment waits, and finds it gone.
    """
    with write_lease(path) as lease:
        if lease == "refused":
            return "in use by now"
        try:
            os.unlink(path)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
    return ""
