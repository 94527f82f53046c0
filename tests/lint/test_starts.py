"""Starts of vLLM inside wrappers: shells, ssh, tmux, eval, containers; with lines, settings and releases; and talk about them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lifesign.remedies.lint import readers
from lifesign.remedies.lint.model import Invocation


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def words(found: list[Invocation]) -> list[list[str]]:
    return [[word.text for word in invocation.words] for invocation in found]


@pytest.mark.parametrize(
    "command",
    [
        'bash -c "vllm serve m --a 1"',
        "/bin/sh -ec 'vllm serve m --a 1'",
        "bash -l -o pipefail -c 'vllm serve m --a 1'",
        "nohup bash -lc 'source x; bash -c \"vllm serve m --a 1\"' > log &",
        "srun --gres=gpu:1 bash -c 'cd /x && vllm serve m --a 1'",
        'ssh -p 22 user@host "cd /x; vllm serve m --a 1"',
        "ssh host vllm serve m --a 1",
        "tmux new -d -s v 'vllm serve m --a 1'",
        "tmux send-keys -t v 'vllm serve m --a 1' Enter",
        'screen -dmS v bash -c "vllm serve m --a 1"',
        'CMD="vllm serve m"; eval $CMD --a 1',
        'CMD="vllm serve m"\neval "$CMD --a 1"',
        "CMD='vllm serve m'\nCMD+=' --a 1'\n$CMD",
        "ARGS=(m)\nARGS+=(--a 1)\nvllm serve \"${ARGS[@]}\"",
        'sbatch --wrap="vllm serve m --a 1"',
        'su - user -c "vllm serve m --a 1"',
        "docker run x/y:1 bash -c 'vllm serve m --a 1'",
        "docker run --entrypoint bash vllm/vllm-openai:v0.9.1 -c 'vllm serve m --a 1'",
        "docker run --entrypoint=vllm vllm/vllm-openai:v0.9.1 serve m --a 1",
        "docker run --name vllm-openai vllm/vllm-openai:latest m --a 1",
        "kubectl exec pod -- sh -c 'vllm serve m --a 1'",
    ],
)  # fmt: skip
def test_wrappers_are_opened(command: str) -> None:
    assert words(readers.script(command, "x")) == [["m", "--a", "1"]]


@pytest.mark.parametrize(
    "command",
    [
        'echo "vllm serve m --a 1"',
        "echo vllm serve m --a 1",
        "if ! pgrep -f 'vllm serve m'; then echo 'vllm serve m'; fi",
        "pkill -f 'vllm serve m --a 1'",
        "bash 'vllm serve m'",  # without -c it is the name of a file
        "git commit -m 'vllm serve m'",
        "tmux new -d 'htop'",
        "bash -c 'echo vllm serve m'",
        "docker run --entrypoint bash vllm/vllm-openai:v0.9.1 -c 'nvidia-smi'",
    ],
)
def test_what_only_talks_about_a_start(command: str) -> None:
    assert readers.script(command, "x") == []


def test_nesting_ends() -> None:
    text = "vllm serve m"
    for _ in range(3):
        text = "bash -c " + _quoted(text)
    assert words(readers.script(text, "x")) == [["m"]]
    for _ in range(10):
        text = "bash -c " + _quoted(text)
    assert readers.script(text, "x") == []


@pytest.mark.parametrize("word", ["eval ", "ssh ", "bash -c ", "tmux 'vllm x' ", "sh -c 'vllm x' ", "docker run "])
def test_wrappers_without_end_take_linear_time(word: str) -> None:
    began = time.process_time()
    assert readers.script(word * 3000 + "vllm-x", "x") == []
    nested = "vllm x"
    for _ in range(6):
        nested = f"{word * 30} {_quoted(nested)}"
    assert readers.script(nested, "x") == []
    assert time.process_time() - began < 20, "not linear"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_lines_inside_a_wrapper() -> None:
    text = "#!/bin/sh\nbash -c \"export VLLM_A=1; vllm serve m \\\n  --a 1 \\\n  --b\"\nssh h '\n  vllm serve n\n  '\n"
    first, second = readers.script(text, "x")
    assert [(word.text, word.line) for word in first.words] == [("m", 2), ("--a", 3), ("1", 3), ("--b", 4)]
    assert [(setting.name, setting.line) for setting in first.settings] == [("VLLM_A", 2)]
    assert [(word.text, word.line) for word in second.words] == [("n", 6)]


def test_what_the_outer_shell_fills_in_is_not_literal() -> None:
    (outer,) = readers.script("bash -c \"vllm serve '$M' --a '1'\"", "x")
    assert [word.literal for word in outer.words] == [False, True, True]
    (inner,) = readers.script("bash -c 'vllm serve \"$M\" --a 1'", "x")
    assert [word.literal for word in inner.words] == [False, True, True]


def test_exports_reach_a_shell_and_not_another_machine() -> None:
    names = {"VLLM_A"}
    (local,) = readers.script("export VLLM_A=1\nbash -c 'vllm serve m'", "x")
    assert {setting.name for setting in local.settings} == names
    (remote,) = readers.script("export VLLM_A=1\nssh h 'vllm serve m'", "x")
    assert remote.settings == []
    (passed,) = readers.script("export VLLM_A=1 VLLM_B=2\ndocker run -e VLLM_A vllm/vllm-openai:v0.9.1 m", "x")
    assert {setting.name for setting in passed.settings} == names


def test_command_lines() -> None:
    assert words(readers.command_line(["bash", "-c", "vllm serve m --a 1"])) == [["m", "--a", "1"]]
    assert words(readers.command_line(["vllm serve m --a 1"])) == [["m", "--a", "1"]]
    assert readers.command_line(["bash", "-c", "ls"]) == []
    assert readers.command_line(["echo vllm"]) == []


# -- Dockerfile --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'FROM vllm/vllm-openai:v0.9.2\nENTRYPOINT []\nCMD bash -c "vllm serve m --a 1"\n',
        'FROM x\nENTRYPOINT ["/bin/bash","-c"]\nCMD ["vllm serve m --a 1"]\n',
        'FROM x\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", "--a", "1"]\n',
        "FROM x\nCMD cd /x && vllm serve m --a 1\n",
        "FROM x\nENTRYPOINT exec vllm serve m --a 1\n",
        'FROM vllm/vllm-openai:v0.9.2\nCMD\t["m", "--a", "1"]\n',
        "FROM vllm/vllm-openai:latest\nCMD m --a 1\n",
        'FROM x AS base\nENTRYPOINT ["vllm", "serve"]\nFROM base\nCMD ["m", "--a", "1"]\n',
    ],
)
def test_dockerfiles(text: str) -> None:
    assert words(readers.dockerfile(text, "x")) == [["m", "--a", "1"]]


@pytest.mark.parametrize(
    "text",
    [
        'FROM vllm/vllm-openai:v0.9.2\nENTRYPOINT []\nCMD ["--a", "1"]\n',
        'FROM vllm/vllm-openai:v0.9.2\nENTRYPOINT ["./run.sh"]\nCMD ["--a", "1"]\n',
        "FROM x\nRUN echo vllm serve m\nCMD nginx\n",
        'FROM x\nENV VLLM_A=1\nENTRYPOINT ["vllm", "serve"]\nFROM nginx\nCMD ["m"]\n',
    ],
)
def test_dockerfiles_that_start_none(text: str) -> None:
    assert readers.dockerfile(text, "x") == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("FROM x\nRUN pip install vllm==0.9.2\nCMD vllm serve m\n", "0.9.2"),
        ("FROM x\nRUN pip install -U \\\n  'vllm[flashinfer]==0.9.2' x\nCMD vllm serve m\n", "0.9.2"),
        ("FROM x\nARG V=0.9.2\nRUN uv pip install vllm==${V}\nCMD vllm serve m\n", "0.9.2"),
        ("FROM vllm/vllm-openai:${TAG:-v0.9.2}\nCMD m\n", "0.9.2"),
        ("ARG TAG=v0.9.2\nFROM vllm/vllm-openai:$TAG\nCMD m\n", "0.9.2"),
        ("FROM vllm/vllm-openai:$TAG\nCMD m\n", ""),
        ("FROM x\nRUN pip install vllm-ascend==0.9.2\nCMD vllm serve m\n", ""),
        ("FROM x\nRUN pip install 'vllm>=0.9.2'\nCMD vllm serve m\n", ""),
    ],
)
def test_the_release_of_a_dockerfile(text: str, version: str) -> None:
    (found,) = readers.dockerfile(text, "x")
    assert found.image_version == version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("pip install vllm==0.9.2\nvllm serve m", "0.9.2"),
        ("uvx --from vllm==0.9.2 vllm serve m", "0.9.2"),
        ("uv run --with=vllm==0.9.2 vllm serve m", "0.9.2"),
        ("V=0.9.2\npip install vllm==$V\nvllm serve m", "0.9.2"),
        ("TAG=v0.9.2\ndocker run vllm/vllm-openai:$TAG m", "0.9.2"),
        ("pip install vllm==0.9.2\ndocker run vllm/vllm-openai:v0.11.0 m", "0.11.0"),
        ("pip install torch==2.9\nvllm serve m", ""),
    ],
)
def test_the_release_of_a_script(text: str, version: str) -> None:
    (found,) = readers.script(text, "x")
    assert found.image_version == version
