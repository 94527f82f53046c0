"""The shell splitter: quoting, continuation, comments, arrays, here-documents, line numbers; and hostile text."""

from __future__ import annotations

import time

import pytest

from lifesign.remedies.lint import shell


def texts(source: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in shell.split(source)]


@pytest.mark.parametrize(
    ("source", "commands"),
    [
        ("a b c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a b; c && d || e | f & g", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a \\\n  b \\\n  c\nd", [["a", "b", "c"], ["d"]]),
        ("a # comment ; b\nc", [["a"], ["c"]]),
        ("a b#c", [["a", "b#c"]]),
        ("a ''", [["a", ""]]),
        ("x='{\"a\": [1, 2]}'", [['x={"a": [1, 2]}']]),
        ('a {"b":1}', [["a", "{b:1}"]]),
        ("{ a; }", [["a"]]),
        ('a "unclosed b', [["a", "unclosed b"]]),
        ("a\r\nb", [["a"], ["b"]]),
        ("cat <<EOF\nvllm serve x --bad\nEOF\nb", [["cat"], ["b"]]),
        ("cat <<-'E' > f\n\tx\n\tE\nb", [["cat", ">", "f"], ["b"]]),
        ("a $(b ; c) d", [["a", "$(b ; c)", "d"]]),
        ("", []),
        ("\n\n  \n", []),
    ],
)
def test_splitting(source: str, commands: list[list[str]]) -> None:
    assert texts(source) == commands


def test_lines() -> None:
    commands = shell.split("a\nb \\\n  c 'x\ny' d\n\ne", first_line=10)
    assert [[(word.text, word.line) for word in command.words] for command in commands] == [
        [("a", 10)],
        [("b", 11), ("c", 12), ("x\ny", 12), ("d", 13)],
        [("e", 15)],
    ]


def test_lines_after_a_here_document() -> None:
    commands = shell.split("cat <<E\n1\n2\nE\nb\n")
    assert commands[-1].line == 5


def test_what_a_shell_would_still_change_is_not_literal() -> None:
    words = shell.split("a $B \"$C\" '$D' `e`")[0].words
    assert [word.literal for word in words] == [True, False, False, True, False]


def test_arrays() -> None:
    commands = shell.split("ARGS=(\n  --a 1  # why\n  --b\n)\nrun")
    assert commands[0].array == "ARGS"
    assert [(word.text, word.line) for word in commands[0].words] == [("--a", 2), ("1", 2), ("--b", 3)]
    assert [word.text for word in commands[1].words] == ["run"]


@pytest.mark.parametrize("piece", ["'", '"', "\\", "$(", "${", "<<E\n", "(", "{ ", "a=(", "`", "a ", "\n", "#"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    began = time.process_time()
    shell.split(piece * 20_000)
    assert time.process_time() - began < 20, "not linear"
