"""The simple readers that lifesign is measured against, on a folder small enough to count by hand."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "baselines.py"


@pytest.fixture(scope="module")
def baselines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("baselines", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["baselines"] = module
    spec.loader.exec_module(module)
    return module


LOG = [
    "INFO all is well",
    "(Worker pid=2) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "(EngineCore pid=1) ERROR RuntimeError: Worker failed with error 'CUDA out of memory'",
    "(APIServer pid=0) ERROR vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
]
HEALTHY = ["INFO all is well", "WARNING OSError: [Errno 24] Too many open files may follow", "INFO served"]


def test_each_reader_chooses_its_line(baselines: ModuleType) -> None:
    assert baselines.keyword_tree(LOG) == ("device-oom", 2)
    assert baselines.first_error(LOG) == ("device-oom", 2)
    assert baselines.last_traceback(LOG) == ("unclassified", 4)
    assert baselines.keyword_tree(["INFO all is well"]) == ("not-a-crash", None)
    assert baselines.last_traceback(["INFO all is well"]) == ("not-a-crash", None)


def test_scores_can_be_counted_by_hand(baselines: ModuleType, tmp_path: Path) -> None:
    labels = [
        {"file": "a.log", "cause": "device-oom", "decisive_lines": [2], "repeat_lines": [], "accept": []},
        {"file": "b.log", "cause": "not-a-crash", "decisive_lines": [], "accept": []},
    ]
    (tmp_path / "a.log").write_text("\n".join(LOG), encoding="utf-8")
    (tmp_path / "b.log").write_text("\n".join(HEALTHY), encoding="utf-8")
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels), encoding="utf-8")

    tree = baselines.score(tmp_path, baselines.keyword_tree)
    assert tree == {"files": 2, "cause": 0.5, "macro": 0.5, "line": 1.0, "line_near": 1.0, "false_claims": 1.0}
    last = baselines.score(tmp_path, baselines.last_traceback)
    assert (last["cause"], last["line"], last["line_near"]) == (0.0, 0.0, 1.0)


def test_a_folder_without_labels_is_refused(
    baselines: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baselines.main([str(tmp_path)]) == 2
    assert "labels.jsonl" in capsys.readouterr().err


def test_long_lines_cost_nothing(baselines: ModuleType) -> None:
    assert baselines.keyword_tree(["x" * 5_000_000, "a" * 5_000_000 + "Error:"]) == ("not-a-crash", None)
