"""What was each process doing? Python and native stacks, and the kernel's view, before anything is killed.

Three ways, best first: py-spy (needs ptrace permission; `--nonblocking` for a process that is stopped or deep in the
kernel, the only way that works there); faulthandler, by the SIGABRT that ends a process which is to be killed anyway (its
stack goes to the log); and /proc: state, wait channel, kernel stack where permitted, per thread.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from lifesign.guard import procs
from lifesign.guard.helpers import Helpers
from lifesign.guard.probes.stacks import find_py_spy
from lifesign.guard.procs import ProcId

PYSPY_TIMEOUT_S = 4.0
STACKS_S = 4.5
"""For all processes together. A capture is waited for 6.5 s, and a tool that must be killed takes up to 1 s more."""
LEAST_S = 0.2
MAX_PARALLEL = 12
MAX_THREADS = 64
MAX_PROCESSES = 24


def ptrace_advice() -> str:
    """Why py-spy may not look, and what allows it."""
    scope = _read(Path("/proc/sys/kernel/yama/ptrace_scope"), 10)
    if scope in ("1", "2", "3") and os.geteuid() != 0:
        return f"kernel.yama.ptrace_scope is {scope}: run guard as root, or set it to 0, to get Python stacks"
    return "give the container CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE) to get Python stacks"


def python_stacks(
    helpers: Helpers, targets: list[ProcId], clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[ProcId, str]]:
    """Stacks of several processes by py-spy, each as soon as it is there: one that hangs must not cost the others theirs.

    All are over within about `STACKS_S`. A text that starts with `no Python stack` says why there is none.
    """
    pyspy = find_py_spy()
    if pyspy is None:
        text = "no Python stack: py-spy is not installed (pip install 'lifesign[stacks]')\n"
        yield from ((proc, text) for proc in targets)
        return
    deadline_s = clock() + STACKS_S

    def one(proc: ProcId) -> str:
        left_s = min(PYSPY_TIMEOUT_S, deadline_s - clock())
        if left_s < LEAST_S:
            return "no Python stack: there was no time left\n"
        try:
            return _python_stack(helpers, pyspy, proc, left_s)
        except Exception as error:  # the stacks of the others are worth more than this one
            return f"no Python stack: {type(error).__name__}: {error}\n"

    with ThreadPoolExecutor(max_workers=MAX_PARALLEL) as pool:
        waiting = {pool.submit(one, proc): proc for proc in targets[:MAX_PROCESSES]}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _python_stack(helpers: Helpers, pyspy: str, proc: ProcId, timeout_s: float) -> str:
    stat = procs.read_stat(proc.pid)
    if stat is None or stat.start_ticks != proc.start_ticks or stat.state in "ZX":
        return "no Python stack: the process has ended\n"
    argv = [pyspy, "dump", "--pid", str(proc.pid)]
    if stat.state in "TtD":  # pausing a stopped process never returns, and one in the kernel may stay there for long
        argv.append("--nonblocking")
    result = helpers.run(argv, timeout_s)
    if result.code == 0 and result.output.strip():
        return result.output
    reason = result.note or " ".join(result.output.split())[:300]
    hint = f"; {ptrace_advice()}" if "ermission" in reason or "EPERM" in reason else ""
    return f"no Python stack: {reason or 'py-spy failed'}{hint}\n"


def kernel_view(proc: ProcId) -> str:
    """State, wait channel, processor time and kernel stack of every thread, from /proc."""
    stat = procs.read_stat(proc.pid)
    if stat is None or stat.start_ticks != proc.start_ticks:
        return "the process has ended\n"
    base = Path(f"/proc/{proc.pid}")
    lines = [f"pid {proc.pid} {stat.comm!r} state {stat.state} parent {stat.ppid}"]
    for field in ("VmRSS", "VmHWM", "Threads", "SigCgt", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"):
        lines += [line for line in _read(base / "status", 8192).splitlines() if line.startswith(field)]
    try:
        threads = sorted(int(name) for name in os.listdir(base / "task"))
    except OSError:
        threads = []
    for thread in threads[:MAX_THREADS]:
        folder = base / "task" / str(thread)
        raw = _read(folder / "stat", 1024)
        one = procs.parse_stat(raw.encode()) if raw else None
        if one is None:
            continue
        wchan = _read(folder / "wchan", 128) or "?"
        schedstat = _read(folder / "schedstat", 128)
        lines.append(
            f"thread {thread} {one.comm!r} {one.state} wchan {wchan} cpu_ticks {one.cpu_ticks} schedstat {schedstat}"
        )
        stack = _read(folder / "stack", 4096)
        lines += [f"    {line}" for line in stack.splitlines()[:20]]
    if len(threads) > MAX_THREADS:
        lines.append(f"{len(threads) - MAX_THREADS} more threads left out")
    return "\n".join(lines) + "\n"


def abort_for_stack(proc: ProcId) -> bool:
    """End a process that is to be killed anyway by SIGABRT, so that its faulthandler prints its stacks into the log.

    Only when it catches SIGABRT (faulthandler is on); its core file is switched off first: a core of a process with
    hundreds of GiB would hold everything up.
    """
    mask = ""
    for line in _read(Path(f"/proc/{proc.pid}/status"), 8192).splitlines():
        if line.startswith("SigCgt:"):
            mask = line.split()[1]
    if not mask or not int(mask, 16) >> (signal.SIGABRT - 1) & 1:
        return False
    with suppress(OSError, ValueError):
        _, hard = resource.prlimit(proc.pid, resource.RLIMIT_CORE)
        # 1 byte: too small for a file, and the value at which the kernel skips a pipe to a core handler as well
        resource.prlimit(proc.pid, resource.RLIMIT_CORE, (1 if hard != 0 else 0, hard))
    with suppress(OSError):
        return procs.signal_exactly(proc, signal.SIGABRT)
    return False


def _read(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""
