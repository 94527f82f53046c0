"""Starting the engine so that it notices nothing: same stdin, a terminal where there was one, bytes unchanged.

The engine gets its own session (and so its own process group) per life. Its output goes to a pipe, or to a
pseudo-terminal in raw output mode where ours is a terminal, so that colours and progress bars stay. Stdout and stderr
share one channel when ours are the same file: then their order is exact. The log keeper reads the other end; guard
holds the same end open as well, so that not even the death of the keeper breaks the engine's pipe.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lifesign.errors import UsageError
from lifesign.guard.helpers import Helpers, python_command

F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 20


@dataclass
class Streams:
    """Both ends of the engine's output. `channels` are (our reading end, where the bytes go on to)."""

    child_out: int
    child_err: int
    channels: list[tuple[int, int]] = field(default_factory=list)
    terminals: list[int] = field(default_factory=list)

    def close_child_ends(self) -> None:
        """After the spawn: only the engine may hold these, or its end would never be seen."""
        for fd in {self.child_out, self.child_err}:
            with suppress(OSError):
                os.close(fd)

    def close(self) -> None:
        """Close our reading ends."""
        for fd, _ in self.channels:
            with suppress(OSError):
                os.close(fd)
        self.channels = []

    def copy_window_size(self, source_fd: int = 1) -> None:
        """Tell the engine's terminals the size of ours."""
        with suppress(OSError, termios.error):
            size = fcntl.ioctl(source_fd, termios.TIOCGWINSZ, b"\0" * 8)
            for fd in self.terminals:
                fcntl.ioctl(fd, termios.TIOCSWINSZ, size)


def open_streams(out_fd: int = 1, err_fd: int = 2) -> Streams:
    """Pipes or pseudo-terminals for stdout and stderr, as ours are. Raises OSError."""
    streams = Streams(-1, -1)
    streams.child_out = _open_channel(streams, out_fd)
    streams.child_err = streams.child_out if _same_file(out_fd, err_fd) else _open_channel(streams, err_fd)
    streams.copy_window_size(out_fd)
    return streams


def _open_channel(streams: Streams, target_fd: int) -> int:
    if os.isatty(target_fd):
        master, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST  # the real terminal adds carriage returns; twice would change the bytes
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        streams.terminals.append(master)
        streams.channels.append((master, target_fd))
        return slave
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.fcntl(read_fd, F_SETPIPE_SZ, PIPE_BYTES)
    streams.channels.append((read_fd, target_fd))
    return write_fd


def _same_file(left_fd: int, right_fd: int) -> bool:
    try:
        left, right = os.fstat(left_fd), os.fstat(right_fd)
    except OSError:
        return True
    return (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)


def spawn_engine(command: Sequence[str], environment: dict[str, str], streams: Streams) -> subprocess.Popen[bytes]:
    """Start the engine in a session of its own. Raises UsageError with a sentence when it can't be started."""
    try:
        return subprocess.Popen(
            list(command),
            stdin=None,
            stdout=streams.child_out,
            stderr=streams.child_err,
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        raise UsageError(explain_exec(command[0], error)) from error


def explain_exec(program: str, error: OSError) -> str:
    """One sentence on why a program can't be started, and what to do."""
    if error.errno == errno.ENOENT:
        if os.path.exists(program):
            return f"{program}: its interpreter (first line, after #!) does not exist; reinstall it or fix the path"
        return f"{program}: no such command; give the full path, or activate the environment that has it"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{program}: not allowed to run it; check that it is a file with the execute bit (chmod +x)"
    if error.errno == errno.ENOEXEC:
        return f"{program}: not a program of this machine; check its first line (#!) or its architecture"
    if error.errno in (errno.ENOMEM, errno.EAGAIN):
        return f"{program}: the system has no room for another process ({error.strerror}); see `lifesign check`"
    return f"{program}: could not be started ({error.strerror or error})"


@dataclass
class KeeperLink:
    """The log keeper's process and our end of the line to it."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    def send(self, message: dict[str, object]) -> None:
        """Ask for something; a keeper that is gone or busy is noticed elsewhere."""
        with suppress(OSError):
            self.control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    def receive(self) -> list[dict[str, object]]:
        """Every message that has arrived; `{"op": "gone"}` last when the keeper has ended."""
        messages: list[dict[str, object]] = []
        while len(messages) < 1000:
            try:
                raw = self.control.recv(1 << 16, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError:
                raw = b""
            if not raw:
                messages.append({"op": "gone"})
                return messages
            messages.append(json.loads(raw))
        return messages


def spawn_keeper(
    helpers: Helpers, streams: Streams, folder: Path, *, marks: list[str], segment_bytes: int, keep_bytes: int
) -> KeeperLink:
    """Start the log keeper on our reading ends. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    config = {
        "channels": streams.channels,
        "control": theirs.fileno(),
        "folder": str(folder),
        "marks": marks,
        "segment_bytes": segment_bytes,
        "keep_bytes": keep_bytes,
    }
    fds = {fd for channel in streams.channels for fd in channel} | {theirs.fileno()}
    try:
        process = helpers.start(
            python_command("lifesign.guard.logkeeper", json.dumps(config)),
            stdin=subprocess.DEVNULL,
            pass_fds=sorted(fds),
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return KeeperLink(process, ours)
