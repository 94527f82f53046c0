"""Memory limits and events of the control group an engine runs in (cgroup v2, or v1's memory controller).

A worker that the kernel killed for memory leaves no word of memory in vLLM's log: only the counter `oom_kill` of its
control group, and the kernel log, know. The counter is read when a life starts and when it ends.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path

from lifesign.text import is_whole

_V2_FILES = ("memory.current", "memory.max", "memory.high", "memory.peak", "memory.swap.current", "memory.swap.max")
_V1_FILES = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt")
_EVENT_FILES = ("memory.events", "memory.oom_control")
NEAR_END = "oom_kills_near_end"
NEAR_S = 120.0
LOOK_S = 2.0
_HOST_FIELDS = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "Shmem")


def memory_folder(pid: int, root: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The folder that shows the memory control group of a process; None when there is none to be seen."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / "memory" if "memory" in controllers.split(",") else root if not controllers else None
        if base is None:
            continue
        own = base / path.lstrip("/")
        # A group without the memory controller counts in the nearest one above that has it (an engine's own group has
        # none); inside a container the path may not be mounted.
        for folder in (own, *(above for above in own.parents if above == base or base in above.parents)):
            if any((folder / name).exists() for name in (*_EVENT_FILES, *_V1_FILES)):
                return folder
    return None


def read_memory(folder: Path | None) -> dict[str, int | str]:
    """Figures in bytes, and event counters as `events.oom_kill`; empty when nothing can be read."""
    values: dict[str, int | str] = {}
    if folder is None:
        return values
    for name in (*_V2_FILES, *_V1_FILES):
        with suppress(OSError, ValueError):
            text = (folder / name).read_text().strip()
            values[name] = int(text) if is_whole(text) else text
    return {**values, **_events(folder)}


def _events(folder: Path | None) -> dict[str, int]:
    values: dict[str, int] = {}
    if folder is None:
        return values
    for name in _EVENT_FILES:
        with suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                key, _, number = line.partition(" ")
                if is_whole(number):
                    values[f"events.{key}"] = int(number)
    return values


def oom_kills(before: dict[str, int | str], after: dict[str, int | str]) -> int:
    """Processes of the control group that the kernel killed for memory between two readings, or near the end of the life
    where `OomWatch` looked: a compiler that was killed during the start is no reason of a death hours later."""
    near = after.get(NEAR_END)
    if isinstance(near, int):
        return near
    first, last = before.get("events.oom_kill"), after.get("events.oom_kill")
    if not isinstance(first, int) or not isinstance(last, int):
        return 0
    return max(0, last - first)


class OomWatch:
    """Notes when the counter of killed processes grew. Call `look` as often as you like: it reads every two seconds."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._look_at_s = float("-inf")
        self._count: int | None = None
        self._grown: deque[tuple[float, int]] = deque(maxlen=1000)

    def look(self, now_s: float) -> None:
        """Read the counter if it is time."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            self._take(_events(self._folder).get("events.oom_kill"), now_s)

    def complete(self, after: dict[str, int | str], now_s: float) -> dict[str, int | str]:
        """The last reading, with the kills of the last minutes before `now_s`."""
        last = after.get("events.oom_kill")
        if self._count is None or not isinstance(last, int):
            return after
        self._take(last, now_s)
        return {**after, NEAR_END: sum(kills for at_s, kills in self._grown if at_s >= now_s - NEAR_S)}

    def _take(self, count: int | None, now_s: float) -> None:
        if count is None:
            return
        if self._count is not None and count > self._count:
            self._grown.append((now_s, count - self._count))
        self._count = count


def host_memory() -> dict[str, int]:
    """The host's memory in bytes, from /proc/meminfo."""
    values: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in _HOST_FIELDS:
                values[name] = int(rest.split()[0]) * 1024
    return values
