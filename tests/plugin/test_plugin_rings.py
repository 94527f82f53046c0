"""Real vLLM releases without a server: patient waiting on their message rings, our series in their registries."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_support import engine_path
from lifesign.vllm_plugin.shim import shimmed_environment

pytestmark = pytest.mark.engine


def run_script(version: str, folder: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What a script prints under the interpreter of this release."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM_", "LIFESIGN_"))}
    done = subprocess.run(
        [str(engine_path("path", version)), str(Path(__file__).parent / script), *arguments],
        env=shimmed_environment(
            {
                **clean,
                "TMPDIR": str(folder),
                "VLLM_LOGGING_LEVEL": "ERROR",
                "LIFESIGN_BEACON_DIR": str(folder / "beacons"),
            },
            folder / "shim",
        ),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("version", ["0.32.0", "0.27.1"])
def test_replies_of_every_size_and_lateness_keep_their_order(version: str, tmp_path: Path) -> None:
    found = run_script(version, tmp_path, "ring_script.py")
    assert found["shape"] == "carries"
    assert found["order"] == list(range(8))
    assert found["whole"]
    assert found["looks"] >= 5
    # What makes this necessary: the ring moves although the read timed out, and the next read takes the next reply.
    assert found["naive"] == "moved"
    assert found["mixed_up"] == 9
    assert "would be taken for this one's" in found["refused"]


@pytest.mark.parametrize("servers", ["one", "several"])
def test_series_are_on_the_page_of_one_and_of_several_api_servers(servers: str, tmp_path: Path) -> None:
    found = run_script("0.32.0", tmp_path, "metrics_script.py", servers)
    assert len(found["found"]) == 1
    assert found["found"][0].endswith(" 1.0")
    assert found["twice"] == 1
