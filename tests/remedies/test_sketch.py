"""A sketch of a start becomes the reader's whole line where the log has one, and the scorer counts only what was added."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from lifesign.facts.config import learn_command
from lifesign.facts.model import Life
from lifesign.remedies.sketch import filled

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from eval import added

WITHOUT = "vllm serve MODEL ...   # yours, without --speculative-config"


def life(command: str = "", **user_args: object) -> Life:
    made = Life(version="0.32.0", model="/m", user_args=dict(user_args), config=dict(user_args))
    if command:
        assert learn_command(made, command)
    return made


@pytest.mark.parametrize(
    ("sketch", "command", "expected"),
    [
        (
            WITHOUT,
            'vllm serve /m --port 1 --speculative-config \'{"method": "eagle"}\' -tp 2',
            "vllm serve /m --port 1 -tp 2   # yours, without --speculative-config",
        ),
        (
            "vllm serve MODEL ...   # yours, without --kv-offloading-size and --kv-transfer-config",
            "vllm serve /m --kv-transfer-config '{}' --kv-offloading-size=4 --port 1",
            "vllm serve /m --port 1   # yours, without --kv-offloading-size and --kv-transfer-config",
        ),
        (
            "lifesign guard --state-dir ./lifesign -- vllm serve MODEL ...",
            "A=1 HF_TOKEN=hf_x vllm serve '/my model' --port 1",
            "A=1 HF_TOKEN=*** lifesign guard --state-dir ./lifesign -- vllm serve '/my model' --port 1",
        ),
        (
            "compute-sanitizer vllm serve MODEL ... --enforce-eager --max-model-len 2048",
            "python3 -m vllm.entrypoints.openai.api_server --model /m --max-model-len 8192 --port 1",
            "compute-sanitizer python3 -m vllm.entrypoints.openai.api_server --model /m --max-model-len 2048 --port 1 --enforce-eager",
        ),
        (
            'vllm serve MODEL ... --compilation-config \'{"cudagraph_mode": "NONE"}\'',
            "vllm serve /m",
            'vllm serve /m --compilation-config \'{"cudagraph_mode": "NONE"}\'',
        ),
        # Another program can't start these, so the sketch stays one.
        ("lifesign guard -- vllm serve MODEL ...", "bash -c 'vllm serve /m'", "lifesign guard -- vllm serve /m ..."),
        (WITHOUT, "cd /x && vllm serve /m", "vllm serve /m ...   # yours, without --speculative-config"),
        (WITHOUT, "vllm serve /m > log", "vllm serve /m ...   # yours, without --speculative-config"),
        (WITHOUT, "", "vllm serve /m ...   # yours, without --speculative-config"),
        # No sketch.
        ("vllm bench serve --model MODEL", "vllm serve /m --port 1", "vllm bench serve --model /m"),
    ],
)
def test_the_reader_s_line_takes_the_sketch_s_place(sketch: str, command: str, expected: str) -> None:
    made = filled(sketch, life(command))
    assert made == expected
    assert shlex.split(made, comments=True)


def test_a_line_is_rebuilt_from_the_logged_arguments() -> None:
    made = filled(WITHOUT, life(max_num_seqs=8, speculative_config={"method": "ngram"}))
    assert made == "vllm serve /m --max-num-seqs 8   # yours, without --speculative-config"


OWN = [["vllm", "serve", "/m", "--gpu-memory-utilization", "0.9", "--enforce-eager", "-tp", "2"]]


@pytest.mark.parametrize(
    ("command", "counts"),
    [
        ("lifesign guard -- vllm serve /m --gpu-memory-utilization 0.9 --enforce-eager", False),
        ("vllm serve /m --gpu-memory-utilization 0.95 --enforce-eager", True),  # another value is the remedy's
        ("echo --gpu-memory-utilization 0.9", True),  # it doesn't show the reader's line
        ("vllm serve /m -tp 2 --enforce-eager", False),
    ],
)
def test_only_what_a_remedy_adds_counts(command: str, counts: bool) -> None:
    assert ("--gpu-memory-utilization" in added(command, OWN)) is counts


def test_no_phrase_arises_across_what_is_left_out() -> None:
    assert "guard --state" not in added("lifesign guard vllm serve /m -tp 2 --state-dir x", OWN)
    assert added("lifesign guard vllm serve /m -tp 2 --x", OWN) == "lifesign guard | | | | | --x"
