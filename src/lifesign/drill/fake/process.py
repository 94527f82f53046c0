"""What the three processes of the fake engine share: their log, their pipe, the fault that one of them carries."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass

from lifesign.drill.fake.dialect import RELEASES, Release
from lifesign.drill.model import Frame, Json, Role
from lifesign.drill.points import POINTS
from lifesign.vllm_plugin.faults import VARIABLE, Trigger


@dataclass(frozen=True, slots=True)
class Settings:
    """The command line of a fake engine; handed on to its children."""

    release: str = "0.32.0"
    port: int = 8000
    model: str = "/srv/model"
    workers: int = 1
    max_num_seqs: int = 4
    rpc_timeout_s: float = 300.0
    step_s: float = 0.02
    patient: bool = False

    def argv(self) -> list[str]:
        """The command line that makes the same settings again."""
        return ["--settings", json.dumps([getattr(self, name) for name in self.__slots__])]

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The inverse of `argv`."""
        return cls(*json.loads(text))


class Log:
    """Writes lines as the chosen release would. Each record goes out in one write, so processes don't tear it apart."""

    def __init__(self, release: Release, role: Role, rank: int = 0, ranks: int = 1) -> None:
        self.release = release
        self.prefix = release.prefix(role, os.getpid(), rank, ranks)

    def record(self, level: str, key: str, text: str) -> None:
        """A logger's record; every line of it gets the prefix and the position."""
        head = f"{self.prefix}{level} {time.strftime('%m-%d %H:%M:%S')} [{self.release.at[key]}] "
        self._write("\n".join(head + line for line in text.split("\n")) + "\n")

    def info(self, key: str, text: str) -> None:
        """An INFO record."""
        self.record("INFO", key, text)

    def error(self, key: str, text: str) -> None:
        """An ERROR record."""
        self.record("ERROR", key, text)

    def plain(self, text: str, prefixed: bool | None = None) -> None:
        """Text that no logger formats (tracebacks of dying processes); newer vLLM prefixes it before 0.3x only."""
        with_prefix = self.release.uvicorn_prefixed if prefixed is None else prefixed
        prefix = self.prefix if with_prefix else ""
        self._write("".join(f"{prefix}{line}\n" for line in text.split("\n")))

    def access(self, text: str) -> None:
        """A line of uvicorn."""
        self.plain(f"INFO:     {text}")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class Pipe:
    """JSON lines over a socket pair. `receive` gives None at the end of the stream and raises TimeoutError on time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    @classmethod
    def inherited(cls, number: int) -> Pipe:
        """The child's end, by its file descriptor."""
        return cls(socket.socket(fileno=number))

    def send(self, message: Json) -> bool:
        """Send; False when the other side is gone."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float | None = None) -> Json | None:
        """The next message."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.connection.settimeout(left)
            try:
                data = self.connection.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Raised:
    """An injected exception: what Python prints for it, its text, and the frames where it came from."""

    shown: str
    text: str
    frames: tuple[Frame, ...]


class Faults:
    """The fault that this process carries, if any; the same JSON that a real engine gets."""

    def __init__(self, role: Role, rank: int, release: Release) -> None:
        self._release = release
        self._trigger: Trigger | None = None
        raw = os.environ.get(VARIABLE)
        if not raw:
            return
        spec = json.loads(raw)
        if spec["process"] != role or (spec.get("rank") is not None and spec["rank"] != rank):
            return
        self._point = spec["point"]
        self._deeper = tuple(Frame(path, function, code, line) for path, function, code, line in spec.get("frames", []))
        self._trigger = Trigger(spec)

    def at(self, name: str) -> Raised | None:
        """Call at every point: does what the fault says when its turn has come; an exception is given back."""
        if self._trigger is None or self._point != name:
            return None
        error = self._trigger()
        if error is None:
            return None
        kind, text = type(error), str(error)
        shown = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        if shown == "torch.AcceleratorError":
            shown = self._release.accelerator_error
        return Raised(f"{shown}: {text}" if text else shown, text, POINTS[name].frames + self._deeper)


def name_process(name: str) -> None:
    """Set the short name that `ps` and `top` show, where the system has one (Linux)."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name[:15])
    except OSError:
        return


def release_of(settings: Settings) -> Release:
    """The dialect that the settings name."""
    return RELEASES[settings.release]
