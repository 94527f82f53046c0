"""The same input gives the same bytes of output in every process: Python's string hashes, and so the order of sets, differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ("0", "1", "7", "42")
CONFIG = """\
model: Qwen/Qwen3-8B
cudagraph_mode: NONE
compilation_config: {level: 9, cudagraph_modes: x, no_such: 1, other: 2}
use-deepgemm: true
engine_rpc_timeout: 5
tensor-parallel-sise: 2
"""


def outputs(*arguments: str) -> set[str]:
    """What `lifesign` printed under each seed."""
    texts = set()
    for seed in SEEDS:
        run = subprocess.run(
            [sys.executable, "-m", "lifesign", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=False,
        )
        assert run.returncode in (0, 1), run.stderr
        assert run.stdout, run.stderr
        texts.add(run.stdout)
    return texts


@pytest.mark.parametrize(
    "log",
    [
        "corpus/lab/oom_serving_mlp.log",
        "corpus/lab/kill9_worker_serving.log",
        "samples/engine-dead-slow-step.log",
    ],
)
@pytest.mark.parametrize("options", [("--lang", "en"), ("--lang", "zh", "--all-lives"), ("--format", "json")])
def test_a_report(log: str, options: tuple[str, ...]) -> None:
    texts = outputs("diagnose", str(ROOT / log), *options)
    assert len(texts) == 1
    assert Path(log).name in texts.pop()


def test_problems_on_one_line_of_a_config_file(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(CONFIG)
    texts = outputs("lint", str(config), "--vllm-version", "0.30.0")
    assert len(texts) == 1
    assert "no_such" in texts.pop()


def test_the_tree() -> None:
    assert len(outputs("tree")) == 1
