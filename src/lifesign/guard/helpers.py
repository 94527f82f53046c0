"""Short-lived tools that guard runs itself (py-spy, nvidia-smi, the diagnosis): bounded in time and output.

Guard reaps every child that comes its way (it may be PID 1). The registry keeps the reaper from taking the wait status
of a tool away from the thread that waits for it: a tool is registered under the same lock under which it is started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_OUTPUT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class HelperResult:
    """`code` is None when the tool could not be started or was ended for taking too long; `note` says which."""

    code: int | None
    output: str
    note: str = ""


class Helpers:
    """Runs tools and knows their pids."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._pids: set[int] = set()

    def owns(self, pid: int) -> bool:
        """Whether `pid` is one of our tools. Call with `lock` held to be safe against one that starts right now."""
        return pid in self._pids

    def start(self, argv: list[str], **options: object) -> subprocess.Popen[bytes]:
        """Start a long-lived helper; `forget` it when it has been waited for. Raises OSError."""
        with self.lock:
            process: subprocess.Popen[bytes] = subprocess.Popen(argv, **options)  # type: ignore[call-overload]
            self._pids.add(process.pid)
        return process

    def forget(self, pid: int) -> None:
        """The helper has been waited for."""
        with self.lock:
            self._pids.discard(pid)

    def run(self, argv: list[str], timeout_s: float, env: dict[str, str] | None = None) -> HelperResult:
        """Run a tool to its end; stdout and stderr together, cut to `MAX_OUTPUT_BYTES`. Never raises."""
        try:
            process = self.start(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )
        except OSError as error:
            return HelperResult(None, "", f"{argv[0]}: {error.strerror or error}")
        note = ""
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            note = f"{Path(argv[0]).name} gave no answer within {timeout_s:g} s"
            output = b""
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=1.0)
        finally:
            self.forget(process.pid)
        text = output[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
        return HelperResult(None if note else process.returncode, text, note)


def python_command(module: str, *arguments: str) -> list[str]:
    """A command line that runs `module.main(arguments)` with this Python and this copy of lifesign, from any folder.

    `-m` would put the current folder first on the path, where a stray `json.py` could shadow ours.
    """
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path[0:1] = [{root!r}]; from {module} import main; main(sys.argv[1:])"
    return [sys.executable, "-c", code, *arguments]
