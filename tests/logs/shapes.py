"""The same log in the clothes of every collector: each function takes lines and gives the lines that it would store."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

Wrap = Callable[[list[str]], list[str]]
_START = 1_764_499_000


def _clock(number: int) -> tuple[int, int, int, int]:
    second = 36_000 + number // 3
    return second // 3600 % 24, second // 60 % 60, second % 60, number * 1_000_003 % 1_000_000_000


def _iso(number: int, zone: str = "Z", digits: int = 9) -> str:
    hour, minute, second, nano = _clock(number)
    return f"2026-11-30T{hour:02d}:{minute:02d}:{second:02d}.{nano:09d}"[: 20 + digits] + zone


def plain(lines: list[str]) -> list[str]:
    return lines


def docker_json(lines: list[str]) -> list[str]:
    return [
        json.dumps({"log": line + "\n", "stream": "stderr", "time": _iso(number)}) for number, line in enumerate(lines)
    ]


def kubectl_timestamps(lines: list[str]) -> list[str]:
    return [f"{_iso(number)} {line}" for number, line in enumerate(lines)]


def kubectl_prefix(lines: list[str]) -> list[str]:
    return [f"[pod/vllm-7d9f8b6c5-x2x9k/vllm] {line}" for line in lines]


def cri(lines: list[str]) -> list[str]:
    return [
        f"{_iso(number, '+00:00')} std{'err' if number % 2 else 'out'} F {line}" for number, line in enumerate(lines)
    ]


def compose(lines: list[str]) -> list[str]:
    return [f"vllm-1  | {line}" for line in lines]


def compose_long_name(lines: list[str]) -> list[str]:
    return [f"llm-inference-server-1     | {line}" for line in lines]


def journald(lines: list[str]) -> list[str]:
    out = []
    for number, line in enumerate(lines):
        hour, minute, second, _ = _clock(number)
        out.append(f"Nov 30 {hour:02d}:{minute:02d}:{second:02d} gpu-node-2 vllm[991]: {line}")
    return out


def journald_iso(lines: list[str]) -> list[str]:
    return [
        f"{_iso(number, '+0800', 0).replace('.', '')} gpu-node-2 python3[991]: {line}"
        for number, line in enumerate(lines)
    ]


def journald_json(lines: list[str]) -> list[str]:
    return [
        json.dumps(
            {
                "__REALTIME_TIMESTAMP": str((_START + number) * 1_000_000),
                "_SYSTEMD_UNIT": "vllm.service",
                "MESSAGE": line,
                "_PID": "991",
            }
        )
        for number, line in enumerate(lines)
    ]


def ray_actor(lines: list[str]) -> list[str]:
    return [f"\x1b[36m(LLMRayActor pid=7200, ip=192.0.2.7)\x1b[0m {line}" for line in lines]


def ci_brackets(lines: list[str]) -> list[str]:
    return [f"[{_iso(number, 'Z', 0).replace('.', '')}] {line}" for number, line in enumerate(lines)]


def github_actions(lines: list[str]) -> list[str]:
    return [f"{_iso(number, 'Z', 7)} {line}" for number, line in enumerate(lines)]


def pipe_fields(lines: list[str]) -> list[str]:
    return [f"2026-11-30 10:12:{number % 60:02d}.739 | replica-0 | vllm | {line}" for number, line in enumerate(lines)]


def unknown_supervisor(lines: list[str]) -> list[str]:
    return [f"<6>svc=llm inst={number % 3} seq={number:06d} :: {line}" for number, line in enumerate(lines)]


def s6_overlay(lines: list[str]) -> list[str]:
    return [f"2026-11-30 10:00:{number % 60:02d}.{number % 1000:06d}000  {line}" for number, line in enumerate(lines)]


def loki_json(lines: list[str]) -> list[str]:
    return [json.dumps({"ts": _iso(number), "container": "vllm", "msg": line}) for number, line in enumerate(lines)]


def colours(lines: list[str]) -> list[str]:
    """vLLM's own coloured prefixes (0.11): only the process part is coloured."""
    out = []
    for line in lines:
        head, close, rest = line.partition(") ")
        out.append(f"\x1b[0;36m{head})\x1b[0;0m {rest}" if close and line.startswith("(") else line)
    return out


def colours_without_escape(lines: list[str]) -> list[str]:
    return [line.replace("\x1b", "") for line in colours(lines)]


def windows(lines: list[str]) -> list[str]:
    return [line.rstrip("\r") + "\r" for line in lines]


def markdown_quote(lines: list[str]) -> list[str]:
    return [f"> {line}" for line in lines]


def broken_utf8(lines: list[str]) -> list[str]:
    """Every 7th line ends in half a character (written with surrogates; see `encode`)."""
    return [line + "\udce4\udcbd" if number % 7 == 0 else line for number, line in enumerate(lines)]


def bom(lines: list[str]) -> list[str]:
    return ["\ufeff" + lines[0], *lines[1:]] if lines else lines


def mixed_with_sidecar(lines: list[str]) -> list[str]:
    """Another container's lines between ours (line numbers change: see `position`)."""
    rng = random.Random(5)
    out: list[str] = []
    for line in lines:
        out.append(f"vllm-1     | {line}")
        if rng.random() < 0.2:
            out.append(
                "gateway-1  | 11-30 12:41:34 ERROR upstream said: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"
            )
    return out


SAME_LINES: tuple[Wrap, ...] = (
    plain, docker_json, kubectl_timestamps, kubectl_prefix, cri, compose, compose_long_name, journald, journald_iso, journald_json,
    ray_actor, ci_brackets, github_actions, pipe_fields, unknown_supervisor, s6_overlay, loki_json, colours, colours_without_escape,
    windows, markdown_quote, broken_utf8, bom,
)  # fmt: skip


def encode(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
