"""Drills against a real vLLM: the short selection, about a quarter of an hour on two cores.

`lifesign drill all --engine vllm` runs the whole vocabulary; this is the part that a change must not break.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from engine_support import VERSION, engine_path, one_engine_at_a_time
from lifesign.drill import runner
from lifesign.drill.engines import Engine
from lifesign.drill.session import MARK
from lifesign.drill.vocabulary import find, for_engine
from lifesign.guard.procs import all_pids, read_environ

pytestmark = pytest.mark.engine
SELECTION = [fault.name for fault in for_engine("vllm") if fault.ci]


@pytest.fixture
def tag(monkeypatch: pytest.MonkeyPatch) -> str:
    """Marks what this test starts: other drills may run on the machine."""
    monkeypatch.setenv("DRILL_TEST", secrets.token_hex(8))
    return os.environ["DRILL_TEST"]


@pytest.fixture(scope="module")
def vllm() -> Engine:
    """The engine that tools/engine_env.py built; skips where there is none."""
    return Engine("vllm", VERSION, str(engine_path("path")))


@pytest.mark.parametrize("name", SELECTION)
def test_a_real_engine_ends_as_injected_and_the_diagnosis_says_so(
    name: str, vllm: Engine, tag: str, tmp_path: Path
) -> None:
    with one_engine_at_a_time():
        outcome = runner.run(find(name), vllm, tmp_path)
    if outcome.result == "SKIPPED":
        pytest.skip(outcome.reason)
    assert outcome.result == "PASS", f"{outcome.reason}\n{_tail(outcome.log)}"
    assert not [pid for pid in all_pids() if MARK in read_environ(pid) and read_environ(pid).get("DRILL_TEST") == tag]


def test_no_frame_of_ours_is_in_the_log(vllm: Engine, tmp_path: Path) -> None:
    """A stack that shows the injection would let a diagnosis recognise a drill instead of the fault."""
    with one_engine_at_a_time():
        outcome = runner.run(find("illegal-access"), vllm, tmp_path)
    text = Path(outcome.log).read_text(encoding="utf-8", errors="replace")
    assert "model_executor/models/llama.py" in text
    assert "vllm_plugin/faults.py" not in text
    assert "torch.AcceleratorError: CUDA error: an illegal memory access was encountered" in text


def _tail(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")[-3000:] if path else ""
