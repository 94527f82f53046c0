"""One control group per life, where the system lets us make one (cgroup v2): membership that no process can shake off.

A process that goes into a session of its own, is handed to init and overwrites its environment (a title does) is no
longer known by parent, session or marker; its control group still is the life's. Nothing is limited and nothing is
signalled through the group: it only tells who belongs. In most containers the hierarchy is read-only; then the other
signs must do.

The group is looked for again by the next guard: its name carries the life's id, and the kernel forgets it at a reboot.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from lifesign.text import is_whole

PREFIX = "lifesign-"
MAX_PIDS = 4096
MAX_GROUPS = 256
EMPTY_AGE_S = 60.0


class LifeGroup:
    """The control group of one life, at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, pid: int) -> bool:
        """Put a process into the group; what it starts from now on is born in it. False when the system refuses."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def pids(self) -> set[int]:
        """The processes in the group and in groups that the engine made below it, as numbers of our pid namespace."""
        found: set[int] = set()
        for folder in self._folders():
            with suppress(OSError):
                words = (folder / "cgroup.procs").read_text().split()
                # 0: a process that our pid namespace doesn't show.
                found |= {int(word) for word in words[:MAX_PIDS] if is_whole(word) and word != "0"}
        return found

    def remove(self) -> bool:
        """Remove the group; False when something still runs in it (the kernel refuses then)."""
        for folder in reversed(self._folders()):
            with suppress(OSError):
                folder.rmdir()
        return not self.path.exists()

    def _folders(self) -> list[Path]:
        """The group and those below it, each after the one that holds it."""
        folders: list[Path] = []
        for folder, _, _ in os.walk(self.path):
            folders.append(Path(folder))
            if len(folders) >= MAX_GROUPS:
                break
        return folders


def make_group(life_id: str, pid: int, root: Path | None = None) -> LifeGroup | None:
    """A fresh group below guard's own one with process `pid` in it; None where that can't be had.

    What `pid` started before isn't in it: other signs know it. `root`: where version 2 is mounted.
    """
    home = _own_group(root)
    if home is None:
        return None
    _forget_empty(home)
    path = home / f"{PREFIX}{life_id}"
    try:
        path.mkdir()
    except OSError:
        return None
    group = LifeGroup(path)
    if not group.add(pid):
        group.remove()
        return None
    return group


def recorded_group(path: object, life_id: str) -> LifeGroup | None:
    """The group that a life's record names, if it is there still and really is that life's."""
    if not isinstance(path, str) or not life_id or Path(path).name != f"{PREFIX}{life_id}":
        return None
    folder = Path(path)
    with suppress(OSError):
        if os.path.isabs(path) and (folder / "cgroup.procs").is_file() and _is_cgroup(folder):
            return LifeGroup(folder)
    return None


def _forget_empty(home: Path) -> None:
    """Remove the groups of lives whose guard was killed and never came again, if nothing runs in them."""
    with suppress(OSError):
        for path in home.glob(f"{PREFIX}*"):
            with suppress(OSError):  # a young one may be another guard's, which is about to put its engine there
                group = LifeGroup(path)
                if time.time() - path.stat().st_mtime > EMPTY_AGE_S and not group.pids():
                    group.remove()


def _own_group(root: Path | None) -> Path | None:
    """The folder that shows guard's own group, checked by guard being in it: mounts and namespaces may tell other stories."""
    with suppress(OSError, ValueError):
        base = root or _mount()
        own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
        if base is None or not own:
            return None
        folder = base / own[0].lstrip("/")
        if str(os.getpid()) in (folder / "cgroup.procs").read_text().split():
            return folder
    return None


def _mount() -> Path | None:
    """Where cgroup version 2 is mounted, alone or beside version 1."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def _is_cgroup(folder: Path) -> bool:
    """Whether a folder lies in a mounted cgroup hierarchy: a record must not make us read and remove other folders."""
    mount = _mount()
    return mount is not None and mount in folder.parents and ".." not in folder.parts
