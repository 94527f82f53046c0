"""The engine's own pages, as guard uses them: is it up, how many requests has it finished, does it answer one token?

Reading progress off /metrics is the observer's work (`probes/`). Every method waits a bounded time, and uses no proxy.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from lifesign.errors import UsageError
from lifesign.guard.probes.metrics import CANARY_PROMPT, Endpoint, fetch, parse_url

TIMEOUT_S = 1.5
MAX_BYTES = 4 << 20
_SUCCESS = "vllm:request_success_total"
_ERRORS = (OSError, http.client.HTTPException, ValueError)


class EnginePages:
    """The pages of one engine at `url`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.endpoint: Endpoint = parse_url(url)
        self._key = api_key
        self._model: str | None = None

    @classmethod
    def at(cls, url: str | None, api_key: str | None = None) -> EnginePages | None:
        """The pages at an address; None for no address or one that can't be used."""
        if url is None:
            return None
        try:
            return cls(url, api_key)
        except UsageError:
            return None

    def healthy(self) -> bool:
        """Whether /health answers 200: enough for "it has come up", never for "it is alive"."""
        return self._get("/health")[0] == 200

    def finished(self) -> float:
        """Requests that the engine has finished since its start; 0 when that can't be seen."""
        total = 0.0
        for line in self._get("/metrics")[1].split("\n"):
            if line.startswith(_SUCCESS):
                try:
                    total += float(line.rpartition(" ")[2])
                except ValueError:
                    continue
        return total

    def metrics_text(self) -> str:
        """The metrics page as it stands; empty when it doesn't answer."""
        return self._get("/metrics")[1]

    def canary(self, timeout_s: float) -> tuple[bool, float | None]:
        """Ask for one token: (whether this engine can be asked so at all, seconds until the answer or None).

        A refusal (no completion endpoint, unknown model, no key) says that the question was wrong, not the engine.
        """
        started_s = time.monotonic()
        if self._model is None:
            self._model = self._first_model()
            if self._model is None:
                return False, None
        body = json.dumps({"model": self._model, "prompt": CANARY_PROMPT, "max_tokens": 1, "temperature": 0})
        headers = {"Content-Type": "application/json", **self._headers()}
        connection = self._connect(timeout_s)
        try:
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            answer.read(MAX_BYTES)
        except _ERRORS:
            return True, None
        finally:
            connection.close()
        if answer.status == 200:
            return True, time.monotonic() - started_s
        return answer.status >= 500, None

    def _first_model(self) -> str | None:
        try:
            value: Any = json.loads(self._get("/v1/models")[1])
            return str(value["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    def _headers(self) -> dict[str, str]:
        return {"User-Agent": "lifesign-guard", **({"Authorization": f"Bearer {self._key}"} if self._key else {})}

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.endpoint.scheme == "https" else http.client.HTTPConnection
        return kind(self.endpoint.host, self.endpoint.port, timeout=timeout_s)

    def _get(self, path: str) -> tuple[int, str]:
        if path in ("/health", "/metrics"):  # open to everybody
            try:
                return fetch(self.endpoint, path, TIMEOUT_S)
            except _ERRORS:
                return 0, ""
        connection = self._connect(TIMEOUT_S)
        try:
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_BYTES).decode("utf-8", "replace")
        except _ERRORS:
            return 0, ""
        finally:
            connection.close()
