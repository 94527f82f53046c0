"""What the engine's own pages say: counters of progress and gauges of demand, and the one-token request.

Read in a thread of the sensor, with short time-outs: a page that doesn't answer is "progress can't be seen now", never a
verdict (a saturated server misses short time-outs, and /health answers 200 through every hang).
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

MAX_PAGE_BYTES = 4 << 20
TIMEOUT_S = 1.5
_PROGRESS = (
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:request_success_total",
)
_DEMAND = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_CACHE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(slots=True)
class Page:
    """One reading of /metrics, summed over engines and labels. `seen` names the series that were there."""

    values: dict[str, float] = field(default_factory=dict)

    @property
    def is_vllm(self) -> bool:
        """Whether there is anything of vLLM's to go by (statistics may be switched off)."""
        return any(name in self.values for name in (*_PROGRESS, *_DEMAND))

    @property
    def demand(self) -> bool:
        """Whether requests run or wait, as far as the page knows (it freezes with the engine)."""
        return any(self.values.get(name, 0.0) > 0.0 for name in _DEMAND)

    @property
    def finished(self) -> float:
        """Requests finished since the engine started."""
        return self.values.get("vllm:request_success_total", 0.0)

    def steps_since(self, before: Page) -> int:
        """Steps between two readings; 1 when only other counters moved, 0 when nothing did."""
        steps = self.values.get(_PROGRESS[0], 0.0) - before.values.get(_PROGRESS[0], 0.0)
        if steps > 0:
            return int(steps)
        names = (*_PROGRESS, *_CACHE)
        return int(any(self.values.get(name) != before.values.get(name) for name in names))


def parse_page(text: str) -> Page:
    """Sums of the series that matter, from Prometheus text format. Lines that make no sense are skipped."""
    wanted = frozenset((*_PROGRESS, *_DEMAND, *_CACHE))
    page = Page()
    for line in text.split("\n"):
        if not line.startswith("vllm:"):
            continue
        end = line.find("{")
        name = line[:end] if end >= 0 else line.partition(" ")[0]
        if name not in wanted:
            continue
        try:
            value = float(line[line.rfind("}") + 1 :].split()[0] if end >= 0 else line.split()[1])
        except (ValueError, IndexError):
            continue
        if value == value:
            page.values[name] = page.values.get(name, 0.0) + value
    return page


class EnginePages:
    """The pages of one engine. Every method waits `TIMEOUT_S` at most (the canary as long as it is told)."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._key = api_key
        self._model: str | None = None

    def metrics(self) -> Page | None:
        """The metrics page; None when it doesn't answer or isn't vLLM's."""
        text = self._get("/metrics", TIMEOUT_S)
        page = parse_page(text) if text is not None else None
        return page if page is not None and page.is_vllm else None

    def healthy(self) -> bool:
        """Whether /health answers 200: enough for "it has come up", never for "it is alive"."""
        return self._get("/health", TIMEOUT_S) is not None

    def canary(self, timeout_s: float) -> tuple[bool, float]:
        """Ask for one token: (whether it makes sense to ask again, seconds until the answer or the time-out).

        A refusal (no completion endpoint, unknown model, no key) means that this engine can't be asked this way.
        """
        started_s = time.monotonic()
        if self._model is None:
            self._model = self._first_model()
            if self._model is None:
                return False, time.monotonic() - started_s
        body = {"model": self._model, "prompt": "a", "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"{self._url}/v1/completions",
            json.dumps(body).encode(),
            {**self._headers(), "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                answer.read(MAX_PAGE_BYTES)
        except urllib.error.HTTPError as error:
            return error.code >= 500, time.monotonic() - started_s
        except (OSError, ValueError):
            return True, float("inf")
        return True, time.monotonic() - started_s

    def _first_model(self) -> str | None:
        text = self._get("/v1/models", TIMEOUT_S)
        try:
            value: Any = json.loads(text or "")
            return str(value["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    def _headers(self) -> dict[str, str]:
        return {"User-Agent": "lifesign-guard", **({"Authorization": f"Bearer {self._key}"} if self._key else {})}

    def _get(self, path: str, timeout_s: float) -> str | None:
        try:
            request = urllib.request.Request(self._url + path, headers=self._headers())
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                raw: bytes = answer.read(MAX_PAGE_BYTES)
                return raw.decode("utf-8", "replace")
        except (OSError, ValueError):
            return None
