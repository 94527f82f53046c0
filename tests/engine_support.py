"""Start a real vLLM for a test, talk to it, break it, and leave nothing behind.

`EngineServer` owns one `vllm serve` in a session of its own. Everything it starts also carries a
mark in its environment, so that a process that left the session (or whose parent died) is found and ended as well. One server at a time: a file lock
shared by all clones on the machine keeps two tests from measuring each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from lifesign.vllm_plugin.shim import shimmed_environment

TOOLS = Path(__file__).resolve().parent.parent / "tools"
VERSION = os.environ.get("LIFESIGN_TEST_VLLM", "0.32.0")
READY_TIMEOUT_S = 180.0
MARK = "LIFESIGN_TEST_MARK"
SMALL = ("--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager", "--no-enable-prefix-caching")
"""Flags that make the tiny model start fast."""


def engine_path(kind: str, version: str = VERSION) -> Path:
    """What tools/engine_env.py says for `kind` (path or model); skips the test when the environment isn't built."""
    done = subprocess.run(
        [sys.executable, str(TOOLS / "engine_env.py"), kind, version],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(done.stderr.strip())
        pytest.skip(done.stderr.strip())
    return Path(done.stdout.strip())


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


LOCK = Path(tempfile.gettempdir()) / "lifesign-engine.lock"


def lock_is_inherited() -> bool:
    """Whether we run under `flock LOCK COMMAND`: an ancestor holds the lock, and waiting for it would never end."""
    pid = os.getpid()
    for _ in range(16):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") == str(LOCK):
                        return True
        process = read_process(pid)
        if process is None or process.ppid <= 1:
            return False
        pid = process.ppid
    return False


@contextlib.contextmanager
def one_engine_at_a_time() -> Iterator[None]:
    """Hold the machine's engine lock, unless an ancestor does."""
    if lock_is_inherited():
        yield
        return
    with LOCK.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass
class Process:
    """One process of the engine, as /proc shows it."""

    pid: int
    state: str
    ppid: int
    session: int
    start_ticks: int
    title: str

    @property
    def role(self) -> str:
        """worker, engine, api or other, from the process title that vLLM sets."""
        if "VLLM::Worker" in self.title:
            return "worker"
        if "VLLM::EngineCor" in self.title:
            return "engine"
        if "vllm" in self.title and "serve" in self.title:
            return "api"
        return "other"


def read_process(pid: int) -> Process | None:
    """The process, or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    comm = text[text.index("(") + 1 : text.rindex(")")]
    return Process(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]), title or comm)


def pids_of(session: int, mark: str) -> list[int]:
    """Every process in our session, and every one whose environment carries our mark.

    Neither is enough alone: vLLM's process titles overwrite the environment that /proc shows, and a process may leave
    the session. A session's number isn't reused while it has members.
    """
    needle = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        process = read_process(int(name))
        if process is None:
            continue
        if process.session == session:
            found.append(process.pid)
            continue
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{name}/environ").read_bytes():
                found.append(process.pid)
    return found


@dataclass
class Answer:
    """What a client saw of one completion."""

    status: int | None
    text: str
    seconds: float
    error: str = ""
    finish: str = ""

    @property
    def complete(self) -> bool:
        """Whether the request ended the way a user hopes for."""
        return self.status == 200 and not self.error and self.finish in ("length", "stop")


@dataclass
class EngineServer:
    """A real `vllm serve TINY` as a context manager; see `start` for what the fields mean."""

    args: Sequence[str] = SMALL
    env: Mapping[str, str] = field(default_factory=dict)
    version: str = VERSION
    model: Path | None = None
    shim: bool = True
    python_path: Sequence[str] = ()
    ready_timeout_s: float = READY_TIMEOUT_S
    wait_ready: bool = True

    def __enter__(self) -> EngineServer:
        self._stack = contextlib.ExitStack()
        try:
            self._stack.enter_context(one_engine_at_a_time())
            self.folder = Path(tempfile.mkdtemp(prefix="lifesign-engine-"))
            self.start()
            if self.wait_ready:
                self.wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.kill_all()
        finally:
            if hasattr(self, "folder"):
                shutil.rmtree(self.folder, ignore_errors=True)
            self._stack.close()

    def start(self) -> None:
        """Start the server in its own session, with its own TMPDIR and a cleaned environment; doesn't wait for it."""
        self.python = engine_path("path", self.version)
        self.model = self.model or engine_path("model", self.version)
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.mark = secrets.token_hex(8)
        self.log_path = self.folder / "server.log"
        self.tmp = self.folder / "tmp"
        self.tmp.mkdir()
        self.shm_before = set(os.listdir("/dev/shm"))
        environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("VLLM_", "LIFESIGN_", "PYTHON", "PYTEST", "PROMETHEUS")) and k != "VIRTUAL_ENV"
        }
        environment.update(
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1",
            TMPDIR=str(self.tmp),
            **{MARK: self.mark},
        )
        if self.python_path:
            environment["PYTHONPATH"] = os.pathsep.join(self.python_path)
        if self.shim:
            environment = shimmed_environment(environment, self.folder / "shim")
        environment.update(self.env)
        command = [
            str(self.python.parent / "vllm"),
            "serve",
            str(self.model),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        self.started_s = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *self.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                cwd=self.folder,
            )

    def wait_until_ready(self) -> float:
        """Wait for /health to answer 200; gives the seconds since the start. Fails with the log's end otherwise."""
        deadline_s = self.started_s + self.ready_timeout_s
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"vLLM exited with {self.process.returncode} before it was ready\n{self.log_tail()}"
                )
            if self.health() == 200:
                return time.monotonic() - self.started_s
            time.sleep(0.25)
        raise AssertionError(f"vLLM was not ready after {self.ready_timeout_s:.0f} s\n{self.log_tail()}")

    def health(self) -> int | None:
        """The status of /health, or None when nobody answers."""
        try:
            return httpx.get(f"{self.base_url}/health", timeout=3.0, trust_env=False).status_code
        except httpx.HTTPError:
            return None

    def metrics(self) -> str:
        """The text of /metrics."""
        return httpx.get(f"{self.base_url}/metrics", timeout=10.0, trust_env=False).text

    def complete(
        self, prompt: str = "hello", *, max_tokens: int = 8, stream: bool = False, timeout_s: float = 120.0, **more: Any
    ) -> Answer:
        """One greedy completion of exactly `max_tokens` tokens, as a client sees it."""
        body = {
            "model": str(self.model),
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": stream,
            **more,
        }
        began_s = time.monotonic()
        try:
            with httpx.Client(timeout=timeout_s, trust_env=False) as client:
                if stream:
                    return self._stream(client, body, began_s)
                reply = client.post(f"{self.base_url}/v1/completions", json=body)
        except httpx.HTTPError as error:
            return Answer(None, "", time.monotonic() - began_s, f"{type(error).__name__}: {error}")
        seconds = time.monotonic() - began_s
        if reply.status_code != 200:
            return Answer(reply.status_code, "", seconds, reply.text[:500])
        choice = reply.json()["choices"][0]
        return Answer(200, choice["text"], seconds, "", choice.get("finish_reason") or "")

    def _stream(self, client: httpx.Client, body: dict[str, Any], began_s: float) -> Answer:
        """The same, streamed; an error event inside a 200 stream counts as an error."""
        text, finish, error = "", "", ""
        with client.stream("POST", f"{self.base_url}/v1/completions", json=body) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    error = json.dumps(event["error"])[:500]
                    continue
                choice = event["choices"][0]
                text += choice["text"]
                finish = choice.get("finish_reason") or finish
            return Answer(reply.status_code, text, time.monotonic() - began_s, error, finish)

    def complete_many(self, prompts: Sequence[str], **options: Any) -> list[Answer]:
        """All prompts at once, one thread each; answers in the order of the prompts."""
        answers: list[Answer | None] = [None] * len(prompts)

        def ask(index: int) -> None:
            answers[index] = self.complete(prompts[index], **options)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answer if answer is not None else Answer(None, "", 0.0, "no answer") for answer in answers]

    def complete_batch(self, prompts: Sequence[str], *, max_tokens: int, timeout_s: float = 180.0) -> list[list[int]]:
        """Greedy token ids for all prompts, sent as one request; raises AssertionError when the request fails."""
        body = {
            "model": str(self.model),
            "prompt": list(prompts),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        reply = httpx.post(f"{self.base_url}/v1/completions", json=body, timeout=timeout_s, trust_env=False)
        assert reply.status_code == 200, reply.text[:500]
        choices = sorted(reply.json()["choices"], key=lambda choice: int(choice["index"]))
        return [[int(token) for token in choice["token_ids"]] for choice in choices]

    def in_background(self, call: Callable[[], Any]) -> BackgroundCall:
        """Start `call` in a thread; `.wait(timeout_s)` gives its result."""
        return BackgroundCall(call)

    def processes(self) -> list[Process]:
        """Every living process of this engine, the top process first."""
        found = [read_process(pid) for pid in pids_of(self.process.pid, self.mark)]
        return sorted((p for p in found if p is not None), key=lambda p: (p.pid != self.process.pid, p.pid))

    def by_role(self, role: str) -> list[Process]:
        """The engine's processes of one role (api, engine, worker), by pid."""
        return [p for p in self.processes() if p.role == role]

    def wait_exit(self, timeout_s: float) -> int | None:
        """The exit code of the top process, or None when it lives on after `timeout_s`."""
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def log(self) -> str:
        """All that the engine printed so far."""
        return self.log_path.read_bytes().decode("utf-8", "replace")

    def log_tail(self, lines: int = 40) -> str:
        """Errors and the end of the log, cut, for messages of failing tests."""
        all_lines = [line[:300] for line in self.log().splitlines()]
        errors = [line for line in all_lines[:-lines] if " ERROR " in line or "lifesign" in line]
        return "\n".join([*errors[-lines:], "...", *all_lines[-lines:]])

    def wait_for_log(self, needle: str, timeout_s: float) -> float:
        """Seconds until `needle` is in the log; fails when it doesn't come."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < timeout_s:
            if needle in self.log():
                return time.monotonic() - began_s
            time.sleep(0.05)
        raise AssertionError(f"{needle!r} was not logged within {timeout_s:.0f} s\n{self.log_tail()}")

    def leftovers(self) -> dict[str, list[str]]:
        """What a dead engine left: processes, names in its TMPDIR, new names in /dev/shm."""
        return {
            "processes": [f"{p.pid} {p.title[:60]}" for p in self.processes() if p.state != "Z"],
            "tmp": sorted(os.listdir(self.tmp)),
            "shm": sorted(set(os.listdir("/dev/shm")) - self.shm_before),
        }

    def kill_all(self) -> None:
        """SIGKILL everything that carries our mark, reap the top process, remove its shared memory."""
        if not hasattr(self, "process"):
            return
        deadline_s = time.monotonic() + 20.0
        while time.monotonic() < deadline_s:
            pids = pids_of(self.process.pid, self.mark)
            self.process.poll()
            if not [p for p in map(read_process, pids) if p is not None and p.state != "Z"]:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10.0)
        self._remove_shared_memory()

    def _remove_shared_memory(self) -> None:
        """Unlink segments that appeared while we ran, look like vLLM's, and that no process maps any more."""
        new = {
            n
            for n in set(os.listdir("/dev/shm")) - self.shm_before
            if n.startswith(("psm_", "sem.mp-", "torch_", "vllm"))
        }
        if not new:
            return
        mapped = ""
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    mapped += Path(f"/proc/{name}/maps").read_text(encoding="utf-8", errors="replace")
        for name in new:
            if f"/dev/shm/{name}" not in mapped:
                with contextlib.suppress(OSError):
                    os.unlink(f"/dev/shm/{name}")


class BackgroundCall:
    """A call in a thread, whose result or exception can be fetched with a bound."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as error:  # handed to the waiting thread
            self._error = error

    @property
    def running(self) -> bool:
        """Whether the call hasn't returned yet."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> Any:
        """The call's result; raises what it raised, or AssertionError when it takes longer than `timeout_s`."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise AssertionError(f"the call is still running after {timeout_s:.0f} s")
        if self._error is not None:
            raise self._error
        return self._result
