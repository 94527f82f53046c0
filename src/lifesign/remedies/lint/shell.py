"""Splits shell text into commands of words with line numbers, as far as quoting goes; expands nothing.

Not a shell: `$x`, backquotes and `$(...)` stay text and mark their word as not literal; here-documents are skipped.
Linear in the size of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from lifesign.remedies.lint.model import Word

MAX_COMMANDS = 20_000
_SEPARATORS = frozenset(";&|\n()")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


class Command(msgspec.Struct):
    """One simple command: its words in order, the first with its line."""

    words: list[Word] = msgspec.field(default_factory=list)
    array: str = ""
    """The name when these are the members of `NAME=( ... )`."""
    appends: bool = False
    """Whether it was `NAME+=( ... )`."""
    document: Word | None = None
    """The here-document that it reads."""

    @property
    def line(self) -> int:
        """Line of the first word; 0 when there is none."""
        return self.words[0].line if self.words else 0


class _Lexer(msgspec.Struct):
    text: str
    line: int
    at: int = 0
    word: list[str] = msgspec.field(default_factory=list)
    word_line: int = 0
    literal: bool = True
    open: bool = False
    commands: list[Command] = msgspec.field(default_factory=list)
    current: Command = msgspec.field(default_factory=Command)
    documents: list[tuple[str, bool]] = msgspec.field(default_factory=list)
    joins: Sequence[int] = ()
    length: int = 0
    breaks: list[int] = msgspec.field(default_factory=list)


def split(text: str, first_line: int = 1, joins: Sequence[int] = ()) -> list[Command]:
    """The commands of a shell text. Unclosed quotes end with the text; nothing raises.

    joins: the `breaks` of the word that the text comes from, so that lines are still counted as in the file.
    """
    lexer = _Lexer(text, first_line, joins=joins)
    while lexer.at < len(lexer.text) and len(lexer.commands) < MAX_COMMANDS:
        _step(lexer)
    _end_command(lexer)
    return [command for command in lexer.commands if command.words or command.array]


def _step(lexer: _Lexer) -> None:
    char = lexer.text[lexer.at]
    following = lexer.text[lexer.at + 1 : lexer.at + 2]
    if char == "\\":
        _escape(lexer, following)
    elif char in "'\"":
        _quoted(lexer, char)
    elif char == "#" and not lexer.open:
        end = lexer.text.find("\n", lexer.at)
        lexer.at = len(lexer.text) if end < 0 else end
    elif char in " \t\r":
        _end_word(lexer)
        lexer.at += 1
    elif char == "$" and following in ("(", "{"):
        _substitution(lexer, following)
    elif char == "<" and following == "<" and not lexer.text.startswith("<<<", lexer.at):
        _heredoc(lexer)
    elif char == "(" and lexer.open and lexer.word and lexer.word[-1] == "=":
        _array(lexer)
    elif char in _SEPARATORS or (char in "{}" and not lexer.open and following in ("", " ", "\t", "\n", ";")):
        _end_command(lexer)
        lexer.line += char == "\n"
        lexer.at += 1
        if char == "\n" and lexer.documents:
            _skip_documents(lexer)
    else:
        if char in "$`":
            lexer.literal = False
        _put(lexer, char)
        lexer.at += 1


def _put(lexer: _Lexer, text: str) -> None:
    if not lexer.open:
        lexer.open, lexer.word_line = True, lexer.line + bisect_right(lexer.joins, lexer.at)
    lexer.word.append(text)
    lexer.length += len(text)


def _escape(lexer: _Lexer, following: str) -> None:
    if following == "\n":
        lexer.line += 1
    elif following == "\r" and lexer.text[lexer.at + 2 : lexer.at + 3] == "\n":
        lexer.line += 1
        lexer.at += 1
    elif following:
        _put(lexer, following)
    lexer.at += 2


def _quoted(lexer: _Lexer, quote: str) -> None:
    _put(lexer, "")
    text, at = lexer.text, lexer.at + 1
    while at < len(text) and text[at] != quote:
        if quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            if text[at + 1] == "\n":
                lexer.line += 1
                lexer.breaks.append(lexer.length)
            else:
                _put(lexer, text[at + 1])
            at += 2
            continue
        if quote == '"' and text[at] in "$`":
            lexer.literal = False
        lexer.line += text[at] == "\n"
        _put(lexer, text[at])
        at += 1
    lexer.at = at + 1


def _substitution(lexer: _Lexer, opening: str) -> None:
    """`$(...)` or `${...}` as text, to its closing bracket (nesting counted) or the end."""
    closing = ")" if opening == "(" else "}"
    _put(lexer, "$")
    lexer.literal = False
    depth, at = 0, lexer.at + 1
    while at < len(lexer.text):
        char = lexer.text[at]
        depth += (char == opening) - (char == closing)
        lexer.line += char == "\n"
        _put(lexer, char)
        at += 1
        if depth == 0:
            break
    lexer.at = at


def _heredoc(lexer: _Lexer) -> None:
    """Remember the end word of a here-document; its lines are skipped when the command's own line ends."""
    match = _HEREDOC.match(lexer.text, lexer.at)
    if match is not None:
        lexer.documents.append((match.group(2), bool(match.group(1))))
    lexer.at = match.end() if match is not None else lexer.at + 2


def _skip_documents(lexer: _Lexer) -> None:
    """Step over the here-documents of the line that ended; its last command keeps what it reads."""
    for word, quoted in lexer.documents:
        first, begin, stop = lexer.line, lexer.at, lexer.at
        while lexer.at < len(lexer.text):
            end = lexer.text.find("\n", lexer.at)
            end = len(lexer.text) if end < 0 else end
            line = lexer.text[lexer.at : end].strip()
            stop = lexer.at
            lexer.at = end + 1
            lexer.line += 1
            if line == word:
                break
            stop = lexer.at
        if lexer.commands:
            lexer.commands[-1].document = Word(lexer.text[begin:stop], first, quoted)
    lexer.documents = []


def _array(lexer: _Lexer) -> None:
    """`NAME=( a b )`: its members become a command of their own, marked with the name."""
    name = "".join(lexer.word).rstrip("=")
    lexer.word, lexer.open, lexer.length, lexer.breaks = [], False, 0, []
    _end_command(lexer)
    lexer.current.array, lexer.current.appends = name.rstrip("+"), name.endswith("+")
    lexer.at += 1
    while lexer.at < len(lexer.text) and lexer.text[lexer.at] != ")":
        if lexer.text[lexer.at] == "\n":
            _end_word(lexer)
            lexer.line += 1
            lexer.at += 1
        else:
            before = lexer.at
            if lexer.text[lexer.at] in _SEPARATORS:
                _end_word(lexer)
                lexer.at += 1
            else:
                _step(lexer)
            lexer.at = max(lexer.at, before + 1)
    lexer.at += 1
    _end_command(lexer)


def _end_word(lexer: _Lexer) -> None:
    if lexer.open:
        word = Word("".join(lexer.word), lexer.word_line, lexer.literal, tuple(lexer.breaks))
        lexer.current.words.append(word)
    lexer.word, lexer.open, lexer.literal = [], False, True
    lexer.length, lexer.breaks = 0, []


def _end_command(lexer: _Lexer) -> None:
    _end_word(lexer)
    if lexer.current.words or lexer.current.array:
        lexer.commands.append(lexer.current)
    lexer.current = Command()
