"""What is left out of a healthy engine's daily talk: the same lines as one plain loop would leave out, whatever the batches."""

from __future__ import annotations

import random

import pytest

from lifesign.logs import reader
from lifesign.logs.lines import MAX_LINE_CHARS
from lifesign.logs.reader import Reading

WORK = (
    b'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK',
    b"INFO 11-30 09:00:00 [loggers.py:271] Engine 000: Avg generation throughput: 9.0 tokens/s, Running: 3 reqs",
)
PROBE = (b'INFO:     10.0.0.1:9 - "GET /health HTTP/1.1" 200 OK', b'INFO: - "GET /metrics HTTP/1.1" 200 OK\r')
NEWS = (
    b"ERROR 11-30 09:00:01 [core.py:1] EngineCore encountered a fatal error.",
    b'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
    b'INFO: - "GET /health HTTP/1.1" 503 Service Unavailable',
    b'INFO: - "GET /docs HTTP/1.1" 200 OK, said a prompt, and more',
    b"",
    WORK[0] + b" " * reader._LONG,
    PROBE[0].replace(b"health", b"h" * MAX_LINE_CHARS),
)


def one_by_one(rows: list[bytes]) -> list[int]:
    """Numbers of the rows that stay: no answered probe; of a run of work, not cut by probes, the first six and the last."""
    kept: list[int] = []
    run: list[int] = []
    for number, row in [*enumerate(rows), (len(rows), b"end")]:
        if row in PROBE:
            continue
        if row in WORK:
            run.append(number)
            continue
        kept += run[:6] + run[6:][-1:]
        run = []
        kept.append(number)
    return kept[:-1]


@pytest.mark.parametrize("batch", [1, 3, 7, 4096])
def test_the_same_as_one_by_one(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BATCH", batch)
    for seed in range(300):
        rng = random.Random(seed)
        weights = [rng.choice([0, 1, 5, 30]) + 0.01 for _ in range(3)]
        rows = [rng.choice(rng.choices((WORK, PROBE, NEWS), weights)[0]) for _ in range(rng.randrange(60))]
        reading = Reading()
        kept = [number for number, _ in reader._without_routine(enumerate(rows), reading)]
        assert kept == one_by_one(rows), f"seed {seed}"
        assert reading.lines_cut == sum(len(row) > MAX_LINE_CHARS for row in rows), f"seed {seed}"
