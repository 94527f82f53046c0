"""Digits that Python's int() refuses, in every place where a log line has a number of a process or a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.logs.records import parse_head
from lifesign.report.diagnose import diagnose_paths
from lifesign.text import is_whole

OOM = Path(__file__).resolve().parents[2] / "samples" / "engine-dead-sampler-oom.log"


@pytest.mark.parametrize("digits", ["²", "1²", "①", "٣", "1" * 5000, ""])
def test_a_process_without_a_readable_number_has_none(digits: str) -> None:
    head = parse_head(f"(EngineCore pid={digits}) ERROR 09-12 10:00:00 [core.py:1] text", "")
    assert head.process.pid is None


def test_a_process_with_a_number_keeps_it() -> None:
    head = parse_head("(EngineCore pid=4117) ERROR 09-12 10:00:00 [core.py:1] text", "")
    assert head.process.pid == 4117


@pytest.mark.parametrize("digits", ["²", "1" * 5000])
def test_a_log_full_of_such_digits_is_still_diagnosed(digits: str, tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(OOM.read_text(encoding="utf-8").replace("pid=", f"pid={digits}"), encoding="utf-8")
    assert diagnose_paths([str(path)]).verdict.cause == "device-oom"


@pytest.mark.parametrize(
    ("text", "whole"), [("0", True), ("007", True), ("²", False), ("-1", False), ("1" * 31, False), ("", False)]
)
def test_whole_numbers(text: str, whole: bool) -> None:
    assert is_whole(text) is whole
