"""Where a line of text may end: between words, and between Chinese characters, but not between a number and its unit.

Chinese runs without blanks, so breaking only at blanks leaves ragged lines and cuts long runs anywhere: before a full stop,
or between `1.21` and `GiB`.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

_HELD = re.compile(r"(?<=\d) (?=(?:[KMGT]i?B(?:/s)?|ms|s|min|h|%|秒|分钟|个|倍)(?![A-Za-z0-9]))")
_UNITS = "秒分个倍%％"
_NOT_FIRST = frozenset("，。；：、！？）》」』】…％%,.;:!?)")
_NOT_LAST = frozenset("（《「『【(")


def spans(text: str, room: int) -> list[tuple[int, int]]:
    """`text` (one paragraph) in pieces of at most `room` cells, as (start, end) without the blanks at their ends."""
    widths = [0]
    for character in text:
        widths.append(widths[-1] + cell_len(character))
    places = _places(text, widths)
    found: list[tuple[int, int]] = []
    start, following = 0, 0
    while start < len(text):
        limit = widths[start] + room
        end = 0
        while following < len(places):
            place = places[following]
            if widths[_without_blanks(text, start, place)] > limit:
                break
            end, following = place, following + 1
        if end <= start:  # a word that is longer than the line
            end = start + 1
            while end < len(text) and widths[end + 1] <= limit:
                end += 1
        found.append((start, _without_blanks(text, start, end)))
        start = end
        while start < len(text) and text[start] == " ":
            start += 1
        while following < len(places) and places[following] <= start:
            following += 1
    return found


def _without_blanks(text: str, start: int, end: int) -> int:
    while end > start and text[end - 1] == " ":
        end -= 1
    return end


def _places(text: str, widths: list[int]) -> list[int]:
    """The places where a line may end, in order; the end of the text is the last."""
    held = {match.end() for match in _HELD.finditer(text)}
    found = []
    for at in range(1, len(text)):
        before, after = text[at - 1], text[at]
        if after == " " or at in held:
            continue
        if before == " ":
            found.append(at)
            continue
        wide = widths[at] - widths[at - 1] == 2 or widths[at + 1] - widths[at] == 2
        unit = before.isdigit() and after in _UNITS
        if wide and not unit and after not in _NOT_FIRST and before not in _NOT_LAST:
            found.append(at)
    return [*found, len(text)]
