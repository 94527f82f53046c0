"""A command that a report spreads over several lines must do the same when it is pasted: asked of a real shell."""

from __future__ import annotations

import random
import shlex
import subprocess

import pytest

from lifesign.report.render.pasteable import fold

SHOW = "show() { printf '%s\\n' \"$@\"; }; show "
BASH = ["bash", "--noprofile", "--norc"]


def arguments(text: str) -> str:
    """What a shell hands to a program when `text` is pasted."""
    return subprocess.run(BASH, input=SHOW + text, capture_output=True, text=True, timeout=20, check=True).stdout


@pytest.mark.parametrize(
    "command",
    [
        'vllm serve /models/a --max-num-seqs 64 --compilation-config \'{"cudagraph_mode": "NONE", "level": 3}\' --port 8001',
        "gh search issues --repo vllm-project/vllm 'ValueError Cannot fold blorps into the widget frob_it'",
        r"one\ word\ with\ blanks two\\ three  four   'five  six' seven \"eight nine ten eleven twelve\" thirteen",
        "a#b 'c # d' \"e # f\" --long-option=value --another-option=value   # a comment that is too long for the line",
        "中文 --served-model-name 通义千问-测试模型 --另一个选项 很长很长的值 --max-num-seqs 64 结束",
        "'" + "x y " * 40 + "'",
    ],
)
def test_the_shell_gets_the_same_words(command: str) -> None:
    lines = fold(command, 40)
    assert len(lines) > 1 or command.startswith("'")
    assert arguments("\n".join(lines)) == arguments(command)


def test_the_shell_gets_the_same_words_of_random_commands() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(40):
        words = ["".join(rng.choices("ab '\"\\#$;|&中", k=rng.randint(1, 14))) for _ in range(rng.randint(1, 16))]
        command = (" " * rng.randint(1, 3)).join(shlex.quote(word) for word in words)
        room = rng.randint(20, 60)
        assert arguments("\n".join(fold(command, room))) == arguments(command), (seed, command, room)


def test_a_short_command_stays_as_it_is() -> None:
    assert fold("df -h  /data", 40) == ["df -h  /data"]


def test_a_plain_break_would_change_the_command() -> None:
    """The negative: what a text wrapper does to a command is another command."""
    assert arguments("one two\nset three") != arguments("one two set three")


def test_lines_fit_where_words_do() -> None:
    assert fold("vllm serve MODEL --max-num-seqs 64 --max-model-len 8192", 41) == [
        "vllm serve MODEL --max-num-seqs 64 \\",
        "    --max-model-len 8192",
    ]


def test_a_comment_is_not_continued_by_a_backslash() -> None:
    assert fold("vllm collect-env   # then open an issue with the whole log and all versions", 40) == [
        "vllm collect-env",
        "# then open an issue with the whole",
        "# log and all versions",
    ]


def test_an_option_stays_with_its_value() -> None:
    assert fold("vllm serve MODEL --max-num-seqs 64 --max-model-len 8192", 32) == [
        "vllm serve MODEL \\",
        "    --max-num-seqs 64 \\",
        "    --max-model-len 8192",
    ]


def test_an_option_whose_value_fits_no_line_is_parted_from_it() -> None:
    path = "/models/" + "a" * 30
    assert fold(f"vllm serve --model {path} --port 1", 32) == [
        "vllm serve --model \\",
        f"    {path} \\",
        "    --port 1",
    ]


def test_a_script_that_fits_no_line_stays_with_its_option() -> None:
    script = "'import torch; print(torch.cuda.is_available())'"
    assert fold(f"python -c {script} --x 1", 32) == ["python \\", f"    -c {script} \\", "    --x 1"]


def test_a_flag_before_an_option_is_no_pair() -> None:
    assert fold("vllm serve m --enforce-eager --port 8123", 36) == [
        "vllm serve m --enforce-eager \\",
        "    --port 8123",
    ]
