"""Patient waiting on the message rings of real vLLM releases, without starting a server."""

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


def run_script(version: str, folder: Path) -> dict[str, Any]:
    """What ring_script.py prints under the interpreter of this release."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM_", "LIFESIGN_"))}
    done = subprocess.run(
        [str(engine_path("path", version)), str(Path(__file__).parent / "ring_script.py")],
        env=shimmed_environment({**clean, "TMPDIR": str(folder), "VLLM_LOGGING_LEVEL": "ERROR"}, folder / "shim"),
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
    found = run_script(version, tmp_path)
    assert found["shape"] == "carries"
    assert found["order"] == list(range(8))
    assert found["whole"]
    assert found["looks"] >= 5
    # What makes this necessary: the ring moves although the read timed out, and the next read takes the next reply.
    assert found["naive"] == "moved"
    assert found["mixed_up"] == 9
    assert "would be taken for this one's" in found["refused"]
