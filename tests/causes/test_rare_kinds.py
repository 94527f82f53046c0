"""Kinds of causes that no page shows a case of: what they look like, and beside each a near miss that must not be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifesign.report.diagnose import diagnose_paths
from tests.causes.test_setup_texts import CONFIG, FORWARD, INIT, Frames, log

V1 = "vllm/v1/"
RUNNER: Frames = (("vllm/v1/worker/gpu_model_runner.py", "execute_model"),)
CORE: Frames = (("vllm/v1/engine/core.py", "run_busy_loop"), ("vllm/v1/engine/core.py", "_process_engine_step"))
CAPTURE: Frames = (("vllm/v1/worker/gpu_model_runner.py", "capture_model"), ("torch/cuda/graphs.py", "capture_end"))

# place, frames, exception, cause/subtype; then the same place and frames with an exception that is another cause's
# fmt: off
ROWS: list[tuple[str, Frames, str, str, str]] = [
    ("worker", INIT, "ValueError: Available memory on node 0 (20.1 GiB) on kv cache allocation is less than requested memory for kv (40.0 GiB).", "device-oom/kv-requested-gt-free", "ValueError: the KV cache type fp9 is unknown"),
    ("worker", INIT, "RuntimeError: NVRM: nvAssertOkFailedNoLog: NV_ERR_NO_MEMORY", "device-oom/unified-memory|host-oom/unified-memory", "RuntimeError: NV_OK"),
    ("worker", INIT, "RuntimeError: CUDASymmetricMemory requires multicast support", "collective-comm/symm-mem", "RuntimeError: memory is symmetric"),
    ("worker", CAPTURE, "RuntimeError: CUDA error: invalid argument", "graph-capture/regression", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("worker", (("transformers/configuration_utils.py", "_get_config_dict"),), "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "model-load/config-corrupt", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("worker", (("vllm/model_executor/model_loader/sharded_state_loader.py", "load_weights"),), "ValueError: pattern must hold a rank", "model-load/loader-error", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*CORE, ("vllm/v1/structured_output/__init__.py", "grammar_bitmask")), "TimeoutError: waited for a grammar", "timeout-hang/structured-output", "RuntimeError: [06:33:23] /project/cpp/json_schema_converter.cc:2181: items must be a boolean or an object"),
    ("serving", RUNNER, "RuntimeError: CUSOLVER_STATUS_EXECUTION_FAILED when calling cusolverDnSgetrf", "cuda-lib/other-library", "RuntimeError: the solver is not set"),
    ("worker", INIT, "torch._dynamo.exc.Unsupported: generator", "compile-jit/dynamo-trace", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("worker", INIT, "RuntimeError: Cannot find a working triton installation. Either the package is not installed or it is too old.", "compile-jit/triton-missing", "RuntimeError: Cannot find a working pump"),
    ("worker", (("deep_gemm/jit/compiler.py", "build"),), "AssertionError: NVCC compilation failed", "compile-jit/jit-build", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("server", CONFIG, "ValueError: --data-parallel-size must be greater than --data-parallel-rank", "user-config/dp-vs-gpus", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("server", CONFIG, "KeyError: 'invalid tool call parser: hermez (chose from { hermes,mistral })'", "user-config/bad-value", "ModuleNotFoundError: No module named 'outlines'"),
    ("server", CONFIG, "ValueError: Fault tolerance requires an external load balancer", "user-config/fault-tolerance-flags", "ModuleNotFoundError: No module named 'outlines'"),
    ("server", CONFIG, "ValueError: num_speculative_tokens must be greater than zero", "user-config/speculative", "ModuleNotFoundError: No module named 'outlines'"),
    ("worker", INIT, "RuntimeError: ibv_reg_mr failed: Cannot allocate memory", "host-resource/memlock", "RuntimeError: [Errno 12] Cannot allocate memory"),
    ("serving", (*CORE, ("vllm/v1/core/sched/scheduler.py", "add_request")), "ValueError: request_id cmpl-77 already exists", "request-poison/duplicate-request-id", "AssertionError: num_new_tokens > 0"),
    ("serving", (*RUNNER, ("vllm/v1/worker/gpu_input_batch.py", "add_prompt_embeds")), "RuntimeError: expanded size of prompt_embeds must match", "request-poison/embeddings", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/v1/sample/logits_processor/builtin.py", "apply")), "TypeError: logit_bias is no number", "request-poison/request-input", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/v1/worker/gpu_model_runner.py", "_prepare_inputs")), "IndexError: list index out of range", "engine-bug/model-runner", "RuntimeError: CUDA error: device-side assert triggered"),
    ("serving", (*RUNNER, ("vllm/v1/sample/sampler.py", "sample")), "AttributeError: 'NoneType' object has no attribute 'shape'", "engine-bug/sampler", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/model_executor/layers/pooler.py", "forward")), "AttributeError: 'NoneType' object has no attribute 'task'", "engine-bug/pooling", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/model_executor/models/whisper.py", "forward")), "UnboundLocalError: cannot access local variable 'x'", "engine-bug/encoder-decoder", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/distributed/eplb/eplb_state.py", "step")), "IndexError: index 3", "engine-bug/expert-parallel", "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
    ("serving", (*RUNNER, ("vllm/lora/layers/base_linear.py", "apply")), "IndexError: index 3", "engine-bug/lora", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*CORE, ("vllm/v1/engine/core.py", "step")), "TypeError: 'NoneType' object is not iterable", "engine-bug/engine-core", "TimeoutError: RPC call to execute_model timed out."),
    ("serving", (*RUNNER, ("vllm_omni/stages/talker.py", "forward")), "KeyError: 'codec'", "engine-bug/omni-stage", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/distributed/kv_transfer/kv_connector/v1/mooncake_connector.py", "start_load_kv")), "RuntimeError: transfer failed", "kv-connector/mooncake", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/v1/kv_offload/worker/worker.py", "transfer_async")), "RuntimeError: transfer failed", "kv-connector/cpu-offload", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("serving", (*RUNNER, ("vllm/distributed/kv_transfer/kv_connector/v1/p2p/p2p_connector.py", "start_load_kv")), "RuntimeError: transfer failed", "kv-connector/connector", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("server", CONFIG, "ValueError: Unsupported kv_role: producer. Supported roles are kv_producer", "kv-connector/config", "ModuleNotFoundError: No module named 'outlines'"),
    ("worker", (("vllm/v1/worker/gpu_worker.py", "init_device"), ("vllm/utils/torch_utils.py", "pin_memory")), "RuntimeError: CUDA error: out of memory", "host-oom/pinned-memory|device-oom/*", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("v0", (("vllm/core/scheduler.py", "_swap_out"),), "RuntimeError: Aborted due to the lack of CPU swap space. Please increase the swap space to avoid this error.", "host-oom/swap-space-short", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("worker", INIT, "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "collective-comm/nccl-invalid-usage", "torch.distributed.DistBackendError: NCCL error in: ../torch/x.hpp:275, unhandled cuda error, NCCL version 2.21.5\nLast error:\nCuda failure 2 'out of memory'"),
]
# fmt: on


def _verdict(lines: list[str], tmp_path: Path) -> tuple[str, str]:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    verdict = diagnose_paths([str(path)]).verdict
    return verdict.cause, verdict.subtype


@pytest.mark.parametrize(("kind", "frames", "exception", "expected", "other"), ROWS, ids=[row[3] for row in ROWS])
def test_a_kind_and_its_near_miss(
    kind: str, frames: Frames, exception: str, expected: str, other: str, tmp_path: Path
) -> None:
    found = _verdict(log(kind, frames, exception, ""), tmp_path)
    accepted = [tuple(each.split("/")) for each in expected.split("|")]
    assert any(found[0] == cause and subtype in ("*", found[1]) for cause, subtype in accepted), found
    assert _verdict(log(kind, frames, other, ""), tmp_path) not in accepted


def test_other_assertion(tmp_path: Path) -> None:
    """The kernel's own line decides; the exception after it names none."""
    said = "/workspace/csrc/moe/topk.cu:101: gate: block: [3,0,0], thread: [7,0,0] Assertion `experts_per_group <= kMax` failed."
    lines = log("serving", FORWARD, "torch.AcceleratorError: CUDA error: device-side assert triggered", "")
    assert _verdict([*lines[:4], said, *lines[4:]], tmp_path) == ("device-assert", "other-assertion")
    assert _verdict(lines, tmp_path) == ("device-assert", "index-out-of-bounds")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("[ 9001.5] xe 0000:03:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1", True),
        ("[ 9001.5] snd_hda_intel 0000:04:00.0: Engine reset", False),
    ],
)
def test_an_engine_reset_in_the_kernel_log(said: str, found: bool, tmp_path: Path) -> None:
    head = log("serving", FORWARD, "RuntimeError: stopped", "")[:4]
    death = "(EngineCore pid=88) ERROR 06-14 09:33:00 [multiproc_executor.py:300] Worker proc VllmWorker-0 died unexpectedly, shutting down executor."
    verdict = _verdict([*head, said, death], tmp_path)
    assert (verdict == ("illegal-memory-access", "xpu-gpu-reset")) is found


@pytest.mark.parametrize(
    ("warned", "bound", "first"), [(True, 40960, True), (True, 151936, False), (False, 40960, False)]
)
def test_a_table_as_long_as_the_context_that_the_start_warned_of(
    tmp_path: Path, warned: bool, bound: int, first: bool
) -> None:
    """The positions ran out only if the table's bound is the model's own length, and the warning was given."""
    warning = (
        "(APIServer pid=1) WARNING 05-22 19:03:19 [model.py:2044] User-specified max_model_len (131072) is greater than the "
        "derived max_model_len (max_position_embeddings=40960 or model_max_length=None in model's config.json).\n"
    )
    path = tmp_path / "vllm.log"
    path.write_text(
        (warning if warned else "")
        + "(EngineCore pid=133) INFO 05-22 19:03:33 [core.py:109] Initializing a V1 LLM engine (v0.20.0) with config: model='m'\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        f"/tmp/k.py:41: unknown: block: [0,0,0], thread: [0,0,0] Assertion `index out of bounds: 0 <= tmp16 < {bound}` failed.\n"
        "(EngineCore pid=133) ERROR 05-22 19:20:41 [core.py:1132] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=133) ERROR 05-22 19:20:41 [core.py:1132] torch.AcceleratorError: CUDA error: device-side assert triggered\n"
    )
    verdict = diagnose_paths([str(path)]).verdict
    assert verdict.cause == "device-assert"
    assert (verdict.remedies[0].knob == "--max-model-len") is first
    assert ("--max-model-len" in verdict.why) is first
    if first:
        assert verdict.remedies[0].value == "40960"


@pytest.mark.parametrize(
    ("sign", "platform"),
    [
        ("INFO 09-12 09:20:02 [__init__.py:235] Platform plugin ascend is activated\n", "npu"),
        ("INFO 09-12 09:20:02 [__init__.py:235] Platform plugin other is activated\n", "cuda"),
    ],
)
def test_the_plug_in_names_the_platform(tmp_path: Path, sign: str, platform: str) -> None:
    """No variable of NCCL's is advised where HCCL speaks."""
    path = tmp_path / "vllm.log"
    path.write_text(
        sign
        + "INFO 09-12 09:20:40 [core.py:71] Initializing a V1 LLM engine (v0.10.0) with config: model='m', tensor_parallel_size=8\n"
        "INFO:     Application startup complete.\n"
        "ERROR 09-12 09:33:06 [core.py:634] EngineCore encountered a fatal error.\n"
        "ERROR 09-12 09:33:06 [core.py:634] TimeoutError: RPC call to execute_model timed out.\n"
    )
    report = diagnose_paths([str(path)])
    assert report.facts.platform == platform
    knobs = {each.knob for each in report.verdict.remedies}
    assert any(knob.startswith("NCCL_") for knob in knobs) == (platform == "cuda")


@pytest.mark.parametrize(("failed", "cause"), [(True, "unclassified"), (False, "process-lifecycle")])
def test_a_probe_that_ends_a_failed_start_is_a_consequence(tmp_path: Path, failed: bool, cause: str) -> None:
    traceback = (
        "(Worker_TP0 pid=9) Traceback (most recent call last):\n"
        '(Worker_TP0 pid=9)   File "/usr/lib/python3/dist-packages/vllm/v1/worker/gpu_worker.py", line 402, in load_model\n'
        "(Worker_TP0 pid=9)     self.model_runner.load_model()\n"
        "(Worker_TP0 pid=9) somewhere.StrangeError: nobody has ever seen this text 4711\n"
    )
    path = tmp_path / "vllm.log"
    path.write_text(
        "(EngineCore pid=8) INFO 08-25 17:45:49 [core.py:105] Initializing a V1 LLM engine (v0.18.1) with config: model='m'\n"
        + (traceback if failed else "")
        + "(APIServer pid=1) DEBUG 08-25 19:44:10 [v1/engine/utils.py:1140] Waiting for 1 local, 0 remote core engine proc(s) to start.\n"
        "(APIServer pid=1) KeyboardInterrupt: terminated\n"
        "  Warning  Unhealthy  2m1s   kubelet  Startup probe failed: connection refused\n"
        "  Normal   Killing    2m1s   kubelet  Container server failed startup probe, will be restarted\n"
    )
    verdict = diagnose_paths([str(path)]).verdict
    assert verdict.cause == cause, verdict
    assert not failed or verdict.evidence[0].line == 5


@pytest.mark.parametrize(
    ("place", "advised"), [("tool_parsers/hermes_tool_parser.py", True), ("serving_tokenization.py", False)]
)
def test_the_error_of_one_request_is_named(tmp_path: Path, place: str, advised: bool) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        "(EngineCore pid=8) INFO 08-25 17:45:49 [core.py:105] Initializing a V1 LLM engine (v0.18.1) with config: model='m'\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        '(APIServer pid=1) INFO:     192.0.2.4:51190 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        "(APIServer pid=1) ERROR 08-25 18:04:18 [serving.py:1261] Error in chat completion stream generator.\n"
        "(APIServer pid=1) ERROR 08-25 18:04:18 [serving.py:1261] Traceback (most recent call last):\n"
        f'(APIServer pid=1) ERROR 08-25 18:04:18 [serving.py:1261]   File "/usr/lib/python3/dist-packages/vllm/entrypoints/openai/{place}", line 212, in extract\n'
        "(APIServer pid=1) ERROR 08-25 18:04:18 [serving.py:1261]     calls[index].get(\n"
        "(APIServer pid=1) ERROR 08-25 18:04:18 [serving.py:1261] IndexError: list index out of range\n"
        '(APIServer pid=1) INFO:     192.0.2.4:51191 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        '(APIServer pid=1) INFO:     192.0.2.4:51192 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    )
    verdict = diagnose_paths([str(path)]).verdict
    assert (verdict.cause, verdict.subtype) == ("not-a-crash", "request-failed")
    assert "Line 8" in verdict.why
    assert "IndexError: list index out of range" in verdict.why
    assert any("--tool-call-parser" in each.command for each in verdict.remedies) == advised


@pytest.mark.parametrize(
    ("exception", "command"),
    [
        ("RuntimeError: flashinfer-cubin version (0.6.1) does not match flashinfer version (0.5.3). Please install the same version of both packages.", "pip install flashinfer-cubin==0.5.3"),
        ("ModuleNotFoundError: No module named 'soundfile'", "pip install soundfile   # or the package that ships this module"),
    ],
)  # fmt: skip
def test_the_command_names_the_package(tmp_path: Path, exception: str, command: str) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(log("worker", INIT, exception, "org/model")) + "\n")
    verdict = diagnose_paths([str(path)]).verdict
    assert verdict.cause == "env-install"
    assert verdict.remedies[0].command == command


DEATH = (
    "(EngineCore pid=8) INFO 10-14 09:00:49 [core.py:105] Initializing a V1 LLM engine (v0.11.0) with config: model='m'\n"
    "(APIServer pid=1) INFO:     Application startup complete.\n"
    "(APIServer pid=1) INFO 10-14 11:40:14 [loggers.py:123] Engine 000: Avg prompt throughput: 712.4 tokens/s, Avg generation throughput: 38.2 tokens/s, Running: 1 reqs, Waiting: 0 reqs\n"
    "(APIServer pid=1) INFO 10-14 13:41:14 [loggers.py:123] Engine 000: Avg prompt throughput: 12.4 tokens/s, Avg generation throughput: 12.1 tokens/s, Running: 1 reqs, Waiting: 0 reqs\n"
    "(APIServer pid=1) ERROR 10-14 13:42:23 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"
)


@pytest.mark.parametrize(
    ("clock", "who", "cause"),
    [
        ("11:26:33", "chrome", "silent-death"),
        ("13:42:22", "chrome", "silent-death"),
        ("11:26:33", "python3", "silent-death"),
        ("13:42:22", "python3", "host-oom"),
        ("05:42:22", "python3", "host-oom"),  # the kernel's clock is eight hours behind the container's
    ],
)
def test_a_kill_for_memory_counts_by_its_time_and_its_victim(tmp_path: Path, clock: str, who: str, cause: str) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        DEATH
        + f"[Tue Oct 14 {clock} 2025] Out of memory: Killed process 88121 ({who}) total-vm:34112980kB, anon-rss:612332kB\n"
        f"[Tue Oct 14 {clock} 2025] oom_reaper: reaped process 88121 ({who}), now anon-rss:0kB, file-rss:0kB\n"
    )
    assert diagnose_paths([str(path)]).verdict.cause == cause


def test_a_quotation_without_clock_belongs_to_the_lines_around_it(tmp_path: Path) -> None:
    """An agent shows another engine's log: some of its lines have no time of their own."""
    path = tmp_path / "vllm.log"
    path.write_text(
        "INFO 07-02 09:00:25 [core.py:70] Initializing a V1 LLM engine (v0.9.1) with config: model='m'\n"
        "INFO:     Application startup complete.\n"
        "INFO 07-02 09:14:13 [loggers.py:118] Engine 000: Avg prompt throughput: 61.0 tokens/s, Avg generation throughput: 33.1 tokens/s, Running: 1 reqs\n"
        "ERROR 06-26 23:10:17 [core.py:519] EngineCore encountered a fatal error.\n"
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
        "ERROR 06-26 23:10:17 [core.py:519] RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:453 'an illegal memory access was encountered'\n"
        "INFO 07-02 09:15:13 [loggers.py:118] Engine 000: Avg prompt throughput: 44.1 tokens/s, Avg generation throughput: 31.2 tokens/s, Running: 1 reqs\n"
        "INFO 07-02 09:15:23 [loggers.py:118] Engine 000: Avg prompt throughput: 44.1 tokens/s, Avg generation throughput: 31.2 tokens/s, Running: 1 reqs\n"
    )
    assert diagnose_paths([str(path)]).verdict.cause == "not-a-crash"


@pytest.mark.parametrize(("stopped", "cause"), [(True, "env-install"), (False, "env-install")])
def test_the_next_attempt_of_a_shell_session(tmp_path: Path, stopped: bool, cause: str) -> None:
    """A start that was broken off with Ctrl-C doesn't make the failure of the next one a part of its end."""
    path = tmp_path / "session.log"
    path.write_text(
        "$ vllm serve m\nINFO 10-31 20:32:10 [__init__.py:224] Automatically detected platform cuda.\n"
        + ("^C\n" if stopped else "")
        + "$ export CUDA_VISIBLE_DEVICES=1\n$ vllm serve m\n"
        "INFO 10-31 20:33:55 [__init__.py:224] Automatically detected platform cuda.\n"
        "Traceback (most recent call last):\n"
        '  File "/srv/vllm/vllm/platforms/cuda.py", line 16, in <module>\n'
        "    import vllm._C  # noqa\n"
        "ImportError: /srv/vllm/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab\n"
        "$ echo $?\n1\n"
    )
    assert diagnose_paths([str(path)]).verdict.cause == cause


@pytest.mark.parametrize(
    "head", ["", "[ 8812.123456] ", "[Tue Oct 14 13:42:22 2025] ", "Oct 14 13:42:22 node7 kernel: "]
)
@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=210, name=VLLM::Worker, GPU has fallen off the bus.", "hardware-fault"),
        ("Out of memory: Killed process 210 (VLLM::Worker_TP) total-vm:118201372kB, anon-rss:61230112kB", "host-oom"),
        ("Memory cgroup out of memory: Killed process 210 (python3) total-vm:118201372kB", "host-oom"),
        ("python3[210]: segfault at 0 ip 00007f12 sp 00007f13 error 4 in libnccl.so.2[7f00+1]", "silent-death/segfault-native|collective-comm"),
        ("docker0: port 2(veth1f0ac21) entered disabled state", "silent-death/core-died-no-trace"),
    ],
)  # fmt: skip
def test_the_kernel_s_lines_right_below_an_exception(tmp_path: Path, said: str, cause: str, head: str) -> None:
    """With or without the prefixes of dmesg and journald: they are no further lines of the exception's message."""
    path = tmp_path / "vllm.log"
    path.write_text(
        DEATH
        + "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
        + head + said + "\n"
    )  # fmt: skip
    verdict = diagnose_paths([str(path)]).verdict
    wanted = cause.split("|")
    assert verdict.cause in wanted or f"{verdict.cause}/{verdict.subtype}" in wanted, verdict


@pytest.mark.parametrize(
    ("header", "frame", "phase"),
    [
        ("EngineCore encountered a fatal error.", 'v1/executor/uniproc.py", line 71, in collective_rpc', "serving"),
        ("EngineCore failed to start.", 'v1/executor/uniproc.py", line 71, in collective_rpc', "startup-load"),
        (
            "EngineCore failed to start.",
            'v1/worker/gpu_worker.py", line 340, in determine_available_memory',
            "profile-warmup",
        ),
        ("EngineCore hit an exception:", 'v1/core/sched/scheduler.py", line 811, in update_from_output', "serving"),
        ("EngineCore hit an exception:", 'v1/executor/uniproc.py", line 71, in collective_rpc', "startup-load"),
    ],
)
def test_the_phase_of_a_death_whose_start_is_not_in_the_log(
    tmp_path: Path, header: str, frame: str, phase: str
) -> None:
    """A short paste: only an engine that was up says `fatal error`, and only its loop passes some frames."""
    path = tmp_path / "vllm.log"
    head = "(EngineCore_DP0 pid=312) ERROR 11-20 05:12:09 [core.py:710] "
    lines = [header, "Traceback (most recent call last):", f'  File "/usr/lib/python3.12/site-packages/vllm/{frame}']
    lines += [
        "    return run_method(self.driver_worker, method, args, kwargs)",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ]
    path.write_text("".join(f"{head}{line}\n" for line in lines))
    assert diagnose_paths([str(path)]).verdict.phase == phase


@pytest.mark.parametrize(
    ("shard", "unit", "ranks", "fitting", "rest"),
    [
        (192, 128, 8, "4", "2"),  # 6 would give whole blocks as well, but 64 attention heads don't go by 6
        (320, 128, 4, "2", "2"),
        (64, 128, 6, "3", "2"),
        (96, 128, 4, "1", "4"),
    ],
)
def test_the_smaller_split_that_is_advised_divides_the_present_one(
    tmp_path: Path, shard: int, unit: int, ranks: int, fitting: str, rest: str
) -> None:
    path = tmp_path / "vllm.log"
    head = "(Worker_TP1 pid=131) ERROR 11-21 09:01:02 [multiproc_executor.py:743] "
    path.write_text(
        f"(EngineCore_DP0 pid=99) INFO 11-21 09:00:20 [core.py:94] Initializing a V1 LLM engine (v0.12.0) with config: model='org/m-FP8', tensor_parallel_size={ranks}\n"
        + "".join(
            f"{head}{line}\n"
            for line in (
                "WorkerProc failed to start.",
                "Traceback (most recent call last):",
                '  File "/usr/lib/python3.12/site-packages/vllm/model_executor/layers/quantization/fp8.py", line 400, in create_weights',
                "    raise ValueError(",
                f"ValueError: The output_size of gate's and up's weight = {shard} is not divisible by weight quantization block_n = {unit}.",
            )
        )
    )
    verdict = diagnose_paths([str(path)]).verdict
    assert verdict.subtype == "tp-divisibility"
    values = {remedy.knob: remedy.value for remedy in verdict.remedies}
    assert values["--tensor-parallel-size"] == fitting
    assert values["--pipeline-parallel-size"] == rest
    assert "--enable-expert-parallel" in values, "those are weights of experts"


def _triton_death(platform: str, frame: str, error: str) -> str:
    head = "(Worker_TP0 pid=131) ERROR 11-21 09:01:02 [multiproc_executor.py:743] "
    lines = (
        "WorkerProc hit an exception.",
        "Traceback (most recent call last):",
        f'  File "/usr/lib/python3.12/site-packages/vllm/{frame}", line 982, in kernel',
        "    kernel[",
        error,
    )
    return (
        f"INFO 11-21 09:00:18 [__init__.py:217] Automatically detected platform {platform}.\n"
        "(EngineCore_DP0 pid=99) INFO 11-21 09:00:20 [core.py:94] Initializing a V1 LLM engine (v0.17.0) with config: model='org/m'\n"
        + "".join(f"{head}{line}\n" for line in lines)
    )


@pytest.mark.parametrize(
    ("platform", "limit", "frame", "knobs"),
    [
        ("cuda", 65536, "v1/attention/ops/triton_unified_attention.py", ["--attention-backend FLASHINFER"]),
        ("cuda", 101376, "v1/attention/ops/triton_unified_attention.py", ["--attention-backend FLASH_ATTN"]),
        ("rocm", 65536, "attention/ops/prefix_prefill.py", ["--no-enable-prefix-caching "]),
        ("rocm", 65536, "v1/attention/ops/triton_unified_attention.py", []),
        ("cuda", 101376, "model_executor/layers/fused_moe/fused_moe.py", []),
        ("cuda", 101376, "model_executor/layers/mamba/ops/ssd_chunk_scan.py", []),
    ],
)
def test_a_triton_kernel_that_does_not_fit_is_not_answered_with_triton(
    tmp_path: Path, platform: str, limit: int, frame: str, knobs: list[str]
) -> None:
    """Nor with a backend that the GPU is too old for: 64 KiB are Turing's limit, and FlashAttention needs Ampere."""
    path = tmp_path / "vllm.log"
    error = f"triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 181920, Hardware limit: {limit}. Reducing block sizes or `num_stages` may help."
    path.write_text(_triton_death(platform, frame, error))
    verdict = diagnose_paths([str(path)]).verdict
    assert (verdict.cause, verdict.subtype) == ("unsupported-hw", "triton-smem")
    assert [f"{each.knob} {each.value}" for each in verdict.remedies if each.knob] == knobs


@pytest.mark.parametrize(
    ("frame", "knobs"),
    [
        ("v1/attention/ops/triton_unified_attention.py", ["--attention-backend FLASH_ATTN"]),
        ("model_executor/layers/fused_moe/fused_moe.py", []),
    ],
)
def test_a_triton_kernel_that_does_not_compile_is_not_answered_with_triton(
    tmp_path: Path, frame: str, knobs: list[str]
) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(
        _triton_death("cuda", frame, "triton.compiler.errors.CompilationError: at 112:18: unsupported type")
    )
    verdict = diagnose_paths([str(path)]).verdict
    assert (verdict.cause, verdict.subtype) == ("compile-jit", "triton-compile")
    assert [f"{each.knob} {each.value}" for each in verdict.remedies if each.knob] == knobs


@pytest.mark.parametrize(
    ("version", "platform", "advised"),
    [
        ("0.4.3", "cuda", "VLLM_ATTENTION_BACKEND XFORMERS"),
        ("0.7.3", "cuda", "VLLM_ATTENTION_BACKEND XFORMERS"),
        ("0.9.1", "cuda", "VLLM_ATTENTION_BACKEND TRITON_ATTN_VLLM_V1"),
        ("0.11.0", "cuda", "VLLM_ATTENTION_BACKEND TRITON_ATTN"),
        ("0.17.0", "cuda", "--attention-backend TRITON_ATTN"),
        ("0.17.0", "cpu", ""),
    ],
)
def test_another_attention_backend_is_one_that_the_release_and_the_platform_have(
    tmp_path: Path, version: str, platform: str, advised: str
) -> None:
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    text = _triton_death(platform, "v1/worker/gpu_model_runner.py", error).replace("v0.17.0", f"v{version}")
    path = tmp_path / "vllm.log"
    path.write_text(text.replace("in kernel", "in execute_model"))
    verdict = diagnose_paths([str(path)]).verdict
    assert verdict.cause == "illegal-memory-access"
    named = [
        f"{each.knob} {each.value}" for each in verdict.remedies if "ATTN" in each.value or each.value == "XFORMERS"
    ]
    assert named == ([advised] if advised else [])
