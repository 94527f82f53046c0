"""Which requests were in flight when the engine died? Read from what vLLM itself prints.

At a death of EngineCore vLLM dumps the scheduler's output: request ids, prompt lengths, sampling parameters (no
prompts). A retry has a new random id, so a request is recognised by, in this order: the client's own id
(X-Request-Id), the hash of its text when request logging is on, or its shape (prompt length and parameters; likely,
not certain). Prompts never leave this module: only hashes do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_REQUESTS = 256
MIN_SHAPE_TOKENS = 32
_REQ_ID = re.compile(r"req_id=([A-Za-z0-9_.:-]{4,120}),\s{0,2}prompt_token_ids_len=(\d{1,9})")
_CACHED = re.compile(r"req_ids=\[([^\]]{0,20000})\]")
_RANDOM_TAIL = re.compile(r"-[0-9a-f]{8}$")
_RANDOM_ID = re.compile(r"^(?:cmpl|chatcmpl|embd|score|pool|resp)-[0-9a-f]{16,32}(?:-\d{1,4})?$")
_PARAMS = re.compile(r"sampling_params=SamplingParams\(([^)]{0,4000})")
_DUMP_MARK = "Dumping scheduler output"
_RECEIVED_MARK = "Received request "


def client_id(request_id: str) -> str | None:
    """The part of an id that the client chose, or None when vLLM made it up."""
    stem = _RANDOM_TAIL.sub("", request_id)
    return None if _RANDOM_ID.match(stem) else stem


def in_flight(lines: Iterable[str]) -> dict[str, str]:
    """{request id: fingerprint} of the last scheduler dump in the log; fingerprints are `id:`, `text:` or `shape:`."""
    texts: dict[str, str] = {}
    flying: dict[str, str] = {}
    for line in lines:
        if _RECEIVED_MARK in line:
            _remember_text(line, texts)
        elif _DUMP_MARK in line:
            flying = _from_dump(line[:200_000])
    for request_id in list(flying):
        text = texts.get(_RANDOM_TAIL.sub("", request_id)) or texts.get(request_id)
        if text and not flying[request_id].startswith("id:"):
            flying[request_id] = f"text:{text}"
    return flying


def _remember_text(line: str, texts: dict[str, str]) -> None:
    rest = line[line.index(_RECEIVED_MARK) + len(_RECEIVED_MARK) :]
    request_id, _, content = rest.partition(":")
    if len(request_id) <= 120 and content:
        if len(texts) > 4 * MAX_REQUESTS:
            texts.pop(next(iter(texts)))
        texts[request_id.strip()] = _hash(content.split(", lora_request", 1)[0])


def _from_dump(line: str) -> dict[str, str]:
    flying: dict[str, str] = {}
    for found in _REQ_ID.finditer(line):
        if len(flying) >= MAX_REQUESTS:
            break
        request_id, length = found.group(1), int(found.group(2))
        chosen = client_id(request_id)
        params = _PARAMS.search(line[found.end() : found.end() + 6000])
        if chosen is not None:
            flying[request_id] = f"id:{chosen}"
        elif length >= MIN_SHAPE_TOKENS and params:
            flying[request_id] = f"shape:{length} tokens:{_hash(params.group(1))}"
        else:
            flying[request_id] = f"id:{_RANDOM_TAIL.sub('', request_id)}"
    cached = _CACHED.search(line)
    for word in (cached.group(1) if cached else "").split(","):
        request_id = word.strip().strip("'\"")
        if request_id and len(flying) < MAX_REQUESTS:
            flying.setdefault(request_id, f"id:{client_id(request_id) or _RANDOM_TAIL.sub('', request_id)}")
    return flying


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
