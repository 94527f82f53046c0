"""Before a new start: nothing of the last life may be in its way. Bounded waits; what stays in the way is said.

Removed are only things known to be of that life: shared memory that its processes had mapped (and nobody has mapped
now), and its private temporary folder with its sockets and rendezvous files. Waited for are the engine's port and the
device memory, which drivers give back some time after a process is gone.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lifesign.guard.evidence.devices import pids_on_devices
from lifesign.guard.helpers import Helpers
from lifesign.guard.life import Life
from lifesign.guard.shm import Users, unlink_unused

PORT_WAIT_S = 10.0
DEVICE_WAIT_S = 50.0


@dataclass
class Clearance:
    """What was removed, and what could not be cleared."""

    removed: list[str] = field(default_factory=list)
    in_the_way: list[str] = field(default_factory=list)


def clear(
    life: Life,
    helpers: Helpers,
    *,
    private_tmp: Path | None,
    address: tuple[str, int] | None,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Clearance:
    """Clean up after a life that has ended. `wait(seconds)` sleeps and gives False when guard is asked to stop."""
    result = Clearance()
    result.in_the_way += [f"{member.name} (pid {member.id.pid}) can't be ended" for member in life.running()]
    result.removed += remove_shm(life.shm)
    if life.group is not None and life.group.remove():
        result.removed.append(str(life.group.path))
    if private_tmp is not None and private_tmp.is_dir():
        shutil.rmtree(private_tmp, ignore_errors=True)
        result.removed.append(str(private_tmp))
    if address is not None:
        until_s = clock() + PORT_WAIT_S
        while not port_is_free(*address) and clock() < until_s and wait(0.25):
            pass
        if not port_is_free(*address):
            result.in_the_way.append(f"port {address[1]} is held by another program")
    ours = {proc.pid for proc in life.members}
    until_s = clock() + DEVICE_WAIT_S
    while (holders := pids_on_devices(helpers)) and holders & ours and clock() < until_s and wait(1.0):
        pass
    if holders and holders & ours:
        result.in_the_way.append(f"device memory is still held by {sorted(holders & ours)}")
    return result


def remove_shm(names: set[str]) -> list[str]:
    """Remove files in /dev/shm that no process uses any more, in this container or another; gives those that were removed.

    A segment is not ours alone: a KV cache server in the next container may have made it. Where nobody can tell whether
    a process that we don't see uses it, it goes all the same: our life had it, and that life has ended.
    """
    ours = {name for name in names if Path(name).parent == Path("/dev/shm") and os.path.exists(name)}
    if not ours:
        return []
    users = Users()
    removed = []
    for name in sorted(ours):
        with suppress(OSError):
            if users.use(Path(name), os.lstat(name)) != "used" and not unlink_unused(Path(name)):
                removed.append(name)
    return removed


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now (connections in TIME_WAIT don't count, as for servers)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno not in (errno.EADDRINUSE, errno.EACCES)
    return True
