"""The client's side of a drill: requests without pause, streamed and plain, and a look at /health four times a second."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from lifesign.drill.model import Ask

End = Literal["ok", "http error", "error event", "cut", "refused", "no answer"]
TOKENS = 24
KEPT = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """How one request ended. Times are of the monotonic clock."""

    sent_s: float
    ended_s: float
    stream: bool
    end: End
    status: int | None


class Client:
    """Talks to one server on the loopback until `stop`."""

    def __init__(self, port: int, request_timeout_s: float) -> None:
        self.port, self.model, self.request_timeout_s = port, "", request_timeout_s
        self.requests: list[Request] = []
        self.health: list[tuple[float, str]] = []  # changes only: (time, status code or error)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to watch /health and to send requests, in threads of their own."""
        for target, arguments in ((self._watch, ()), (self._load, (True,)), (self._load, (False,))):
            thread = threading.Thread(target=target, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop; waits at most 3 s for requests in flight (their connections end with the engine)."""
        self._stop.set()
        end_s = time.monotonic() + 3.0
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def probe(self) -> str:
        """What /health says now: a status code, or the name of the error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3)
        try:
            connection.request("GET", "/health")
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def learn_model(self) -> None:
        """Ask the server under which name it serves (a user's own command may give any)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/v1/models")
            self.model = str(json.loads(connection.getresponse().read(100_000))["data"][0]["id"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return  # the first request will tell
        finally:
            connection.close()

    def ask(self, stream: bool, body: dict[str, object] | bytes | None = None) -> Request:
        """Send one request and wait for its end; it is remembered."""
        sent_s = time.monotonic()
        status: int | None = None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.request_timeout_s)
        try:
            data = body if isinstance(body, bytes) else json.dumps(self._body(stream) | (body or {})).encode()
            connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status = response.status
            end = self._read(response)
        except ConnectionRefusedError:
            end = "refused"
        except TimeoutError:
            end = "no answer"
        except (OSError, http.client.HTTPException):
            end = "cut"
        finally:
            connection.close()
        request = Request(sent_s, time.monotonic(), stream, end, status)
        with self._lock:
            if len(self.requests) < KEPT:
                self.requests.append(request)
        return request

    def ask_for(self, ask: Ask) -> Request:
        """Send the particular request of a fault."""
        bodies: dict[str, dict[str, object] | bytes] = {
            "long-prompt": {"prompt": "far too long " * 400},
            "bad-json": b'{"prompt": ',
            "no-model": {"model": "no-such-model"},
            "grammar": {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "node",
                        "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
                    },
                }
            },
        }
        return self.ask(False, bodies[ask.kind])

    def counts(self, since_s: float) -> dict[str, int]:
        """How the requests ended that were in flight at `since_s` or sent later."""
        with self._lock:
            return dict(Counter(request.end for request in self.requests if request.ended_s >= since_s))

    def recovered(self, since_s: float) -> bool:
        """Whether requests that were sent after `since_s` have been answered: two of them, so that none is luck."""
        with self._lock:
            good = [request for request in self.requests if request.sent_s >= since_s and request.end == "ok"]
        return len(good) >= 2

    def health_changes(self, since_s: float) -> list[tuple[float, str]]:
        """[(seconds since `since_s`, what /health said)], beginning with the state at that time."""
        before = [state for time_s, state in self.health if time_s <= since_s][-1:]
        after = [(round(time_s - since_s, 1), state) for time_s, state in self.health if time_s > since_s]
        return [(0.0, state) for state in before] + after[:20]

    def _body(self, stream: bool) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": "hello you",
            "max_tokens": TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": stream,
        }

    @staticmethod
    def _read(response: http.client.HTTPResponse) -> End:
        if response.status != 200:
            response.read(10_000)
            return "http error"
        finished = False
        while line := response.readline(1 << 16):
            if b'"error"' in line[:200]:
                return "error event"
            finished = finished or b"[DONE]" in line or b'"finish_reason"' in line
        return "ok" if finished else "cut"

    def _watch(self) -> None:
        last = ""
        while not self._stop.is_set():
            now_s, state = time.monotonic(), self.probe()
            if state != last and len(self.health) < KEPT:
                self.health.append((now_s, state))
                last = state
            self._stop.wait(0.25)

    def _load(self, stream: bool) -> None:
        while not self._stop.is_set():
            if self.ask(stream).end != "ok":
                self._stop.wait(0.3)
