"""The folder where guard keeps what must survive it: one guard at a time, every file written whole or not at all.

```
DIR/lock             held while a guard runs (flock: gone with the guard, even after SIGKILL)
DIR/life.json        the life that runs now: processes with start times; `ended` once it was taken care of
DIR/policy.json      memory of the restart policy
DIR/logs/LIFE/       log segments of a life
DIR/incidents/ID/    bundles, and ID.tar.zst beside them
DIR/reserve          a few MiB that are given back to a full disk before an incident is written
```
A folder that can't be written is no reason not to run the engine: guard says so and uses a fallback folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from lifesign.errors import UsageError

RESERVE_BYTES = 4 << 20
MAX_JSON_BYTES = 8 << 20


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the old or the new content and nothing else. Raises OSError."""
    partial = path.with_name(f".{path.name}.part")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    except OSError:
        os.close(fd)
        with suppress(OSError):
            partial.unlink()
        raise
    os.close(fd)
    partial.rename(path)
    if durable:
        sync_folder(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """`write_atomically` of indented JSON; what is no text (a word of a command line may be any bytes) becomes `?`. Raises OSError."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    write_atomically(path, text.encode("utf-8", "replace"), durable=durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when it is missing, cut, too large or something else than an object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return None
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable; file systems that can't are let be."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def is_locked(path: Path) -> bool:
    """Whether somebody holds a lock on the file, also from another container or, on NFS, another machine.

    True as well when that can't be learned, and False when there is no such file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class StateDir:
    """Paths, lock and reserve. `fallback_note` is set when the wanted folder could not be used."""

    def __init__(self, wanted: Path) -> None:
        self.fallback_note = ""
        self.root = wanted.absolute()
        self._lock_fd = -1

    def open(self) -> None:
        """Create the folders and take the lock. Raises UsageError when another guard holds it."""
        try:
            self._claim(self.root)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES) and (self.root / "lock").exists() and self._is_held():
                raise UsageError(
                    f"{self.root}: another guard runs with this state folder; give each engine its own --state-dir"
                ) from error
            reason = error.strerror or str(error)
            fallback = Path(tempfile.mkdtemp(prefix="lifesign-state-"))
            self.fallback_note = f"{self.root} can't be used ({reason}); state and incidents go to {fallback}"
            self.root = fallback
            self._claim(fallback)
        self._reserve()

    def _claim(self, root: Path) -> None:
        for folder in (root, root / "logs", root / "incidents"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe = root / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd

    def _is_held(self) -> bool:
        return is_locked(self.root / "lock")

    def _reserve(self) -> None:
        """Set the reserve aside, for real blocks: a sparse file would promise what the disk can't give."""
        path = self.root / "reserve"
        with suppress(OSError):
            if path.exists() and path.stat().st_size >= RESERVE_BYTES:
                return
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)

    def release_reserve(self) -> None:
        """Give the reserve back to the disk."""
        with suppress(OSError):
            (self.root / "reserve").unlink()

    def restore_reserve(self) -> None:
        """Set it aside again once an incident is written; on a disk that is still full, that fails silently."""
        self._reserve()

    def close(self) -> None:
        """Give the lock back."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @property
    def life_path(self) -> Path:
        """The record of the life that runs now."""
        return self.root / "life.json"

    @property
    def policy_path(self) -> Path:
        """The memory of the restart policy."""
        return self.root / "policy.json"

    @property
    def incidents(self) -> Path:
        """The folder of the bundles."""
        return self.root / "incidents"

    def log_folder(self, life_id: str) -> Path:
        """Where the log segments of a life go."""
        return self.root / "logs" / life_id

    def prune(self, *, keep_incidents: int, keep_log_bytes: int, current: str) -> None:
        """Remove the oldest bundles, and what is left of the oldest lives, beyond what shall be kept.

        Logs of ended lives are kept up to `keep_log_bytes`; of pictures and recordings that no bundle took in, as many
        as of bundles.
        """
        bundles = sorted(path.name for path in _listing(self.incidents) if path.is_dir())
        for name in bundles[: max(0, len(bundles) - keep_incidents)]:
            shutil.rmtree(self.incidents / name, ignore_errors=True)
            with suppress(OSError):
                (self.incidents / f"{name}.tar.zst").unlink()
        lives = sorted((path for path in _listing(self.root / "logs") if path.is_dir()), key=lambda path: path.name)
        total = 0
        for folder in reversed(lives):
            total += sum(_size(file) for file in _listing(folder))
            if total > keep_log_bytes and folder.name != current:
                shutil.rmtree(folder, ignore_errors=True)
        for name in ("captures", "events"):
            stale = sorted(path for path in _listing(self.root / name) if path.stem != current)
            for path in stale[: max(0, len(stale) - keep_incidents)]:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        path.unlink()


def _size(file: Path) -> int:
    """Bytes of a file; 0 for one that a compression has just replaced."""
    with suppress(OSError):
        return file.stat().st_size
    return 0


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
