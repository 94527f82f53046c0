"""Runs the real `lifesign guard` around a small fake engine, and sees to it that nothing of it survives the test."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lifesign.guard import procs

ENGINE = str(Path(__file__).with_name("fake_engine.py"))
PATIENCE_S = 40.0
LIFESIGN = [sys.executable, "-m", "lifesign.cli.main"]
OWN_TMP = Path(tempfile.mkdtemp(prefix="lg-", dir="/tmp"))
"""Short (socket paths), and of this test run alone: guards of other runs on the machine leave their folders elsewhere."""
atexit.register(shutil.rmtree, OWN_TMP, ignore_errors=True)


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
    """Poll until `condition` gives something true; AssertionError naming `what` otherwise."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {limit_s:g} s in vain for {what}")


class GuardRun:
    """One guard in a process group of its own. `said` is what it wrote to stderr, `shown` what came on stdout."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        engine: list[str] | None = None,
        engine_args: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        http: str = "off",
        patch: str = "",
    ) -> None:
        """`patch` is Python that the guard's process runs first: the way to break one part of it."""
        self.state = folder / "state"
        self.out_path, self.err_path = folder / "stdout", folder / "stderr"
        command = engine if engine is not None else [sys.executable, ENGINE, *engine_args]
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(OWN_TMP), **(env or {})}
        lifesign = [sys.executable, "-c", f"{patch}\nfrom lifesign.cli.main import main\nmain()"] if patch else LIFESIGN
        with self.out_path.open("ab") as out, self.err_path.open("ab") as err:
            self.process = subprocess.Popen(
                [*lifesign, "guard", "--state-dir", str(self.state), "--http", http, *options, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=environment,
            )

    @property
    def said(self) -> str:
        return self.err_path.read_text(errors="replace")

    @property
    def shown(self) -> str:
        return self.out_path.read_text(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        def there() -> bool:
            if self.process.poll() is not None and self.said.count(text) < count:
                raise AssertionError(f"guard ended ({self.process.returncode}) without {text!r}:\n{self.said[-3000:]}")
            return self.said.count(text) >= count

        wait_until(there, f"{text!r} in:\n{self.said[-2000:]}")

    def serving(self, count: int = 1) -> None:
        """Wait until the engine serves (for the `count`th time) and all of its processes bear their names."""
        self.wait_for("the engine serves", count)
        wait_until(lambda: self.pid("worker", missing=0), "a worker in life.json")

    def life(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            value = json.loads((self.state / "life.json").read_text())
            return value if isinstance(value, dict) else {}
        return {}

    def pid(self, role: str, missing: int | None = None) -> int:
        """Pid of the living process with that role."""
        for member in self.life().get("members", []):
            if member["role"] == role and not member["ended"] and procs.identify(member["pid"]):
                return int(member["pid"])
        if missing is None:
            raise AssertionError(f"no living {role} in {self.life()}")
        return missing

    def kill(self, role: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(role), number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, limit_s: float = PATIENCE_S) -> int:
        return self.process.wait(limit_s)

    def incidents(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted((self.state / "incidents").glob("*/incident.json")):
            incident = json.loads(path.read_text())
            incident["folder"] = path.parent
            report = path.parent / "report.json"
            incident["report"] = json.loads(report.read_text()) if report.exists() else {}
            found.append(incident)
        return found

    def finished_incidents(self) -> list[Path]:
        """Folders of the incidents that are complete, archive included."""
        return sorted(
            path.with_name(path.name.removesuffix(".tar.zst"))
            for path in (self.state / "incidents").glob("*.tar.zst")
            if not path.name.startswith(".")
        )

    def voice_log(self) -> str:
        """Guard's own log."""
        path = self.state / "guard.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def port(self) -> int:
        """Port of the pages (guard was started with port 0)."""
        found = wait_until(lambda: re.search(r"pages on http://127\.0\.0\.1:(\d+)", self.said), "the pages")
        return int(found.group(1))

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def marked(self) -> list[int]:
        """Pids of everything that still runs of this guard's lives."""
        ids = {path.name for path in (self.state / "logs").glob("*")}
        return [pid for pid in procs.all_pids() if procs.marker_of(pid) in ids]

    def tmps(self) -> list[Path]:
        """Temporary folders of this guard's lives that are still there."""
        base = Path(os.environ.get("TMPDIR") or "/tmp")
        ids = {path.name for path in (self.state / "logs").glob("*")}
        return [
            folder
            for life in ids
            for parent in {base, Path("/tmp")}
            if (folder := parent / f"lifesign-{life}").exists()
        ]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.marked():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def guard(folder: Path, *options: str, **more: Any) -> Iterator[GuardRun]:
    """A guard for the length of a block; whatever happens, nothing of it runs afterwards."""
    run = GuardRun(folder, "--backoff-scale", "0.02", *options, **more)
    try:
        yield run
    finally:
        run.end()
