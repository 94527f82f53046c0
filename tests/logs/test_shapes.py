"""A verdict must not depend on who collected the log: cause, subtype and cited line are the same in every shape."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path

import pytest
import zstandard

from lifesign.logs.wrappers import Unwrapper
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.model import Report
from tests.logs import shapes

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
LAB = [
    "oom_serving_mlp.log", "accel_illegal_access.log", "kill9_worker_serving.log", "startup_engine_kill9.log", "weights_missing.log",
    "port_in_use.log", "nccl_init.log", "rpc_timeout_slow_busy.log", "sigterm_clean.log", "max_len_over_kv.log", "shm_docker_64m.log",
    "segv_worker_serving.log", "tokenizer_missing.log",
]  # fmt: skip
PUBLIC = [
    "96-gather-index-out-of-bounds.log", "40-llama4-compiled-kernel-ima.log", "104-json-schema-compile-kills-core.log",
    "906-prompt-contains-fake-oom.log", "423-v0-engine-iteration-timeout.log", "901-healthy-warnings-and-bad-requests.log",
]  # fmt: skip


def key(report: Report) -> tuple[str, str, int]:
    verdict = report.verdict
    root = next((line.line for line in verdict.evidence if line.role == "root"), 0)
    return verdict.cause, verdict.subtype, root


def lines_of(name: str) -> list[str]:
    folder = CORPUS / ("lab" if name in LAB else "public")
    return (folder / name).read_bytes().decode().split("\n")[:-1]


@pytest.mark.parametrize("name", LAB + PUBLIC)
def test_every_collector_gives_the_same_verdict(name: str, tmp_path: Path) -> None:
    lines = lines_of(name)
    plain = tmp_path / "plain.log"
    plain.write_bytes(shapes.encode(lines))
    wanted = key(diagnose_paths([str(plain)]))
    for wrap in shapes.SAME_LINES:
        path = tmp_path / f"{wrap.__name__}.log"
        path.write_bytes(shapes.encode(wrap(lines)))
        assert key(diagnose_paths([str(path)])) == wanted, wrap.__name__


@pytest.mark.parametrize(
    "name", ["oom_serving_mlp.log", "kill9_worker_serving.log", "weights_missing.log", "sigterm_clean.log"]
)
def test_another_container_in_the_same_log_changes_nothing(name: str, tmp_path: Path) -> None:
    lines = lines_of(name)
    plain, mixed = tmp_path / "plain.log", tmp_path / "mixed.log"
    plain.write_bytes(shapes.encode(lines))
    mixed.write_bytes(shapes.encode(shapes.mixed_with_sidecar(lines)))
    first, second = diagnose_paths([str(plain)]), diagnose_paths([str(mixed)])
    assert key(first)[:2] == key(second)[:2]


@pytest.mark.parametrize("name", ["oom_serving_mlp.log", "nccl_init.log"])
def test_newest_first(name: str, tmp_path: Path) -> None:
    lines = shapes.kubectl_timestamps(lines_of(name))
    forward, backward = tmp_path / "forward.log", tmp_path / "backward.log"
    forward.write_bytes(shapes.encode(lines))
    backward.write_bytes(shapes.encode(lines[::-1]))
    first, second = key(diagnose_paths([str(forward)])), key(diagnose_paths([str(backward)]))
    assert first[:2] == second[:2]
    assert second[2] == len(lines) + 1 - first[2]


@pytest.mark.parametrize("name", ["oom_serving_mlp.log", "weights_missing.log"])
@pytest.mark.parametrize("width", [80, 120])
def test_hard_wrapped_paste(name: str, width: int, tmp_path: Path) -> None:
    lines = lines_of(name)
    wrapped: list[str] = []
    starts: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        starts[number] = len(wrapped) + 1
        text = line.rstrip("\r")
        wrapped.extend([text[at : at + width] for at in range(0, len(text), width)] or [""])
    plain, cut = tmp_path / "plain.log", tmp_path / "cut.log"
    plain.write_bytes(shapes.encode(lines))
    cut.write_bytes(shapes.encode(wrapped))
    first, second = key(diagnose_paths([str(plain)])), key(diagnose_paths([str(cut)]))
    assert first[:2] == second[:2]
    assert second[2] == starts[first[2]]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_compressed(suffix: str, tmp_path: Path) -> None:
    data = shapes.encode(lines_of("oom_serving_mlp.log"))
    pack = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".bz2": bz2.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }[suffix]
    path = tmp_path / f"vllm.log{suffix}"
    path.write_bytes(pack(data))
    assert key(diagnose_paths([str(path)])) == ("device-oom", "serving", 184)


def test_truncated_gzip_is_reported_in_part(tmp_path: Path) -> None:
    rng = random.Random(3)
    noise = [f"(APIServer pid=1) INFO 11-30 10:00:00 [x.py:1] {rng.random()}" for _ in range(20_000)]
    data = gzip.compress(shapes.encode(lines_of("oom_serving_mlp.log") + noise))
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(data[: len(data) // 2])
    report = diagnose_paths([str(path)])
    assert report.verdict.cause == "device-oom"
    assert any("breaks off" in note for note in report.coverage.notes)


def test_one_file_per_process(tmp_path: Path) -> None:
    """Node or process logs given together are one incident; order of the arguments doesn't matter."""
    lines = lines_of("oom_serving_mlp.log")
    parts: dict[str, list[str]] = {"api": [], "core": [], "worker": []}
    current = "api"
    for line in lines:
        for name, mark in (("api", "(APIServer"), ("core", "(EngineCore"), ("worker", "(Worker")):
            if line.startswith(mark):
                current = name
        parts[current].append(line)
    paths = []
    for name, part in parts.items():
        path = tmp_path / f"{name}.log"
        path.write_bytes(shapes.encode(part))
        paths.append(str(path))
    for order in (paths, paths[::-1]):
        report = diagnose_paths(order)
        assert key(report)[:2] == ("device-oom", "serving")
        root = next(line for line in report.verdict.evidence if line.role == "root")
        assert root.path.endswith("worker.log")
        assert "CUDA out of memory" in Path(root.path).read_bytes().decode().split("\n")[root.line - 1]


def test_vllm_json_logging(tmp_path: Path) -> None:
    """vLLM's own JSON logging behind its process prefix, a traceback in one record."""
    trace = 'Traceback (most recent call last):\n  File "/x/vllm/v1/worker/gpu_model_runner.py", line 1, in execute_model\n    y()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.'
    rows = [
        "(APIServer pid=1) "
        + json.dumps(
            {"timestamp": "2026-11-30T10:00:00", "level": "INFO", "message": "vLLM API server version 0.14.1"}
        ),
        "(APIServer pid=1) "
        + json.dumps({"timestamp": "2026-11-30T10:00:40", "level": "INFO", "message": "Application startup complete."}),
        "(EngineCore_DP0 pid=2) "
        + json.dumps(
            {
                "timestamp": "2026-11-30T10:01:00",
                "level": "ERROR",
                "message": "EngineCore encountered a fatal error.",
                "exc_info": trace,
            }
        ),
        "(APIServer pid=1) "
        + json.dumps(
            {"timestamp": "2026-11-30T10:01:01", "level": "ERROR", "message": "AsyncLLM output_handler failed."}
        ),
    ]
    path = tmp_path / "json.log"
    path.write_bytes(shapes.encode(rows))
    report = diagnose_paths([str(path)])
    assert key(report) == ("device-oom", "serving", 3)
    assert report.facts.version == "0.14.1"


def test_an_engines_log_quoted_in_a_prompt_is_no_evidence() -> None:
    """With process prefixes and all, in the middle of a log without containers: its pid never started here."""
    here = Path(__file__).parent
    assert key(diagnose_paths([str(here / "quoted_engine.log")])) == ("device-oom", "serving", 147)
    assert key(diagnose_paths([str(here / "quoted_engine_healthy.log")]))[0] == "not-a-crash"


GLOG_HEAD = "E1209 07:55:31.933101 1 backend_model.cc:692] "
PYBIND = (
    '"ERROR: Failed to create instance: ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.'
    "\\n\\nAt:\\n  /usr/local/lib/python3.10/dist-packages/vllm/worker/worker.py(471): raise_if_cache_size_invalid"
    '\\n  /opt/tritonserver/backends/vllm/model.py(108): initialize\\n"'
)


def test_glog_line_with_an_exception_of_pybind11(tmp_path: Path) -> None:
    """Triton server writes a Python exception into one quoted line: it is read as the traceback it was."""
    path = tmp_path / "triton.log"
    start = "INFO 12-09 07:55:30 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: model='/m'"
    path.write_text(f"{start}\n{GLOG_HEAD}{PYBIND}\n")
    report = diagnose_paths([str(path)])
    assert (key(report)[0], key(report)[2]) == ("device-oom", 2)
    unwrapped = Unwrapper().unwrap(GLOG_HEAD + PYBIND)
    assert [part.text.partition("] ")[2] for part in unwrapped] == [
        "ERROR: Failed to create instance",
        "Traceback (most recent call last):",
        '  File "/opt/tritonserver/backends/vllm/model.py", line 108, in initialize',
        '  File "/usr/local/lib/python3.10/dist-packages/vllm/worker/worker.py", line 471, in raise_if_cache_size_invalid',
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ]


@pytest.mark.parametrize(
    "body",
    [
        '"a path: C:\\\\new\\\\table"',
        '"At:"',
        '"At:\\n\\nAt:"',
        '"',
        '""',
        "plain text",
        '"ValueError: x\\n\\nAt:\\n no frame"',
    ],
)
def test_glog_lines_without_one_keep_their_words(body: str) -> None:
    parts = Unwrapper().unwrap(GLOG_HEAD + body)
    assert all(part.text.startswith("ERROR 12-09 07:55:31 [backend_model.cc:692] ") for part in parts)
    assert not any("Traceback" in part.text for part in parts)


def test_an_ordinary_line_is_no_glog_line() -> None:
    for text in ("INFO 12-09 07:55:30 [core.py:1] x", "E1209 is a part number", "I1209 07:55:20 no micros] x"):
        assert [part.text for part in Unwrapper().unwrap(text)] == [text]
