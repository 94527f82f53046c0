"""SIGILL on the CPU back end: what the CPU lacks, and what nobody had asked the kernel for, need different advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.remedies.library import host
from lifesign.report.diagnose import diagnose_paths

PAGE = Path(__file__).resolve().parents[2] / "src" / "lifesign" / "causes" / "unsupported_hw.md"
CASE = PAGE.read_text(encoding="utf-8").partition("### case: AMX tiles")[2].partition("```log\n")[2].partition("```")[0]


def remedies(folder: Path, text: str) -> list[str]:
    path = folder / "engine.log"
    path.write_text(text, encoding="utf-8")
    verdict = diagnose_paths([str(path)]).verdict
    assert (verdict.cause, verdict.subtype) == ("unsupported-hw", "cpu-isa")
    return [remedy.title for remedy in verdict.remedies]


def test_tiles_that_nobody_had_asked_for(tmp_path: Path) -> None:
    assert remedies(tmp_path, CASE)[:2] == [host.FLOAT32_ON_CPU.title.en, host.LONGER_FIRST_REQUEST.title.en]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("0.32.0", "0.27.1"),
        ("dtype=torch.bfloat16", "dtype=torch.float32"),
        ("device_config=cpu", "device_config=cuda"),
    ],
)
def test_other_engines(was: str, becomes: str, tmp_path: Path) -> None:
    assert was in CASE
    text = CASE.replace(was, becomes)
    if becomes.endswith("cuda"):
        text = text.replace("CPU", "GPU").replace("cpu_", "gpu_")
    assert remedies(tmp_path, text)[0] == host.CPU_ISA.title.en


def test_before_it_served(tmp_path: Path) -> None:
    lines = [line for line in CASE.splitlines(True) if "startup complete" not in line and "500 Internal" not in line]
    lines = [line for line in lines if "Starting vLLM server" not in line and "KV cache" not in line]
    assert remedies(tmp_path, "".join(lines))[0] == host.CPU_ISA.title.en
