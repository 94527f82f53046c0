"""A shell text as words and operators, each with its own spelling, so that a part can be changed and the rest stay.

Not a shell: nothing is expanded. `$x`, backquotes, `$(...)` and patterns keep their spelling and mark their word as not literal.
Linear in the size of the text.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from lifesign.errors import UsageError
from lifesign.text import T

Kind = Literal["word", "redirect", "end"]
_REDIRECT = re.compile(r"\d{0,3}(?:>>|>\||>&|<&|<>|<<<|<<|>|<)|&>>?")
_END = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_LITERAL = re.compile(r"[^\s\\'\"$`|&;()<>*?\[]+")


class Unreadable(UsageError):
    """A text that can't be taken apart as one shell line. `reason` says why in both languages."""

    def __init__(self, reason: T) -> None:
        super().__init__(reason.en)
        self.reason = reason


class Token(msgspec.Struct, frozen=True):
    """One piece of a shell text. kind: `word`; `redirect` (with its target); `end` (what ends a simple command: `|`,
    `&&`, `;`, a new line). text: without quotes. raw: as it is spelled.
    live: whether a shell would expand something in it (`$x`, a pattern). start, end: place in the text.
    """

    kind: Kind
    text: str
    raw: str
    live: bool = False
    start: int = 0
    end: int = 0


def split(text: str) -> list[Token]:
    """The tokens of `text` in order. Raises Unreadable for an open quote or bracket and for a here-document."""
    tokens: list[Token] = []
    at = 0
    while True:
        at = _blank(text, at)
        if at >= len(text):
            return tokens
        if text[at] == "#":
            newline = text.find("\n", at)
            at = newline if newline >= 0 else len(text)
            continue
        redirect = None if text.startswith(("<(", ">("), at) else _REDIRECT.match(text, at)
        end = _END.match(text, at)
        if redirect is not None:
            if redirect[0].endswith("<<"):
                raise Unreadable(T("it holds a here-document", "其中有 here-document"))
            target = _word(text, _blank(text, redirect.end()))
            stop = target.end if target is not None else redirect.end()
            tokens.append(Token("redirect", text[at:stop], text[at:stop], True, at, stop))
        elif end is not None:
            stop = end.end()
            tokens.append(Token("end", end[0], end[0], False, at, stop))
        else:
            word = _word(text, at)
            if word is None:  # can't be: every other character begins a word
                return tokens
            tokens.append(word)
            stop = word.end
        at = stop


def _blank(text: str, at: int) -> int:
    """The next place that isn't a blank or a continued line."""
    while at < len(text):
        if text[at] in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif text.startswith("\\\r\n", at):
            at += 3
        else:
            break
    return at


def _word(text: str, at: int) -> Token | None:
    """The word that begins at `at`; None when there is none."""
    begin, live = at, False
    parts: list[str] = []
    if text.startswith(("<(", ">("), at):  # a command in place of a file
        at, live = _expansion(text, at), True
        parts.append(text[begin:at])
    while at < len(text) and text[at] not in " \t\r\n|&;()<>":
        plain = _LITERAL.match(text, at)
        if plain is not None:
            parts.append(plain[0])
            at = plain.end()
            continue
        character = text[at]
        if character == "\\":
            at, piece = _escaped(text, at)
            parts.append(piece)
        elif character == "'":
            stop = text.find("'", at + 1)
            if stop < 0:
                raise Unreadable(_OPEN_QUOTE)
            parts.append(text[at + 1 : stop])
            at = stop + 1
        elif character == '"':
            at, piece, expands = _double(text, at + 1)
            parts.append(piece)
            live |= expands
        elif character in "$`":
            stop = _expansion(text, at)
            parts.append(text[at:stop])
            at, live = stop, True
        else:  # a pattern: * ? [
            parts.append(character)
            at, live = at + 1, True
    return Token("word", "".join(parts), text[begin:at], live, begin, at) if at > begin else None


_OPEN_QUOTE = T("a quote in it isn't closed", "其中有引号没有闭合")


def _escaped(text: str, at: int) -> tuple[int, str]:
    """What a backslash outside quotes stands for: nothing when it continues the line."""
    if at + 1 >= len(text):
        raise Unreadable(T("it ends with a backslash: the next line is missing", "它以反斜杠结尾：缺少下一行"))
    if text[at + 1] == "\n":
        return at + 2, ""
    return at + 2, text[at + 1]


def _double(text: str, at: int) -> tuple[int, str, bool]:
    """The inside of double quotes that begin before `at`: (place after them, text, whether it expands)."""
    parts: list[str] = []
    live = False
    while at < len(text) and text[at] != '"':
        character = text[at]
        if character == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            parts.append("" if text[at + 1] == "\n" else text[at + 1])
            at += 2
        elif character in "$`":
            stop = _expansion(text, at)
            parts.append(text[at:stop])
            at, live = stop, True
        else:
            parts.append(character)
            at += 1
    if at >= len(text):
        raise Unreadable(_OPEN_QUOTE)
    return at + 1, "".join(parts), live


def _expansion(text: str, at: int) -> int:
    """The end of `$x`, `${...}`, `$(...)` or a pair of backquotes that begins at `at`."""
    if text[at] == "`":
        stop = text.find("`", at + 1)
        if stop < 0:
            raise Unreadable(_OPEN_QUOTE)
        return stop + 1
    opening = text[at + 1 : at + 2]
    if opening not in ("(", "{"):
        return at + 1
    closing, depth = (")", 0) if opening == "(" else ("}", 0)
    for place in range(at + 1, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place + 1
    raise Unreadable(T("a bracket in it isn't closed", "其中有括号没有闭合"))
