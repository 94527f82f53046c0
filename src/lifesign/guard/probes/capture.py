"""Keeps what /proc and the stacks say about an engine at the moment when something is suspect. Reads only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from lifesign.errors import SourceError
from lifesign.guard.probes.stacks import find_py_spy
from lifesign.guard.probes.tree import EngineTree

FILES = ("status", "stat", "schedstat", "wchan", "stack", "syscall", "io", "cgroup")
FILE_BYTES = 64 << 10
THREADS_KEPT = 256
STACKS_S = 5.0
PROCESSES_KEPT = 32


def capture(tree: EngineTree, folder: Path, why: str) -> Path:
    """Write one file with the state of every process of the engine; gives its path.

    Takes some seconds at most. Raises SourceError if the folder can't be written.
    """
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{why.lower()}-{tree.root}.txt"
    program = find_py_spy()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            for one in tree.members[:PROCESSES_KEPT]:
                out.write(f"=== {one.name} ({one.role}, pid {one.pid})\n")
                for name in FILES:
                    out.write(f"--- {name}\n{_read(f'/proc/{one.pid}/{name}')}\n")
                out.write(f"--- threads (state, where the kernel waits)\n{_threads(one.pid)}\n")
                if program is not None and one.role in ("engine", "worker"):
                    out.write(f"--- stacks\n{_stacks(program, one.pid)}\n")
    except OSError as error:
        raise SourceError(str(path), f"can't be written ({error.strerror}); choose another folder for --save") from None
    return path


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(FILE_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        return f"(can't be read: {error.strerror})"


def _threads(pid: int) -> str:
    lines = []
    with contextlib.suppress(OSError):
        for thread in sorted(os.listdir(f"/proc/{pid}/task"))[:THREADS_KEPT]:
            base = f"/proc/{pid}/task/{thread}"
            state = _read(f"{base}/stat").rpartition(")")[2].split()[:1]
            lines.append(f"{thread} {''.join(state)} {_read(f'{base}/comm')} {_read(f'{base}/wchan')}")
    return "\n".join(lines)


def _stacks(program: str, pid: int) -> str:
    """py-spy's dump; a stopped process can only be read without stopping it, so that is how all are read."""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=STACKS_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"(no stacks: {type(error).__name__})"
    return (done.stdout or done.stderr)[: 4 * FILE_BYTES].decode("utf-8", "replace")
