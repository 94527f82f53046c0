"""Tells others: webhooks, OpenTelemetry, the Kubernetes termination message. None of them is ever waited for.

Messages go through a bounded queue to one thread; each delivery gets three tries of five seconds. OpenTelemetry is
spoken as OTLP/HTTP JSON (opentelemetry.io, "OTLP/HTTP request"), so it needs no further package: the standard variables
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_LOGS_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and OTEL_SERVICE_NAME are read.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

QUEUE_LENGTH = 200
TIMEOUT_S = 5.0
TRIES = 3
TERMINATION_BYTES = 4096
_SEVERITY = {"suspicion": ("WARN", 13), "recovered": ("INFO", 9), "death": ("ERROR", 17), "held": ("FATAL", 21)}


def otlp_target(environment: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """(address, headers) for OTLP logs over HTTP, as the standard variables say; None when nothing is configured."""
    address = environment.get("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")
    if not address:
        base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        if not base:
            return None
        address = base.rstrip("/") + "/v1/logs"
    if not address.startswith(("http://", "https://")):
        return None
    headers = {}
    for pair in environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","):
        name, sign, value = pair.partition("=")
        if sign:
            headers[name.strip()] = value.strip()
    return address, headers


def otlp_record(event: Mapping[str, Any], service: str) -> dict[str, Any]:
    """An event as an OTLP logs request."""
    text, number = _SEVERITY.get(str(event.get("event")), ("INFO", 9))
    attributes = [
        {"key": f"lifesign.{key}", "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
        for key, value in event.items()
        if value is not None
    ]
    record = {
        "timeUnixNano": str(int(float(event.get("time", 0.0)) * 1e9)),
        "severityText": text,
        "severityNumber": number,
        "body": {"stringValue": str(event.get("text", ""))},
        "attributes": attributes,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    scope_logs = [{"scope": {"name": "lifesign.guard"}, "logRecords": [record]}]
    return {"resourceLogs": [{"resource": resource, "scopeLogs": scope_logs}]}


class Notifier:
    """Sends events. `complain` gets a sentence when a target could not be reached (once per target)."""

    def __init__(
        self,
        webhooks: tuple[str, ...],
        environment: Mapping[str, str],
        complain: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._targets: list[tuple[str, dict[str, str], bool]] = [(url, {}, False) for url in webhooks]
        otlp = otlp_target(environment)
        if otlp is not None:
            self._targets.append((*otlp, True))
        self._service = environment.get("OTEL_SERVICE_NAME", "vllm")
        self._complain = complain
        self._complained: set[str] = set()
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue(QUEUE_LENGTH)
        self._thread: threading.Thread | None = None

    def send(self, event: str, text: str, **details: Any) -> None:
        """Queue an event (`suspicion`, `recovered`, `death`, `held`); dropped when the queue is full."""
        if not self._targets:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="lifesign-notify", daemon=True)
            self._thread.start()
        with suppress(queue.Full):
            self._queue.put_nowait({"event": event, "text": text, "time": time.time(), **details})

    def flush(self, limit_s: float) -> None:
        """Wait until the queue is empty, at most `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def _work(self) -> None:
        while True:
            event = self._queue.get()
            try:
                for url, headers, is_otlp in self._targets:
                    body = otlp_record(event, self._service) if is_otlp else event
                    self._deliver(url, headers, json.dumps(body, default=str).encode())
            except Exception as error:  # one event that can't be told must not silence the next
                with suppress(Exception):
                    self._complain(f"an event could not be told ({type(error).__name__})")
            finally:
                self._queue.task_done()

    def _deliver(self, url: str, headers: dict[str, str], body: bytes) -> None:
        try:
            reason = _post(url, headers, body)
        except Exception as error:  # the other targets still get theirs, whatever this one answers
            reason = type(error).__name__
        if reason and url not in self._complained:
            self._complained.add(url)
            with suppress(Exception):
                self._complain(f"an event could not be delivered to {_host(url)} ({reason})")


def _post(url: str, headers: dict[str, str], body: bytes) -> str:
    """Try to deliver; gives the reason when it failed, without what may be secret: user, password, path."""
    try:
        address, more = _without_user(url)
    except ValueError:
        return "no valid http:// or https:// address"
    reason = ""
    for attempt in range(TRIES):
        try:
            request = urllib.request.Request(
                address, body, {"Content-Type": "application/json", "User-Agent": "lifesign", **more, **headers}
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return ""
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code}"
            error.close()
            if error.code < 500 and error.code != 429:
                break
        except (http.client.InvalidURL, ValueError):
            return "no valid http:// or https:// address"
        except http.client.HTTPException as error:
            reason = f"no HTTP answer: {type(error).__name__}"
        except OSError as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt + 1 < TRIES:
            time.sleep(0.2 * 2**attempt)
    return reason


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """(address, headers): `user:password@` becomes a header, since urllib takes it for the host. Raises ValueError."""
    parts = urllib.parse.urlsplit(url)
    _ = parts.port  # raises where it is no number
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("neither http nor https")
    user, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    word = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return parts._replace(netloc=place).geturl(), {"Authorization": f"Basic {word}"}


def _host(url: str) -> str:
    """Where a message was to go, as far as it may be told."""
    rest = url.partition("://")[2] or url
    return rest.partition("/")[0].rpartition("@")[2] or "the given address"


def termination_path(wanted: Path | None) -> Path | None:
    """Where Kubernetes wants the termination message: the given path, or the default one where it exists."""
    if wanted is not None:
        return wanted
    default = Path("/dev/termination-log")
    return default if default.is_file() and os.access(default, os.W_OK) else None


def write_termination_message(path: Path, text: str) -> bool:
    """Write at most 4,096 bytes (Kubernetes keeps no more), cut between characters."""
    raw = text.encode("utf-8", "replace")[:TERMINATION_BYTES].decode("utf-8", "ignore").encode()
    try:
        with path.open("wb") as file:
            file.write(raw)
    except OSError:
        return False
    return True
