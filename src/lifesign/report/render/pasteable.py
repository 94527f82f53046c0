"""Long shell commands over several lines, so that pasting them back runs the same command.

A terminal report is narrow and commands are long. Plain wrapping puts a line break where a shell ends the command, or
inside a quoted word. Here a line ends only between words, outside quotes, with a backslash; a word that is longer than the
line stays whole and runs over its edge. An option and its value stay on one line where they fit into one. A comment at the end gets lines of its own: a backslash doesn't continue it.
"""

from __future__ import annotations

import re

import msgspec
from rich.cells import cell_len

CONTINUATION = " \\"
HANGING = "    "
"""Indent of the lines that continue a command."""


class Piece(msgspec.Struct, frozen=True):
    """One line of a command: `before`, then `command[start:end]`, then `after`."""

    before: str
    start: int
    end: int
    after: str = ""


def pieces(command: str, room: int) -> list[Piece]:
    """Where to break the one-line `command` for lines of `room` cells."""
    if cell_len(command) <= room:
        return [Piece("", 0, len(command))]
    comment, gaps = _words(command)
    code_end = len(command[:comment].rstrip())
    found = [
        Piece(HANGING if start else "", start, end, CONTINUATION if end < code_end else "")
        for start, end in _lines(command, 0, code_end, gaps, room - len(HANGING) - len(CONTINUATION))
    ]
    gaps = [(at, at + 1) for at in range(comment + 2, len(command)) if command[at] == " "]
    for start, end in _lines(command, comment, len(command), gaps, room - 2):
        found.append(Piece("" if start == comment else "# ", start, end))
    return found


def fold(command: str, room: int) -> list[str]:
    """`command` as lines of at most `room` cells, unless one word is longer."""
    return [f"{piece.before}{command[piece.start : piece.end]}{piece.after}" for piece in pieces(command, room)]


def _lines(text: str, start: int, stop: int, gaps: list[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """`text[start:stop]` in spans of at most `room` cells, cut at the (start, end) of blanks in `gaps`."""
    spans = []
    while start < stop:
        ahead = [gap for gap in gaps if start < gap[0] < stop] if cell_len(text[start:stop]) > room else []
        fitting = [gap for gap in ahead if cell_len(text[start : gap[0]]) <= room]
        apart = [gap for gap in fitting if not _is_pair(text, gap, room)]
        end, following = apart[-1] if apart else fitting[-1] if fitting else ahead[0] if ahead else (stop, stop)
        for after in [gap for gap in gaps if following < gap[0] < stop] + [(stop, stop)]:
            # A quoted script that fits no line runs over the edge anyway: `-c` alone on the line before it is no help.
            word = text[following : after[0]]
            if following >= stop or cell_len(word) <= room or " " not in word:
                break
            end, following = after
        spans.append((start, end))
        start = following
    return spans


def _is_pair(text: str, gap: tuple[int, int], room: int) -> bool:
    """Whether a blank stands between an option and its value, and both fit into one line."""
    option = text[: gap[0]].rpartition(" ")[2]
    value = text[gap[1] :].partition(" ")[0]
    return (
        re.fullmatch(r"--?[A-Za-z][\w.\-]*", option) is not None
        and not value.startswith(("-", "|", ">", "<", "&", ";", "#"))
        and cell_len(f"{option} {value}") <= room
    )


def _words(command: str) -> tuple[int, list[tuple[int, int]]]:
    """Where a comment at the end starts (else the length), and the blanks between words: (start, end) of each run."""
    gaps: list[tuple[int, int]] = []
    quote = ""
    escaped = False
    blank_from = 0
    after_blank = True
    for at, character in enumerate(command):
        if character == " " and not quote and not escaped:
            blank_from = blank_from if after_blank else at
            after_blank = True
            continue
        if after_blank:
            if character == "#":
                return at, gaps
            if at > 0:
                gaps.append((blank_from, at))
            after_blank = False
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
    return len(command), gaps
