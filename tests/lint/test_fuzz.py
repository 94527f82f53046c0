"""Whatever a file contains, lint answers or says one sentence; no exception of its own ever gets out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifesign.errors import LifesignError
from lifesign.remedies.lint import check, dialects, manifests, output, python_files, readers
from lifesign.remedies.lint.model import Invocation

PIECES = st.sampled_from(
    [
        "vllm serve m ", "--max-num-seqs ", "64 ", "--cudagraph_mode NONE ", "-cc ", "'{\"a\": [1, {\"b\": 2}]}' ", "-O3 ", "-O.a.b=c ", "-tp=2 ",
        "--compilation-config.x.y+ ", "export VLLM_A=1\n", "NCCL_DEBUG=INFO ", "\\\n", "\n", "'", '"', "$X ", "${A[@]} ", "A=( ", ") ", "<<E\n", "E\n",
        "docker run ", "-e VLLM_B=x ", "vllm/vllm-openai:v0.9.1 ", "| tee log\n", "--=", "--. ", "- ", "-- ", "\x1b[31m", "é中 ", "--no-no-x ",
        "image: vllm/vllm-openai:v0.11.0\n", "command:\n", "  - ", "args: [", "] ", "{", "}", "env:\n", "  - name: VLLM_C\n    value: ", ": ", "&a ", "*a ", "|\n  ",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=40).map("".join)
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def answer(found: list[Invocation], version: str) -> None:
    report = check(found, version)
    for lang in ("en", "zh"):
        text = output.terminal(report, lang, False) + output.github(report, lang)
        assert "\x1b" not in text
    assert output.as_json(report, "en")
    assert output.sarif(report, "en", "0")


@RELAXED
@given(TEXTS, st.sampled_from(["0.8.5", "0.12.0", "0.33.0"]))
def test_scripts(text: str, version: str) -> None:
    answer(readers.script(text, "x"), version)
    answer(readers.dockerfile("FROM vllm/vllm-openai:v0.9.1\nCMD " + text, "x"), version)
    answer(readers.env_file(text, "x"), version)
    answer(dialects.systemd("[Service]\nExecStart=" + text, "x"), version)
    answer(dialects.systemd("[Container]\nImage=vllm/vllm-openai\nExec=" + text, "x"), version)
    answer(dialects.supervisord("[program:x]\ncommand=" + text, "x"), version)
    for dialect in (dialects.powershell, dialects.batch, dialects.markdown):
        answer(readers.script(dialect("```\n" + text), "x"), version)


@RELAXED
@given(TEXTS, st.sampled_from(["0.8.5", "0.12.0", "0.33.0"]))
def test_manifests_and_python(text: str, version: str) -> None:
    for read in (manifests.read, python_files.read):
        try:
            found = read(text, "x")
        except LifesignError:
            continue
        answer(found, version)


@RELAXED
@given(st.lists(PIECES | st.text(max_size=8), max_size=12))
def test_command_lines(words: list[str]) -> None:
    answer(readers.command_line(words), "0.32.0")


@pytest.mark.parametrize("word", ["--" + "a" * 100_000, "-" * 100_000, "--a." + "b." * 50_000, "-O." + "c" * 100_000])
def test_very_long_words(word: str) -> None:
    answer(readers.command_line(["vllm", "serve", "m", word, "1"]), "0.32.0")
