"""`python -m lifesign.drill.launch JSON COMMAND...`: apply limits to this process, then become COMMAND (the pid stays).

A separate program instead of code between fork and exec, which is unsafe in a process with threads. JSON: `open_files`,
`address_space_mib`, `cgroup` (file to write the pid to), `shm` (size in KiB of a private /dev/shm), `shm_read_only`.
"""

from __future__ import annotations

import json
import os
import resource
import sys


def main(argv: list[str]) -> None:
    """Never returns."""
    limits = json.loads(argv[0])
    command = argv[1:]
    if limits.get("cgroup"):
        with open(limits["cgroup"], "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    if limits.get("shm") or limits.get("shm_read_only"):
        options = f"size={limits['shm']}k" if limits.get("shm") else "ro"
        script = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
    if limits.get("open_files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"], limits["open_files"]))
    if limits.get("address_space_mib"):
        size = limits["address_space_mib"] << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
