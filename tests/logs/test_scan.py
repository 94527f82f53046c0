"""The gate of large logs: same verdict and same line numbers as reading everything, in bounded memory."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest

from lifesign.logs import scan, search
from lifesign.logs.sources import open_source
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.model import Report

ROOT = Path(__file__).resolve().parents[2]
DEATH = (ROOT / "corpus" / "lab" / "oom_serving_mlp.log").read_bytes()
SILENT = (ROOT / "corpus" / "lab" / "kill9_worker_serving.log").read_bytes()
START = (ROOT / "corpus" / "lab" / "sigterm_clean.log").read_bytes().split(b"Application startup complete")[
    0
] + b"Application startup complete.\n"


def routine(rng: random.Random, lines: int) -> bytes:
    rows = []
    for number in range(lines):
        if number % 4 == 0:
            rows.append(
                f"(APIServer pid=9) INFO 11-30 09:{number // 60 % 60:02d}:{number % 60:02d} [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
                f"Avg generation throughput: {rng.random() * 90:.1f} tokens/s, Running: 3 reqs, Waiting: 0 reqs"
            )
        else:
            rows.append(f'INFO:     127.0.0.1:{rng.randrange(1024, 65000)} - "POST /v1/completions HTTP/1.1" 200 OK')
    return ("\n".join(rows) + "\n").encode()


@pytest.fixture(params=["grep", "python"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code at a hundredth of the size, helper processes included; searched by grep and without it."""
    if request.param == "python":
        monkeypatch.setattr(search, "_gnu_grep", lambda: None)
    elif not search.fast():
        pytest.skip("no GNU grep here")
    monkeypatch.setattr(search, "BLOCK_BYTES", 8_192)
    monkeypatch.setattr(search, "_PROBE_BYTES", 512)
    for name, value in {
        "BLOCK_BYTES": 8_192,
        "WHOLE_BYTES": 60_000,
        "HEAD_BYTES": 16_384,
        "TAIL_BYTES": 49_152,
        "END_BYTES": 16_384,
        "FORK_BYTES": 100_000,
    }.items():
        monkeypatch.setattr(scan, name, value)


def key(report: Report) -> tuple[str, str, int, int]:
    root = next((line.line for line in report.verdict.evidence if line.role == "root"), 0)
    return report.verdict.cause, report.verdict.subtype, root, report.source.lines


def both_ways(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Report, Report]:
    gated = diagnose_paths([str(path)])
    with monkeypatch.context() as patch:
        for name in ("WHOLE_BYTES", "TAIL_BYTES"):
            patch.setattr(scan, name, 1 << 40)
        whole = diagnose_paths([str(path)])
    return gated, whole


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("death", [DEATH, SILENT], ids=["oom", "silent"])
@pytest.mark.parametrize("newline_at_end", [True, False])
def test_death_at_the_end(death: bytes, newline_at_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.log"
    data = START + routine(random.Random(1), 9_000) + death
    path.write_bytes(data if newline_at_end else data.rstrip(b"\n"))
    gated, whole = both_ways(path, monkeypatch)
    assert key(gated) == key(whole)
    assert any("passed over" in note for note in gated.coverage.notes)


@pytest.mark.usefixtures("small_blocks")
def test_a_death_in_the_middle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    path = tmp_path / "big.log"
    path.write_bytes(START + routine(rng, 6_000) + DEATH + START + routine(rng, 6_000))
    gated, whole = both_ways(path, monkeypatch)
    assert key(gated) == key(whole)
    assert gated.verdict.cause == "device-oom"


@pytest.mark.usefixtures("small_blocks")
def test_a_restart_that_was_passed_over_does_not_make_the_death_a_quotation(tmp_path: Path) -> None:
    """The start of the process that dies at the end lies in the stretch that wasn't read: its pid is unknown."""
    rng = random.Random(8)
    start, _, rest = DEATH.partition(b"Application startup complete")
    path = tmp_path / "big.log"
    path.write_bytes(START + routine(rng, 3_000) + start + b"Application startup complete" + routine(rng, 6_000) + rest)
    report = diagnose_paths([str(path)])
    assert report.verdict.cause == "device-oom"
    assert report.facts.version == "0.32.0"


@pytest.mark.usefixtures("small_blocks")
def test_an_unprefixed_line_beside_an_error_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C lines carry no trigger word; the block before an ERROR is read for their sake."""
    rng = random.Random(3)
    c_line = b"Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'\n"
    after = b"(EngineCore pid=29834) ERROR 11-30 10:00:00 [multiproc_executor.py:278] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.\n"
    path = tmp_path / "big.log"
    path.write_bytes(
        START
        + routine(rng, 6_000)
        + c_line
        + b'INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n' * 20
        + after
    )
    gated, whole = both_ways(path, monkeypatch)
    assert key(gated) == key(whole)
    assert gated.verdict.subtype == "custom-allreduce"


@pytest.mark.usefixtures("small_blocks")
def test_storm_keeps_the_first_and_the_last(tmp_path: Path) -> None:
    rng = random.Random(4)
    trace = (
        b"(APIServer pid=9) ERROR 11-30 10:00:00 [serving.py:500] Traceback (most recent call last):\n"
        b'(APIServer pid=9) ERROR 11-30 10:00:00 [serving.py:500]   File "/x/vllm/v1/engine/async_llm.py", line 579, in generate\n'
        b"(APIServer pid=9) ERROR 11-30 10:00:00 [serving.py:500] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    )
    path = tmp_path / "storm.log"
    path.write_bytes(START + routine(rng, 500) + DEATH[DEATH.index(b"(Worker pid=14021) ERROR") :] + trace * 20_000)
    report = diagnose_paths([str(path)])
    assert report.verdict.cause == "device-oom"
    assert report.source.lines == path.read_bytes().count(b"\n")
    root = next(line for line in report.verdict.evidence if line.role == "root")
    assert b"CUDA out of memory" in path.read_bytes().split(b"\n")[root.line - 1]
    assert any("repeat earlier ones" in note for note in report.coverage.notes)


@pytest.mark.usefixtures("small_blocks")
def test_a_compressed_log_goes_through_the_same_gate(tmp_path: Path) -> None:
    data = START + routine(random.Random(5), 9_000) + DEATH
    plain, packed = tmp_path / "big.log", tmp_path / "big.log.gz"
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    assert key(diagnose_paths([str(plain)])) == key(diagnose_paths([str(packed)]))


@pytest.mark.usefixtures("small_blocks")
def test_without_wc_and_without_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.log"
    path.write_bytes(START + routine(random.Random(6), 9_000) + DEATH)
    wanted = key(diagnose_paths([str(path)]))
    monkeypatch.setattr(scan.shutil, "which", lambda _: None)
    assert key(diagnose_paths([str(path)])) == wanted
    monkeypatch.setattr(scan.os, "cpu_count", lambda: 1)
    assert key(diagnose_paths([str(path)])) == wanted


@pytest.mark.usefixtures("small_blocks")
def test_line_numbers_are_physical_everywhere(tmp_path: Path) -> None:
    """Whatever comes through the gate carries the number that `grep -n` would print."""
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    rows = [
        f"{'ERROR' if rng.random() < 0.002 else 'INFO'} {rng.random()} {'x' * rng.randrange(0, 200)}".encode()
        for _ in range(6_000)
    ]
    path = tmp_path / "rows.log"
    path.write_bytes(b"\n".join(rows) + b"\n")
    source = open_source(str(path))
    numbers = []
    for number, row in scan.interesting_lines(source):
        assert row == rows[number - 1]
        numbers.append(number)
    assert numbers == sorted(set(numbers))
    assert source.lines == len(rows)
    assert {number for number, row in enumerate(rows, 1) if row.startswith(b"ERROR")} <= set(numbers)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """150 MB of log, half of it a storm, in at most 100 MB (the interpreter included)."""
    rng = random.Random(7)
    path = tmp_path / "big.log"
    calm = routine(rng, 20_000)
    storm = calm.replace(b"INFO", b"ERROR")
    with path.open("wb") as file:
        file.write(START)
        for _ in range(35):
            file.write(calm)
            file.write(storm)
        file.write(DEATH)
    code = (
        "import sys; from lifesign.report.diagnose import diagnose_paths; diagnose_paths([sys.argv[1]]);"
        # Not ru_maxrss: over exec that keeps the size of the process that started this one.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True, timeout=300)
    assert int(result.stdout) / 1024 <= 100
