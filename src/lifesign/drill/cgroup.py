"""A memory cgroup for one drill: version 1 or 2, made before the engine starts and removed after it is gone."""

from __future__ import annotations

import contextlib
import secrets
import time
from pathlib import Path

from lifesign.text import T

ROOT = Path("/sys/fs/cgroup")


def _home() -> tuple[Path, bool] | None:
    """(folder in which groups can be made, whether it is version 2), or None."""
    first = ROOT / "memory"
    if (first / "memory.limit_in_bytes").exists():
        return first, False
    controllers = ROOT / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if "memory" in controllers.read_text().split():
            return ROOT, True
    return None


def why_no_memory_cgroup() -> T | None:
    """None when a memory cgroup can be made here, else the reason in words."""
    if _home() is None:
        return T("needs a memory cgroup controller", "需要 memory cgroup 控制器")
    try:
        MemoryCgroup(1024).remove()
    except OSError:
        return T("needs root (a memory cgroup)", "需要 root 权限（memory cgroup）")
    return None


class MemoryCgroup:
    """A fresh group with a limit of `mib` MiB and no swap. OSError when it can't be made."""

    def __init__(self, mib: int) -> None:
        home = _home()
        if home is None:
            raise OSError("no memory cgroup controller")
        base, second = home
        self.path = base / f"lifesign-drill-{secrets.token_hex(4)}"
        self.path.mkdir()
        try:
            limit = self.path / ("memory.max" if second else "memory.limit_in_bytes")
            limit.write_text(str(mib << 20))
            if second:
                with contextlib.suppress(OSError):
                    (self.path / "memory.swap.max").write_text("0")
        except OSError:
            self.path.rmdir()
            raise

    @property
    def members(self) -> Path:
        """The file into which a process writes its pid to join."""
        return self.path / "cgroup.procs"

    def remove(self) -> None:
        """Remove the group; waits up to 5 s for its last process to be gone."""
        for _ in range(50):
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)
            else:
                return
