"""One engine that a drill started: its processes, its log, and the promise that nothing of it outlives the drill.

Every process inherits a mark in its environment, and the top process leads a session of its own; a process that carries the
mark, belongs to that session, or descends from one that did, is ours. Signals go to exactly these (pid and start time).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lifesign.drill.model import Role
from lifesign.errors import LifesignError
from lifesign.guard.clearance import remove_shm
from lifesign.guard.life import mapped_shm
from lifesign.guard.procs import ProcId, Stat, all_pids, read_cmdline, read_environ, read_stat, role_of, signal_exactly

MARK = "LIFESIGN_DRILL"
OURS_IN_SHM = ("psm_", "sem.mp-", "torch_", "vllm")


class Session:
    """Start with `Session(...)`; end with `close`, which is safe to call at any time and twice."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str], log: Path, work: Path) -> None:
        self.mark = secrets.token_hex(8)
        self.log = log
        self._known: dict[ProcId, str] = {}
        self._shm_seen: set[str] = set()
        with log.open("wb") as file:
            try:
                self.top = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment | {MARK: self.mark},
                    cwd=work,
                    start_new_session=True,
                )
            except OSError as error:
                raise LifesignError(
                    f"{argv[0]} can't be started: {error.strerror}. Check --engine and --python."
                ) from error
        self.started_s = time.monotonic()

    def processes(self) -> list[tuple[Stat, str]]:
        """(state, role) of each of our processes that still runs; also remembers them for `close`."""
        found: dict[int, Stat] = {}
        for pid in all_pids():
            stat = read_stat(pid)
            if stat is None or stat.state in "ZX":
                continue
            mine = stat.id in self._known or stat.session == self.top.pid or stat.ppid in found
            if mine or read_environ(pid).get(MARK) == self.mark:
                found[pid] = stat
        result = []
        for pid, stat in found.items():
            role = self._role(pid, stat)
            self._known[stat.id] = role
            result.append((stat, role))
        for pid in found:
            self._shm_seen |= mapped_shm(pid)
        return result

    def _role(self, pid: int, stat: Stat) -> str:
        cmdline = read_cmdline(pid)
        if "lifesign.drill.fake" in cmdline:
            return cmdline[cmdline.index("--role") + 1] if "--role" in cmdline else "api"
        return "api" if pid == self.top.pid else role_of(stat.comm, cmdline)[0]

    def find(self, role: Role, rank: int = 0) -> ProcId | None:
        """The process of a role; workers are counted in the order of their start."""
        ours = sorted((stat.start_ticks, stat.pid) for stat, name in self.processes() if name == role)
        return ProcId(ours[rank][1], ours[rank][0]) if rank < len(ours) else None

    def signal_group(self, number: int) -> None:
        """What a terminal does for Ctrl-C: the signal goes to every process of the foreground group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.top.pid, number)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code of the top process (negative: a signal), or None when it still runs after `timeout_s`."""
        try:
            return self.top.wait(timeout=max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def leftovers(self) -> dict[str, int]:
        """What a dead engine left: processes, names in /dev/shm, names in its TMPDIR."""
        left = [role for _, role in self.processes()]
        temporary = self.log.parent / "tmp"
        counts = {
            "processes": len(left),
            "shm": len(self._shm_there()),
            "tmp": len(os.listdir(temporary)) if temporary.is_dir() else 0,
        }
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        """End every process of ours with SIGKILL, reap the top one, remove shared memory that only we could have made."""
        end_s = time.monotonic() + 15.0
        while time.monotonic() < end_s:
            ours = self.processes()
            self.top.poll()
            if not ours:
                break
            for stat, _ in ours:
                with contextlib.suppress(PermissionError):
                    signal_exactly(stat.id, signal.SIGKILL)
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.top.wait(timeout=5.0)
        remove_shm(self._shm_there())

    def _shm_there(self) -> set[str]:
        """Segments that one of our processes has mapped, that bear an engine's names, and that are still there."""
        return {path for path in self._shm_seen if Path(path).name.startswith(OURS_IN_SHM) and os.path.exists(path)}
