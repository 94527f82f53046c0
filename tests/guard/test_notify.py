"""Words to the outside: webhooks, OpenTelemetry, the termination message. Never waited for, never fatal."""

from __future__ import annotations

import base64
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lifesign.guard.board import PHASES, Board
from lifesign.guard.notify import Notifier, otlp_record, otlp_target, write_termination_message

from .harness import guard, wait_until


class Receiver(http.server.BaseHTTPRequestHandler):
    received: list[tuple[str, dict[str, Any], dict[str, str]]]
    codes: list[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).received.append((self.path, json.loads(body), dict(self.headers)))
        self.send_response(type(self).codes.pop(0) if type(self).codes else 200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    handler = type("OneReceiver", (Receiver,), {"received": [], "codes": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()


def test_a_webhook_gets_the_event_and_a_busy_one_is_tried_again(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    handler.codes = [503]
    notifier = Notifier((f"{url}/hook",), {})
    notifier.send("death", "it died", cause="host-oom")
    notifier.flush(10.0)
    assert len(handler.received) == 2
    path, body, _ = handler.received[1]
    assert path == "/hook"
    assert (body["event"], body["text"], body["cause"]) == ("death", "it died", "host-oom")


def test_opentelemetry_is_spoken_where_it_is_configured(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url + "/",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=serving, bad",
        "OTEL_SERVICE_NAME": "chat",
    }
    notifier = Notifier((), environment)
    notifier.send("held", "no further start", action="hold")
    notifier.flush(10.0)
    ((path, body, headers),) = handler.received
    assert path == "/v1/logs"
    assert {name.lower(): value for name, value in headers.items()}["x-team"] == "serving"
    (resource,) = body["resourceLogs"]
    assert resource["resource"]["attributes"][0]["value"]["stringValue"] == "chat"
    (record,) = resource["scopeLogs"][0]["logRecords"]
    assert (record["severityText"], record["severityNumber"]) == ("FATAL", 21)
    assert record["body"]["stringValue"] == "no further start"
    assert {"key": "lifesign.action", "value": {"stringValue": "hold"}} in record["attributes"]
    assert int(record["timeUnixNano"]) > 10**18


def test_what_is_not_configured_is_not_spoken() -> None:
    assert otlp_target({}) is None
    assert otlp_target({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317"}) is None
    assert otlp_target({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://h/x"}) == ("http://h/x", {})
    json.dumps(otlp_record({"event": "death", "list": [1], "none": None}, "s"))


def test_nobody_waits_for_a_target_that_is_gone() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}/hook"
    complaints: list[str] = []
    notifier = Notifier((url,), {}, complaints.append)
    started = time.monotonic()
    for _ in range(1000):
        notifier.send("death", "x")
    assert time.monotonic() - started < 5.0
    wait_until(lambda: complaints, "the complaint")
    assert "could not be delivered" in complaints[0]
    assert "secret" not in complaints[0]


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """A server that says this to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        b"\x00\xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70000,
        b"HTTP/1.1 abc\r\n\r\n",
    ],
)
def test_one_bad_target_does_not_silence_the_others(receiver: tuple[str, type[Receiver]], data: bytes) -> None:
    url, handler = receiver
    complaints: list[str] = []
    with answering(data) as place:
        notifier = Notifier((f"http://{place}/secret", f"{url}/hook"), {}, complaints.append)
        for number in range(2):
            notifier.send("death", f"number {number}")
        notifier.flush(10.0)
    assert [body["text"] for _, body, _ in handler.received] == ["number 0", "number 1"]
    (complaint,) = complaints
    assert place in complaint
    assert "secret" not in complaint
    assert notifier._queue.unfinished_tasks == 0


@pytest.mark.parametrize(
    "bad",
    [
        "http://user:secret@host:port/x", "http://127.0.0.1:99999/secret", "http://127.0.0.1:1/a secret", "secret", "",
        "file:///etc/secret", "ftp://127.0.0.1/secret", "http://", "http://[::1/secret", "unix:/run/secret",
        "http://" + "a" * 70 + ".example/secret", "http://127.0.0.1:1\x00/secret", "http:///secret", "//127.0.0.1/secret",
    ],
)  # fmt: skip
def test_what_is_no_address_is_one_sentence(receiver: tuple[str, type[Receiver]], bad: str) -> None:
    url, handler = receiver
    complaints: list[str] = []
    notifier = Notifier((bad, f"{url}/hook"), {}, complaints.append)
    notifier.send("death", "x")
    notifier.send("death", "y")
    notifier.flush(10.0)
    assert [body["text"] for _, body, _ in handler.received] == ["x", "y"]
    (complaint,) = complaints
    assert "could not be delivered" in complaint
    assert "secret" not in complaint or bad == "secret"


def test_an_event_that_cannot_be_told_does_not_silence_the_next(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    notifier = Notifier((f"{url}/hook",), {})
    loop: list[Any] = []
    loop.append(loop)
    notifier.send("death", "cannot be written", loop=loop)
    notifier.send("death", "odd", path=Path("/x"))
    notifier.flush(10.0)
    ((_, body, _),) = handler.received
    assert (body["text"], body["path"]) == ("odd", "/x")


def test_user_and_password_become_a_header(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    notifier = Notifier((url.replace("http://", "http://me:a%40b@") + "/hook", f"{url}/plain"), {})
    notifier.send("death", "x")
    notifier.flush(10.0)
    (_, _, with_user), (_, _, plain) = handler.received
    assert with_user["Authorization"] == "Basic " + base64.b64encode(b"me:a@b").decode()
    assert "Authorization" not in plain


def test_the_termination_message_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    assert write_termination_message(path, "死" * 3000)
    raw = path.read_bytes()
    assert len(raw) <= 4096
    assert raw.decode() == "死" * (len(raw) // 3)
    assert write_termination_message(tmp_path / "none" / "x", "y") is False


def test_guard_tells_kubernetes_and_the_webhook(tmp_path: Path, receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    message = tmp_path / "termination-log"
    message.touch()
    options = ("--webhook", url, "--termination-message", str(message), "--max-restarts", "0")
    with guard(tmp_path, *options, engine_args=("--die", "worker-exception", "--after", "1.0")) as run:
        assert run.wait() == 1
    text = message.read_text()
    assert text.startswith("device-oom/serving: ")
    assert "hold: --max-restarts 0 is used up" in text
    events = [body["event"] for _, body, _ in handler.received]
    assert events == ["death", "held"]


@pytest.mark.parametrize(
    ("values", "live", "ready"),
    [
        ({"phase": "starting"}, 200, 503),
        ({"phase": "serving", "ready": True}, 200, 200),
        ({"phase": "serving", "ready": True, "view": "UNHEALTHY", "engine": "SLOW"}, 200, 503),
        ({"phase": "serving", "ready": True, "view": "DEAD", "engine": "DEAD"}, 503, 503),
        ({"phase": "serving", "ready": True, "lost": True}, 200, 503),
        ({"phase": "dead"}, 503, 503),
        ({"phase": "backoff", "view": "DEAD"}, 200, 503),
        ({"phase": "held"}, 200, 503),
        ({"phase": "stopping", "ready": True}, 200, 503),
        ({"phase": "ended"}, 503, 503),
    ],
)
def test_live_and_ready_are_two_questions(values: dict[str, Any], live: int, ready: int) -> None:
    board = Board()
    board.update(**values)
    assert (board.livez()[0], board.readyz()[0]) == (live, ready)
    page = board.metrics.page().decode()
    assert f"lifesign_ready {1.0 if ready == 200 else 0.0}" in page
    assert page.count('lifesign_guard_phase{phase="') == len(PHASES)
    assert f'lifesign_guard_phase{{phase="{values["phase"]}"}} 1.0' in page
