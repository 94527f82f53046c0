"""A fake engine of real, small processes, and a running `lifesign watch`, as objects that a test can talk to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Engine:
    """A running fake engine. `close` ends every process of it, stopped ones too."""

    def __init__(self, folder: Path, *options: str) -> None:
        env = {**os.environ, "LIFESIGN_BEACON_DIR": str(folder / "beacons")}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "fake_engine.py"), "server", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
        )
        assert self.process.stdout is not None
        about: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.server, self.core, self.workers, self.port = (
            about["server"],
            about["core"],
            about["workers"],
            about["port"],
        )

    def signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def close(self) -> None:
        for pid in (self.server, self.core, *self.workers):
            self.signal(pid, signal.SIGKILL)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Watch:
    """A running `lifesign watch`, with what it has printed so far."""

    def __init__(self, *arguments: str) -> None:
        env = {**os.environ, "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lifesign.cli.main", "watch", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Read until a line holds `text`; gives the line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came; rc {self.process.wait()}\n{''.join(self.lines)}\n{self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def finish(self, timeout_s: float = 90.0) -> tuple[int, str, str]:
        """(exit code, standard output, standard error) at its end."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, "".join(self.lines) + out, err

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=20)
