"""The catalog against the real parser and vllm.envs of the vLLM built for the tests: exact equality of every set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import gen_catalog  # noqa: E402

pytestmark = pytest.mark.engine


def engine_python() -> str:
    """The interpreter of the vLLM environment: $LIFESIGN_ENGINE_PYTHON, else what tools/engine_env.py built."""
    named = os.environ.get("LIFESIGN_ENGINE_PYTHON")
    if named:
        return named
    done = subprocess.run(
        [sys.executable, str(TOOLS / "engine_env.py"), "path", "0.32.0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0 or not Path(done.stdout.strip()).exists():
        pytest.skip("no vLLM environment: tools/engine_env.py build 0.32.0")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def real() -> dict[str, object]:
    done = subprocess.run(
        [engine_python(), str(TOOLS / "catalog_truth.py")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def shipped(version: str) -> dict[str, object]:
    records = gen_catalog.unfold(json.loads(gen_catalog.OUTPUT.read_text(encoding="utf-8")))
    return records[version.partition("+")[0]]


def test_every_set_is_equal(real: dict[str, object]) -> None:
    assert gen_catalog.compare(shipped(str(real["version"])), real) == []


def test_the_comparison_can_fail(real: dict[str, object]) -> None:
    record = shipped(str(real["version"]))
    options = dict(record["options"])  # type: ignore[call-overload]
    options.pop("--max-num-seqs")
    options["--cudagraph-mode"] = {"type": "str"}
    differences = gen_catalog.compare({**record, "options": options}, real)
    assert "option --max-num-seqs: missing in the catalog" in differences
    assert "option --cudagraph-mode: only in the catalog" in differences


def test_help_of_the_real_command_lists_nothing_else(real: dict[str, object]) -> None:
    """`vllm serve --help=all`, the way a user asks, knows exactly the long names of the catalog."""
    import re

    code = "import sys; sys.argv = ['vllm', 'serve', '--help=all']; from vllm.entrypoints.cli.main import main; main()"
    done = subprocess.run(
        [engine_python(), "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "400", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    heads = "\n".join(line.split("  ", 2)[1] if line.startswith("  -") else "" for line in done.stdout.splitlines())
    listed = set(re.findall(r"(?<![\w.-])--[a-z][a-z0-9-]+", heads))
    mine = gen_catalog.option_strings(shipped(str(real["version"])))
    assert {name for name in mine if name.startswith("--")} == listed
