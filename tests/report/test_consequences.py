"""What only follows, and its negatives: waits for the dead, repeated attempts, stops of other services, JSON behind prefixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lifesign.logs.wrappers import Unwrapper
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.model import Verdict

START = [
    "(APIServer pid=1) INFO 11-03 10:00:00 [api_server.py:1896] vLLM API server version 0.19.1",
    "(EngineCore pid=9) INFO 11-03 10:00:05 [core.py:93] Initializing a V1 LLM engine (v0.19.1) with config: model='/m/q', tensor_parallel_size=2, pipeline_parallel_size=1",
]
SERVING = [
    "(APIServer pid=1) INFO:     Application startup complete.",
    '(APIServer pid=1) INFO:     10.0.0.5:4000 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
]
GONE = "(EngineCore pid=9) ERROR 11-03 10:05:00 [multiproc_executor.py:146] Worker proc VllmWorker-1 died unexpectedly, shutting down executor."


def fatal(clock: str, exception: str) -> list[str]:
    head = f"(EngineCore pid=9) ERROR 11-03 {clock} [core.py:702] "
    return [
        head + "EngineCore encountered a fatal error.",
        head + "Traceback (most recent call last):",
        head + '  File "/usr/lib/python3/dist-packages/vllm/v1/engine/core.py", line 691, in run_engine_core',
        head + "    engine_core.run_busy_loop()",
        head + exception,
        f"(APIServer pid=1) ERROR 11-03 {clock} [async_llm.py:430] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ]


RPC = "TimeoutError: RPC call to execute_model timed out."


def verdict(lines: list[str], tmp_path: Path) -> Verdict:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return diagnose_paths([str(path)]).verdict


def test_a_wait_for_a_worker_that_was_gone_only_follows(tmp_path: Path) -> None:
    found = verdict([*START, *SERVING, GONE, *fatal("10:10:00", RPC)], tmp_path)
    assert (found.cause, found.subtype) == ("silent-death", "worker-died-no-trace")
    assert found.evidence[0].line == 5


def test_a_worker_that_dies_after_the_wait_was_not_waited_for(tmp_path: Path) -> None:
    later = GONE.replace("10:05:00", "10:10:02")
    assert verdict([*START, *SERVING, *fatal("10:10:00", RPC), later], tmp_path).cause == "timeout-hang"


def test_an_error_after_the_report_of_a_death_still_names_the_cause(tmp_path: Path) -> None:
    """The report comes from another process, and may be printed before the dead one's own words."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 0.50 GiB is free."
    assert verdict([*START, *SERVING, GONE, *fatal("10:05:01", oom)], tmp_path).cause == "device-oom"


RETRY = "ERROR 11-03 10:00:03 [config.py:130] Error retrieving safetensors: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/m/q'. Use `repo_type` argument if needed., retrying 1 of 2"


def test_an_attempt_that_is_repeated_is_no_root(tmp_path: Path) -> None:
    silent = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    assert verdict([START[0], RETRY, START[1], silent], tmp_path).cause != "model-load"


def test_what_fails_in_the_end_is(tmp_path: Path) -> None:
    lines = [
        *fatal(
            "10:00:09",
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/m/q'. Use `repo_type` argument if needed.",
        )
    ]
    found = verdict([START[0], RETRY, START[1], *lines], tmp_path)
    assert found.cause == "model-load"
    assert found.evidence[0].line == 8


STOP = "decode-0   | (APIServer pid=2) INFO 11-03 10:06:00 [launcher.py:110] Shutting down FastAPI HTTP server."
CRASH = [
    "prefill-0  | Fatal Python error: Segmentation fault",
    "prefill-0  | ",
    "prefill-0  | Current thread 0x00007f (most recent call first):",
]


def two_services(*last: str) -> list[str]:
    return [f"prefill-0  | {line}" for line in (*START, *SERVING)] + [STOP, *last]


def test_a_service_that_was_stopped_and_came_back_excuses_no_other(tmp_path: Path) -> None:
    back = "decode-0   | (APIServer pid=3) INFO:     Application startup complete."
    assert verdict(two_services(back, *CRASH), tmp_path).subtype == "segfault-native"


def test_a_crash_in_a_stop_is_still_the_stop(tmp_path: Path) -> None:
    assert verdict(two_services(*CRASH), tmp_path).cause == "not-a-crash"


def record(**fields: object) -> str:
    return "2026-08-03T10:04:51.779564869Z stdout F " + json.dumps(fields)


def test_json_records_behind_a_prefix_are_read() -> None:
    line = record(level="ERROR", logger="vllm.v1.engine.core", process="EngineCore", pid=301, message="a\nb")
    texts = [one.text for one in Unwrapper().unwrap(line)]
    head = "(EngineCore pid=301) ERROR 00-00 00:00:00 [core.py:0] "
    assert texts == [head + "a", head + "b"]


@pytest.mark.parametrize(
    "fields", [{"prompt": "x", "message": "hello"}, {"level": "high", "answer": 42}, {"message": 5, "level": "ERROR"}]
)
def test_other_json_behind_a_prefix_stays_as_it_is(fields: dict[str, object]) -> None:
    assert [one.text for one in Unwrapper().unwrap(record(**fields))] == [json.dumps(fields)]


@pytest.mark.parametrize(
    ("line", "subtype"),
    [
        ("worker exited with exit code 136", "signal"),
        ("vllm-1 exited with code 137", "signal"),
        ("vllm exited with status 139", "segfault-native"),
    ],
)
def test_exit_statuses_in_other_words(line: str, subtype: str, tmp_path: Path) -> None:
    found = verdict([*START, *SERVING, line], tmp_path)
    assert (found.cause, found.subtype) == ("silent-death", subtype)


@pytest.mark.parametrize("line", ["job exited with exit code 0", "took 136 ms", "exit code 1360"])
def test_numbers_that_are_no_such_status(line: str, tmp_path: Path) -> None:
    assert verdict([*START, *SERVING, line], tmp_path).cause == "not-a-crash"


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("ibv_reg_mr failed with error Cannot allocate memory", "host-resource/memlock"),
        ("ibv_reg_dmabuf_mr failed with error Cannot allocate memory", "host-resource/memlock"),
        ("ibv_modify_qp failed with error Connection timed out", "collective-comm/nccl-unhandled-system"),
    ],
)
def test_nccl_s_warning_about_locked_memory_names_the_limit(call: str, cause: str, tmp_path: Path) -> None:
    nccl = "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5"
    found = verdict(
        [*START, f"node-a:130:131 [0] misc/ibvwrap.cc:183 NCCL WARN Call to {call}", *fatal("10:02:00", nccl)], tmp_path
    )
    assert f"{found.cause}/{found.subtype}" == cause
