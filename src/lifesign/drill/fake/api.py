"""The fake API server: /health, /v1/models, /v1/completions (plain and streamed) and a few metrics, on the loopback only."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from lifesign.drill.fake import chains
from lifesign.drill.fake.core import SEGFAULT_TEXT
from lifesign.drill.fake.process import Log, Pipe, Settings, name_process, release_of
from lifesign.drill.model import Json

BODY_CAP_BYTES = 1 << 20
DEAD_BODY = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
LOGO = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)


class Server:
    """The top process: owns EngineCore and the open requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.release = release_of(settings)
        self.log = Log(self.release, "api")
        self.errored = False
        self.stopping = False
        # Not an Event: its `set` in a signal handler can wait for the lock that the interrupted `wait` holds.
        self.stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.open: dict[str, queue.Queue[Json | None]] = {}
        self.count = 0
        self.tokens = 0
        self.http: ThreadingHTTPServer | None = None

    def run(self) -> int:
        """Start everything, serve, and come back with the exit code (0 after an engine death: vLLM does the same)."""
        name_process("VLLM::APIServer")
        self._say_hello()
        try:
            listening = _Http(self)
            listening.server_bind()
        except OSError as error:
            self.log.plain(f"OSError: [Errno {error.errno}] Address already in use")
            return 1
        self._start_core()
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        first = self.pipe.receive()
        if first is None or "dead" in first:
            self.core.wait(timeout=10)
            code = self.core.returncode
            self.log.plain(chains.init_failed(self.release, {self.release.core_name: code} if code < 0 else {}))
            return 1
        listening.server_activate()
        self.http = listening
        self._say_ready()
        threading.Thread(target=self._read_outputs, daemon=True).start()
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.stops.get()
        self._shut_down(listening)
        return 0

    def _say_hello(self) -> None:
        if self.release.banner:
            for line in LOGO:
                self.log.info("hello", line.format(version=self.release.version, model=self.settings.model))
        else:
            self.log.info("hello", f"vLLM API server version {self.release.version}")
        arguments = {
            "model_tag": self.settings.model,
            "host": "127.0.0.1",
            "port": self.settings.port,
            "model": self.settings.model,
        }
        self.log.info(
            "args",
            f"non-default args: {arguments | {'max_model_len': 4096, 'max_num_seqs': self.settings.max_num_seqs}}",
        )
        self.log.info("arch", "Resolved architecture: LlamaForCausalLM")
        self.log.info("chunked", "Chunked prefill is enabled with max_num_batched_tokens=2048.")

    def _say_ready(self) -> None:
        self.log.info("start", f"Starting vLLM server on http://127.0.0.1:{self.settings.port}")
        self.log.access(f"Started server process [{os.getpid()}]")
        self.log.access("Waiting for application startup.")
        self.log.access("Application startup complete.")

    def _start_core(self) -> None:
        ours, theirs = socket.socketpair()
        self.pipe = Pipe(ours)
        command = [sys.executable, "-m", "lifesign.drill.fake", "--role", "core", "--fd", str(theirs.fileno())]
        self.core = subprocess.Popen([*command, *self.settings.argv()], pass_fds=[theirs.fileno()])
        theirs.close()

    def _on_stop(self, number: int, _frame: object) -> None:
        self.stop_signal = number
        self._stop()
        if self.http is None:
            self.core.terminate()
            sys.exit(1 if number == signal.SIGINT else -number)

    def _stop(self) -> None:
        self.stopping = True
        self.stops.put(None)

    def submit(self, body: dict[str, Any]) -> tuple[str, queue.Queue[Json | None]]:
        """Hand a request to EngineCore; its outputs arrive in the queue, None when the engine is dead."""
        outputs: queue.Queue[Json | None] = queue.Queue()
        with self.lock:
            self.count += 1
            name = f"cmpl-{os.getpid():x}{self.count:08x}"
            self.open[name] = outputs
        wanted = body.get("max_tokens", 16)
        left = wanted if isinstance(wanted, int) and 0 < wanted <= 4096 else 16
        sent = self.pipe.send(
            {"id": name, "left": left, "grammar": "response_format" in body or "structured_outputs" in body}
        )
        if self.errored or not sent:
            outputs.put(None)
        return name, outputs

    def forget(self, name: str) -> None:
        """The request is over."""
        with self.lock:
            self.open.pop(name, None)

    def _read_outputs(self) -> None:
        told = False
        while True:
            message = self.pipe.receive()
            if message is None or "dead" in message:
                told = message is not None
                break
            self.tokens += 1
            with self.lock:
                waiting = self.open.get(str(message["id"]))
            if waiting is not None:
                waiting.put(message)
        if self.stopping:
            return
        self._engine_died(told)

    def _engine_died(self, told: bool) -> None:
        """What the API server does and says when EngineCore is gone: report, fail the open requests, leave with code 0."""
        if not told:
            self._say_core_gone()
        self.errored = True
        self.log.error("output_handler", f"AsyncLLM output_handler failed.\n{chains.output_handler(self.release)}")
        with self.lock:
            waiting = list(self.open.values())
        if waiting:
            self.log.error("serving", f"Error in completion stream generator.\n{chains.stream_error(self.release)}")
        for outputs in waiting:
            outputs.put(None)
        time.sleep(0.3)
        self._stop()

    def _say_core_gone(self) -> None:
        try:
            code: int | None = self.core.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        if code == -signal.SIGSEGV:
            self.log.plain(SEGFAULT_TEXT, prefixed=False)
        if self.release.shutdown_lines:
            self.log.record(
                "WARNING", "core_died", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
            )
        else:
            self.log.error(
                "core_died", f"Engine core proc {self.release.core_name} died unexpectedly, shutting down client."
            )

    def _shut_down(self, listening: ThreadingHTTPServer) -> None:
        asked = not self.errored
        if asked and self.release.shutdown_lines:
            self.log.info("start", "[shutdown] API server: shutdown triggered")
            self.log.info("start", "[shutdown] API server: stopping engine client mode=abort timeout=0s")
        if self.core.poll() is None:
            self.core.send_signal(signal.SIGCONT)
            self.core.terminate()
            try:
                self.core.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                self.core.kill()
        with self.lock:
            waiting = list(self.open.values())
        for outputs in waiting:
            outputs.put(None)
        time.sleep(0.05)
        for text in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self.log.access(text)
        listening.shutdown()
        listening.server_close()
        self.log.access(f"Finished server process [{os.getpid()}]")


class _Http(ThreadingHTTPServer):
    """The listening socket; knows whose it is."""

    daemon_threads = True

    def __init__(self, owner: Server) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", owner.settings.port), _Handler, bind_and_activate=False)


class _Handler(BaseHTTPRequestHandler):
    """One HTTP request."""

    protocol_version = "HTTP/1.1"

    @property
    def owner(self) -> Server:
        """The fake API server that this request came to."""
        return cast(_Http, self.server).owner

    def log_message(self, format: str, *args: object) -> None:
        """Silence the standard library's own access log; `_answer` writes vLLM's."""

    def _answer(self, code: int, body: bytes, kind: str = "application/json") -> None:
        reason = {
            200: "OK",
            404: "Not Found",
            400: "Bad Request",
            500: "Internal Server Error",
            503: "Service Unavailable",
        }[code]
        host, port = self.client_address[:2]
        self.owner.log.access(f'{host}:{port} - "{self.command} {self.path[:80]} HTTP/1.1" {code} {reason}')
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(503 if self.owner.errored else 200, b"")
        elif self.path == "/metrics":
            lines = (
                f"vllm:num_requests_running {len(self.owner.open)}",
                f"vllm:generation_tokens_total {self.owner.tokens}",
            )
            self._answer(200, "\n".join((*lines, "")).encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            self._answer(
                200,
                json.dumps({"object": "list", "data": [{"id": self.owner.settings.model, "object": "model"}]}).encode(),
            )
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(min(size, BODY_CAP_BYTES))
        try:
            body = json.loads(raw)
        except ValueError:
            self._answer(400, b'{"error":{"message":"JSON decode error","type":"Bad Request","code":400}}')
            return
        if self.path not in ("/v1/completions", "/v1/chat/completions") or not isinstance(body, dict):
            self._answer(404, b'{"detail":"Not Found"}')
        elif body.get("model", self.owner.settings.model) != self.owner.settings.model:
            self._answer(404, b'{"error":{"message":"The model does not exist.","type":"NotFoundError","code":404}}')
        elif body.get("stream"):
            self._stream(body)
        else:
            self._complete(body)

    def _complete(self, body: dict[str, Any]) -> None:
        name, outputs = self.owner.submit(body)
        text = ""
        while (message := outputs.get()) is not None:
            text += str(message["text"])
            if message["done"]:
                break
        self.owner.forget(name)
        if message is None:
            self._answer(500, json.dumps(DEAD_BODY).encode())
            return
        choice = {"index": 0, "text": text, "finish_reason": "length"}
        self._answer(200, json.dumps({"id": name, "object": "text_completion", "choices": [choice]}).encode())

    def _stream(self, body: dict[str, Any]) -> None:
        name, outputs = self.owner.submit(body)
        host, port = self.client_address[:2]
        self.owner.log.access(f'{host}:{port} - "POST {self.path} HTTP/1.1" 200 OK')
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while (message := outputs.get()) is not None:
                event = {"id": name, "choices": [{"index": 0, "text": message["text"]}]}
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                if message["done"]:
                    break
            else:
                self.wfile.write(b"data: " + json.dumps(DEAD_BODY).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # the client went away
        finally:
            self.owner.forget(name)
            self.close_connection = True


def main(settings: Settings) -> int:
    """Entry point of the top process."""
    return Server(settings).run()
