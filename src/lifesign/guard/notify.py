"""Tells others: webhooks, OpenTelemetry, the Kubernetes termination message. None of them is ever waited for.

Messages go through a bounded queue to one thread; each delivery gets three tries of five seconds. OpenTelemetry is
spoken as OTLP/HTTP JSON (opentelemetry.io, "OTLP/HTTP request"), so it needs no further package: the standard variables
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_LOGS_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and OTEL_SERVICE_NAME are read.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import urllib.error
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
            for url, headers, is_otlp in self._targets:
                body = otlp_record(event, self._service) if is_otlp else event
                self._deliver(url, headers, json.dumps(body).encode())
            self._queue.task_done()

    def _deliver(self, url: str, headers: dict[str, str], body: bytes) -> None:
        reason = ""
        for attempt in range(TRIES):
            try:
                request = urllib.request.Request(
                    url, body, {"Content-Type": "application/json", "User-Agent": "lifesign", **headers}
                )
                with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                    return
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}"
                if error.code < 500 and error.code != 429:
                    break
            except (OSError, ValueError) as error:
                reason = str(getattr(error, "reason", error))
            time.sleep(0.2 * 2**attempt)
        if url not in self._complained:
            self._complained.add(url)
            host = url.split("/")[2] if url.count("/") >= 2 else url
            self._complain(f"an event could not be delivered to {host.rpartition('@')[2]} ({reason})")


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
