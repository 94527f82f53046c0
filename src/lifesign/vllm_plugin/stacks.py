"""Where is it stuck? The stacks of worker processes, taken before anybody kills them.

Three ways, best first: py-spy (works on a stopped process too, where nothing else does), the worker's own faulthandler
(this plugin arms it for one signal in each worker), and what the kernel tells of any process. All bounded in time and
lines: this runs while an engine dies, and vLLM must get on with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

DUMP_SIGNAL = int(signal.SIGRTMIN) + 7
"""Unused by vLLM, torch and Python. Its default action would end the process, so it is sent only to those that catch it."""
PY_SPY_TIMEOUT_S = 3.0
BUDGET_S = 6.0
LINES_KEPT = 60
LINE_KEPT = 300
THREADS_READ = 512
GROUPS_KEPT = 12
NAMES_KEPT = 4
ANSWER_WAIT_S = 0.4
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def answer_dump_requests() -> None:
    """In a worker: print all Python stacks to stderr, the engine's log, when the executor asks for them."""
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
        faulthandler.register(DUMP_SIGNAL, file=sys.__stderr__ or 2, all_threads=True, chain=False)


def catches_dump_signal(pid: int) -> bool:
    """Whether the process has a handler for our signal; without one the signal would kill it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    for line in text.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (DUMP_SIGNAL - 1) & 1)
    return False


def stacks_of(pids: Sequence[int]) -> list[str]:
    """Lines for the log that say where these processes are; never raises, takes at most about `BUDGET_S` seconds."""
    deadline_s = time.monotonic() + BUDGET_S
    lines: list[str] = []
    for pid in pids:
        if time.monotonic() > deadline_s:
            lines.append(f"pid {pid}: skipped, no time left")
            continue
        lines += [_CONTROL.sub("?", line)[:LINE_KEPT] for line in _stack_of(pid)[:LINES_KEPT]]
    return lines


def _stack_of(pid: int) -> list[str]:
    """The best that can be had of one process."""
    spied = _py_spy(pid)
    if spied:
        return [f"pid {pid}, py-spy:", *spied]
    asked = False
    if state_of(pid) not in ("T", "t", "Z", "") and catches_dump_signal(pid):
        with contextlib.suppress(OSError):
            os.kill(pid, DUMP_SIGNAL)
            asked = True
            time.sleep(ANSWER_WAIT_S)
    said = "its Python stacks are printed next to this line" if asked else "no py-spy; kernel's view:"
    return [f"pid {pid}: {said}", *_kernel_view(pid)]


def state_of(pid: int) -> str:
    """The letter of /proc/PID/stat, or an empty text."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def find_py_spy() -> str | None:
    """py-spy beside this interpreter or on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _py_spy(pid: int) -> list[str]:
    """py-spy's dump; empty where it isn't installed or not allowed. Doesn't pause a process that is stopped already."""
    tool = find_py_spy()
    if tool is None:
        return []
    # Pausing a stopped process never returns; and a running one may be in the kernel for long.
    pause = ["--nonblocking"] if state_of(pid) in ("T", "t", "D") else []
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(pid), *pause],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PY_SPY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    return [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]


def _kernel_view(pid: int) -> list[str]:
    """Per thread: its name, state, and the kernel function it waits in; the kernel stack where we may read it."""
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except (OSError, ValueError):
        return [f"  pid {pid} is gone"]
    alike: dict[str, list[str]] = {}
    for thread in threads[:THREADS_READ]:
        where = f"/proc/{pid}/task/{thread}"
        status = _short(where + "/stat").rpartition(")")[2].split()
        stack = [part.split()[-1].split("+")[0] for part in _short(where + "/stack").splitlines()[:6] if part.split()]
        view = f"state {status[0] if status else '?'}, waits in {_short(where + '/wchan') or '-'}"
        view += f", kernel: {' < '.join(stack)}" if stack else ""
        alike.setdefault(view, []).append(f"{thread} {_short(where + '/comm')}")
    # A worker has some fifty threads, and most of them sleep in the same place: one line for all that do the same.
    groups = sorted(alike.items(), key=lambda item: (threads[0] not in item[1][0].split(), len(item[1])))
    lines = []
    for view, who in groups[:GROUPS_KEPT]:
        more = f" and {len(who) - NAMES_KEPT} more" if len(who) > NAMES_KEPT else ""
        lines.append(f"  thread{'s' if len(who) > 1 else ''} {', '.join(who[:NAMES_KEPT])}{more}: {view}")
    left = len(threads) - sum(len(who) for _, who in groups[:GROUPS_KEPT])
    if left:
        lines.append(f"  and {left} more threads")
    return lines


def _short(path: str) -> str:
    """The first part of a small /proc file; empty when it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(2000).strip()
    except OSError:
        return ""
