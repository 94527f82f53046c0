"""What a fault needs from the machine, and why it can't be had: a fault that can't be injected is skipped, never passed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lifesign.drill.cgroup import why_no_memory_cgroup
from lifesign.drill.model import Fault
from lifesign.text import T


def _no_linux() -> T | None:
    return None if sys.platform == "linux" else T("needs Linux", "需要 Linux")


def _no_mount_namespace() -> T | None:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return T("needs the programs unshare and mount", "需要 unshare 和 mount 命令")
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=10, check=False)
    return (
        None
        if tried.returncode == 0
        else T("needs root (a mount namespace of its own)", "需要 root 权限（独立的挂载命名空间）")
    )


def _no_second_cpu() -> T | None:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return None if count >= 2 else T("needs two CPUs", "需要两个 CPU")


CHECKS: dict[str, Callable[[], T | None]] = {
    "linux": _no_linux,
    "memory-cgroup": why_no_memory_cgroup,
    "mount-namespace": _no_mount_namespace,
    "two-cpus": _no_second_cpu,
}


def missing(fault: Fault) -> T | None:
    """The first thing that this machine lacks for a fault, in words; None when it can be injected."""
    for name in fault.needs:
        reason = CHECKS[name]()
        if reason is not None:
            return reason
    if fault.start.model_id and fault.start.model_id.startswith("/") and Path(fault.start.model_id).exists():
        return T("{path} exists on this machine", "本机上存在 {path}").fill(path=fault.start.model_id)
    return None
