"""Bytes to lines of text: line numbers, length limits, terminal escapes, progress bars with carriage returns.

One physical line may hold several pieces: a progress bar rewrites itself with carriage returns and swallows the error
that follows it, a JSON wrapper carries a whole traceback. All pieces keep the number of their physical line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE_CHARS = 16_000
"""What is kept of a line; more is cut and counted. The longest useful vLLM line (engine config) has about 4,000."""

MAX_PIECES = 40

# Also without the escape character itself: pastes and some log shippers drop it and keep the rest.
_ANSI = re.compile(
    r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\[\d{1,2}(?:;\d{1,3}){0,3}m(?=[(\[\w ]|$)"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# tqdm: `Capturing CUDA graphs:  50%|#### | 3/7 [00:01<00:02,  1.2it/s]`, and vLLM's `67% Completed | 2/3 [00:01<...]`.
_BAR = re.compile(r"\d{1,3}%(?: Completed)? ?\|[^|\n]{0,120}(?:\| ?)?\d+/\d+ \[[^\]\n]{0,60}\]")


class Line(NamedTuple):
    """One piece of text with the 1-based number of its physical line."""

    number: int
    text: str


def clean(text: str) -> str:
    """`text` without terminal escapes, other control characters and direction overrides."""
    if "\x1b" in text or "m" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text)


def is_progress_bar(text: str) -> bool:
    """Whether `text` ends in a progress bar (tqdm or vLLM's shard counter)."""
    return _BAR.search(text) is not None


def pieces(number: int, raw: bytes) -> list[Line]:
    """The pieces of one physical line, decoded and cleaned.

    A carriage return splits; a progress bar that is followed by other text on the same line is split off it; of many
    bar states only the last is kept.
    """
    text = raw.decode("utf-8", "replace")
    if len(text) > MAX_LINE_CHARS and "\r" not in text:
        text = text[:MAX_LINE_CHARS]
    parts = [part for part in text.split("\r") if part] if "\r" in text else [text]
    result: list[Line] = []
    for part in parts:
        part = clean(part[:MAX_LINE_CHARS])
        spans = list(_BAR.finditer(part)) if "%" in part else []
        if not spans:
            result.append(Line(number, part))
            continue
        last = spans[-1]
        rest = part[last.end() :].strip()
        if result and is_progress_bar(result[-1].text):
            result.pop()
        start = spans[-2].end() if len(spans) > 1 else 0
        result.append(Line(number, part[start : last.end()]))
        if rest:
            result.append(Line(number, rest))
    if len(result) > MAX_PIECES:
        result = result[: MAX_PIECES // 2] + result[-MAX_PIECES // 2 :]
    return result or [Line(number, "")]
