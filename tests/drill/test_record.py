"""Recording: neutral paths, true line numbers, labels that say what was injected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lifesign.drill import record, runner
from lifesign.drill.engines import Engine
from lifesign.drill.model import Expect
from lifesign.drill.vocabulary import find


def test_paths_and_addresses_become_neutral(tmp_path: Path) -> None:
    venv = tmp_path / "engines" / "vllm-0.32.0"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    engine = Engine("vllm", "0.32.0", str(venv / "bin" / "python"))
    text = (
        f'  File "{venv}/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 7, in step\n'
        f"model='{tmp_path}/lifesign-drill-ab12/models/good'\n"
        f"init_method=file://{tmp_path}/lifesign-drill-ab12/tmp/vllm_dist_1\n"
        "(EngineCore pid=1) mq_connect_ip=10.11.12.13 (local) version 0.32.0 http://127.0.0.1:8000\n"
    )
    got = record.neutral(text, engine)
    assert got.count("\n") == text.count("\n")
    assert str(tmp_path) not in got
    assert '"/opt/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py"' in got
    assert "model='/srv/models/good'" in got
    assert "file:///tmp/vllm_dist_1" in got
    assert "10.11.12.13" not in got
    assert "192.0.2.2" in got
    assert "127.0.0.1:8000" in got


def test_the_first_line_with_the_text_is_decisive_and_wrappers_are_not() -> None:
    lines = [
        "(Worker pid=5) ERROR [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried",
        "(Worker pid=5) ERROR [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried",
        "(EngineCore pid=4) ERROR [c.py:1] RuntimeError: Worker failed with error 'CUDA out of memory. Tried'",
        '  File "CUDA out of memory.py"',
    ]
    expect = Expect("device-oom", "serving", decisive=("not here", "CUDA out of memory"))
    assert record.decisive_lines(expect, lines) == ([1], [2])
    assert record.decisive_lines(Expect("not-a-crash", "healthy", decisive=("CUDA",)), lines) == ([], [])
    assert record.decisive_lines(Expect("device-oom", "serving", decisive=("no such text",)), lines) == ([], [])


def test_a_drill_is_kept_once_with_a_true_label(fake: Engine, logs: Path, tmp_path: Path) -> None:
    into = tmp_path / "recorded"
    outcome = runner.run(find("illegal-access"), fake, logs)
    assert record.keep(outcome, fake, into) is None
    assert record.keep(outcome, fake, into) is None
    assert record.recorded(into) == {"illegal-access"}
    rows = [json.loads(line) for line in (into / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 1
    (row,) = rows
    assert (row["cause"], row["subtype"], row["vllm_version"]) == ("illegal-memory-access", "ima-serving", "0.32.0")
    lines = (into / row["file"]).read_text(encoding="utf-8").split("\n")
    assert "an illegal memory access was encountered" in lines[row["decisive_lines"][0] - 1]
    assert row["emitter"] == "Worker"
    assert row["fix_must_mention"]


def test_what_did_not_happen_is_not_kept(fake: Engine, tmp_path: Path) -> None:
    outcome = runner.run(find("port-in-use"), fake, tmp_path)
    assert record.keep(outcome, fake, tmp_path / "recorded")
    assert not (tmp_path / "recorded").exists()
