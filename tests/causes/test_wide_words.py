"""Words and numbers that mean something only in their own company: in another one no cause may claim a death with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths

HEAD = (
    "(APIServer pid=100) INFO 11-30 10:00:00 [api_server.py:1000] vLLM API server version 0.19.1",
    "(EngineCore pid=200) INFO 11-30 10:00:01 [core.py:90] Initializing a V1 LLM engine (v0.19.1) with config: model='/models/m'",
)
RAISED = (
    "(EngineCore pid=200) ERROR 11-30 10:02:00 [core.py:1100] EngineCore encountered a fatal error.",
    "(EngineCore pid=200) ERROR 11-30 10:02:00 [core.py:1100] Traceback (most recent call last):",
    '(EngineCore pid=200) ERROR 11-30 10:02:00 [core.py:1100]   File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1000, in run_busy_loop',
    "(EngineCore pid=200) ERROR 11-30 10:02:00 [core.py:1100]     self._process_engine_step()",
)
DEAD = (
    "(APIServer pid=100) ERROR 11-30 10:02:01 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
)


def _error(text: str) -> tuple[str, ...]:
    return (*RAISED, *(f"(EngineCore pid=200) ERROR 11-30 10:02:00 [core.py:1100] {line}" for line in text.split("\n")))


def _verdict(tmp_path: Path, *lines: str) -> tuple[str, str, str]:
    log = tmp_path / "case.log"
    log.write_text("\n".join((*HEAD, *lines)) + "\n", encoding="utf-8")
    verdict = diagnose_paths([str(log)]).verdict
    return verdict.cause, verdict.subtype, verdict.why


# what is said, and which cause must not (True: must) be found
PAIRS: list[tuple[str, tuple[str, ...], str, bool]] = [
    (
        "a count of cache blocks is no Ascend error",
        ("INFO 11-30 10:01:00 [executor_base.py:90] # cuda blocks: 507014, # CPU blocks: 507015", *DEAD),
        "timeout-hang",
        False,
    ),
    (
        "an id with the digits of an Ascend error",
        ("request 507018-507035 queued", *DEAD),
        "illegal-memory-access",
        False,
    ),
    (
        "an Ascend time-out, named as a result",
        _error("RuntimeError: ACL stream synchronize failed, runtime result = 507014"),
        "timeout-hang",
        True,
    ),
    (
        "an Ascend fault, named as a code",
        _error("RuntimeError: synchronizeStreamWithTimeout failed, error code is 507035"),
        "illegal-memory-access",
        True,
    ),
    (
        "an adapter is no Ada GPU",
        _error("ValueError: this layer requires a LoRA Adapter that was registered"),
        "unsupported-hw",
        False,
    ),
    (
        "an Ada GPU",
        _error("RuntimeError: this FP8 kernel requires an Ada or newer GPU"),
        "unsupported-hw",
        True,
    ),
    (
        "a listed package is no failed build",
        ("hip-runtime-amd 6.3 libhiprtc.so.6", *DEAD),
        "compile-jit",
        False,
    ),
    (
        "a failed HIP build",
        ("HIPRTC_ERROR_COMPILATION: cannot compile the fused kernel", *DEAD),
        "compile-jit",
        True,
    ),
    (
        "a process that waits for a network disk",
        (
            "[ 7250.100001] INFO: task python3:4242 blocked for more than 122 seconds.",
            "[ 7250.100003] Call Trace:",
            "[ 7250.100004]  nfs_wait_bit_killable+0x2a/0xa0 [nfs]",
        ),
        "hardware-fault",
        False,
    ),
    (
        "a process that waits in the GPU driver",
        (
            "[ 7250.100001] INFO: task VLLM::EngineCor:4242 blocked for more than 122 seconds.",
            "[ 7250.100003] Call Trace:",
            "[ 7250.100004]  uvm_va_space_destroy+0x2a/0xa0 [nvidia_uvm]",
        ),
        "hardware-fault",
        True,
    ),
]


@pytest.mark.parametrize(("said", "lines", "cause", "found"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_company_decides(said: str, lines: tuple[str, ...], cause: str, found: bool, tmp_path: Path) -> None:
    assert (_verdict(tmp_path, *lines)[0] == cause) is found


def test_a_missing_cuda_runtime_is_no_missing_driver(tmp_path: Path) -> None:
    assert _verdict(tmp_path, "/usr/bin/ld: cannot find -lcudart: No such file or directory", *DEAD)[:2] == (
        "compile-jit",
        "jit-build",
    )
    assert _verdict(tmp_path, "/usr/bin/ld: cannot find -lcuda: No such file or directory", *DEAD)[:2] == (
        "compile-jit",
        "host-linker-libcuda",
    )


@pytest.mark.parametrize(
    ("machine", "unified"),
    [("NVIDIA GB10", True), ("NVIDIA GH200 480GB", False), ("hf.co/nobody/spark-tts", False), ("Thor-8B", False)],
)
def test_only_machines_with_one_memory_are_called_unified(machine: str, unified: bool, tmp_path: Path) -> None:
    cause, subtype, _ = _verdict(
        tmp_path,
        f"(EngineCore pid=200) INFO 11-30 10:00:05 [cuda.py:100] Device 0 of {machine}",
        "[ 7250.1] Out of memory: Killed process 200 (VLLM::EngineCor) total-vm:90000000kB, anon-rss:60000000kB",
        *DEAD,
    )
    assert (cause, subtype) == ("host-oom", "unified-memory" if unified else "kernel-oom-killer")


@pytest.mark.parametrize(
    ("number", "said"),
    [(13, "no evidence of broken hardware"), (38, "look it up"), (63, "on record"), (92, "on record")],
)
def test_an_xid_is_weighed_by_its_number(number: int, said: str, tmp_path: Path) -> None:
    from lifesign.causes import registry
    from lifesign.facts.lives import build
    from lifesign.logs.reader import read

    log = tmp_path / "case.log"
    log.write_text(
        "\n".join((*HEAD, f"[ 7250.1] NVRM: Xid (PCI:0000:9b:00): {number}, pid=200, name=python3", *DEAD)), "utf-8"
    )
    cause = registry.by_slug("hardware-fault")
    assert cause is not None
    (finding,) = cause.findings(build(read([str(log)]).statements)[0])
    assert finding.role == "context"
    why = finding.why or cause.subtypes[finding.subtype].why
    assert said in why.en


def test_a_lost_connection_only_follows_a_death_in_the_log(tmp_path: Path) -> None:
    lost = _error(
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.5]:31234"
    )
    died = "(EngineCore pid=200) ERROR 11-30 10:01:59 [multiproc_executor.py:300] Worker proc VllmWorker-1 died unexpectedly, shutting down executor."
    assert _verdict(tmp_path, died, *lost)[0] == "silent-death"
    assert _verdict(tmp_path, *lost)[:2] == ("collective-comm", "gloo-peer-lost")
