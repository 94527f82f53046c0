"""Reads a vLLM server's /metrics page: what is asked of the engine, and whether anything moved.

Known limits, by design of vLLM: the page keeps answering while the engine hangs; all series freeze at the last step; a
request that arrives at a hung engine is never counted; a prefill-only step moves no counter but the KV usage. So a page
that stands still is no verdict, and one that moves is progress.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.parse
from dataclasses import dataclass, field

from lifesign.errors import UsageError

TIMEOUT_S = 3.0
PAGE_BYTES = 4 << 20
LINE_BYTES = 2048
WANTED: dict[str, tuple[str, ...]] = {
    # what -> its series, newest name first
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "generated": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "prompted": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "iterations": ("vllm:iteration_tokens_total_count",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
CANARY_PROMPT = "1 2 3 4 5 6 7 8"
"""Not shorter: a first request of fewer than five tokens killed vLLM 0.30.0 and 0.32.0 on a CPU with AMX (see unsupported-hw/cpu-isa)."""
MOVING = ("generated", "prompted", "iterations", "kv_usage")


@dataclass(slots=True)
class MetricsReading:
    """One page. `values` holds what was found of `WANTED`, summed over engines."""

    at_s: float
    values: dict[str, float] = field(default_factory=dict)
    is_vllm: bool = False

    @property
    def demand(self) -> bool:
        """Whether requests are running or waiting, as far as the page knows."""
        return self.values.get("running", 0.0) + self.values.get("waiting", 0.0) > 0.0

    def moved_since(self, older: MetricsReading) -> int:
        """Units of progress since an older page: iterations where they are counted, else 1 if anything moved."""
        steps = self.values.get("iterations", 0.0) - older.values.get("iterations", 0.0)
        if 0.0 < steps < 1e9:
            return int(steps)
        moved = any(self.values.get(name) != older.values.get(name) for name in MOVING)
        return 1 if moved else 0

    @property
    def missing(self) -> list[str]:
        """What a page of a known release has and this one lacks."""
        return [names[0] for what, names in WANTED.items() if what not in self.values]


def parse_metrics(text: str, at_s: float) -> MetricsReading:
    """The reading of one page in Prometheus' text format. Never raises: lines that aren't understood are left out."""
    reading = MetricsReading(at_s)
    names = {name: what for what, series in WANTED.items() for name in series}
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        reading.is_vllm = True
        line = line[:LINE_BYTES]
        name = line.partition("{")[0].partition(" ")[0]
        what = names.get(name)
        if what is None:
            continue
        value = line.rpartition("}")[2].split() if "{" in line else line.split()[1:]
        with contextlib.suppress(ValueError, IndexError):
            number = float(value[0])
            if number == number and abs(number) != float("inf"):
                sums = found.setdefault(what, {})
                sums[name] = sums.get(name, 0.0) + number
    for what, sums in found.items():
        # Two names of one thing on the same page: the newest counts, not the sum.
        reading.values[what] = next(sums[name] for name in WANTED[what] if name in sums)
    return reading


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server answers."""

    scheme: str
    host: str
    port: int
    path: str = "/metrics"

    @property
    def url(self) -> str:
        """As a person would write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether it is on this machine, as far as its name tells."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_url(text: str) -> Endpoint:
    """The endpoint of a server's URL (`http://host:port`, with or without a path). Raises UsageError."""
    text = text.strip()
    if text.startswith("unix:"):
        raise UsageError(f"{text!r}: a server on a Unix socket can't be asked from here; give the engine's pid instead")
    try:
        parts = urllib.parse.urlsplit(text if "//" in text else f"http://{text}")
        port = parts.port
        host = _host_of(urllib.parse.unquote(parts.hostname or ""))
    except ValueError as error:
        raise UsageError(f"{text!r} is no URL ({error}); give one like http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not host or text.isdecimal():
        raise UsageError(f"{text!r} is neither a pid nor a URL; give one like 4100 or http://127.0.0.1:8000")
    if port == 0:
        raise UsageError(f"{text!r}: nobody listens on port 0; give the port that `vllm serve` printed")
    # A blank or a letter beyond ASCII may stand in an address, but not in a request.
    path = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~") if parts.path.endswith("/metrics") else "/metrics"
    return Endpoint(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)


def _host_of(name: str) -> str:
    """The name, if it can be one. Raises ValueError."""
    if any(char.isspace() or not char.isprintable() for char in name):
        raise ValueError("its host has a blank in it")
    try:
        name.encode("idna")
    except UnicodeError:
        raise ValueError("its host is no name: a part of it is empty or too long") from None
    return name


def fetch(endpoint: Endpoint, path: str | None = None, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """(status, text) of one GET. Raises OSError or http.client.HTTPException if there is no answer. No proxy is used."""
    kind = http.client.HTTPSConnection if endpoint.scheme == "https" else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=timeout_s)
    try:
        connection.request("GET", path or endpoint.path, headers={"Accept": "text/plain", "Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(PAGE_BYTES).decode("utf-8", "replace")
    finally:
        connection.close()


def canary(endpoint: Endpoint, timeout_s: float) -> tuple[bool, float | None]:
    """One request for one token: (whether this server can be asked at all, seconds that the answer took).

    No answer in time gives (True, None). A server that refuses (another kind of model, an API key) gives (False, None):
    that is no sign of a hang. Only for an engine that is otherwise idle.
    """
    began_s = time.monotonic()
    kind = http.client.HTTPSConnection if endpoint.scheme == "https" else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=timeout_s)
    try:
        status, text = fetch(endpoint, "/v1/models", timeout_s)
        model = json.loads(text)["data"][0]["id"] if status == 200 else ""
        body = json.dumps({"model": model, "prompt": CANARY_PROMPT, "max_tokens": 1, "temperature": 0})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read(PAGE_BYTES)
        good = answer.status == 200
    except TimeoutError:
        return True, None
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError):
        return False, None
    finally:
        connection.close()
    return (True, time.monotonic() - began_s) if good else (False, None)


class MetricsProbe:
    """Fetches the page once a second in a thread of its own, so that a slow page never delays a look at the processes."""

    def __init__(self, endpoint: Endpoint, every_s: float = 1.0) -> None:
        self.endpoint = endpoint
        self.last: MetricsReading | None = None
        self.error = ""
        self.refused = 0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def close(self) -> None:
        """Stop fetching; a request under way is left to its own time-out."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            self.fetch_once()
            self._stop.wait(max(0.0, self._every_s - (time.monotonic() - began_s)))

    def fetch_once(self) -> None:
        """One page; `last` and `error` say how it went."""
        try:
            status, text = fetch(self.endpoint)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = str(error)[:200] or type(error).__name__
            self.refused = self.refused + 1 if isinstance(error, ConnectionRefusedError) else 0
            return
        self.refused = 0
        if status != 200:
            self.error = f"HTTP {status}"
            return
        self.error = ""
        self.last = parse_metrics(text, time.monotonic())
