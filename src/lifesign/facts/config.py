"""Version, platform, configuration and figures: what the log says about the engine's set-up."""

from __future__ import annotations

import ast
import re

from lifesign.facts.model import Event, Life

_VERSION = re.compile(
    r"(?:Initializing an? (?:V[01] )?LLM engine \(v|vLLM API server version |LLM engine version |[█▀▄ ]{3,40}version |vLLM Version *: ?|"
    r"\bvllm==|\bvllm-|vllm/vllm-openai:v|vllm-ascend:v|vLLM version: |\bvllm +|vllm_version[=: '\"]{1,4})v?(\d{1,2}\.\d{1,3}(?:\.\d{1,3})?(?:\.?(?:post|dev|rc|a|b)\d{1,6}){0,3}(?:\+[\w.]{1,40})?)"
)
_PAIR = re.compile(r"\b([a-z_]{2,40})=('[^']{0,400}'|\"[^\"]{0,400}\"|[\w.+\-/]{1,200})")
_CONFIG_KEYS = {
    "model", "dtype", "max_seq_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization",
    "enforce_eager", "kv_cache_dtype", "device_config", "seed", "served_model_name", "load_format", "trust_remote_code",
    "disable_custom_all_reduce", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
    "enable_prefix_caching", "host", "port", "cpu_offload_gb", "swap_space", "speculative_config",
}  # fmt: skip
_ENV = re.compile(
    r"(?:^|\s|export |-e )((?:VLLM|NCCL|CUDA|HF|PYTORCH|TORCH|TRITON|LD|ROCM|HIP|HSA|TORCHINDUCTOR|FLASHINFER)_[A-Z0-9_]{2,60})=(\S{0,300})"
)
_COMMAND = re.compile(
    r"(?:^|[\s\"'$#])((?:[\w/.\-]{0,80}/)?vllm serve \S.{0,1500}|(?:[\w/.\-]{0,80}/)?python3? -m vllm\.entrypoints\S* .{0,1500})"
)

_NUMBER = r"(\d{1,9}(?:,\d{3}){0,4}(?:\.\d{1,6})?)"
_FIGURES: tuple[tuple[str, str], ...] = (
    ("total_gib", rf"total capacity of {_NUMBER} GiB"),
    ("free_now_gib", rf"of which {_NUMBER} GiB is free"),
    ("free_now_mib", rf"of which {_NUMBER} MiB is free"),
    ("tried_gib", rf"Tried to allocate {_NUMBER} GiB"),
    ("tried_mib", rf"Tried to allocate {_NUMBER} MiB"),
    ("in_use_gib", rf"this process has {_NUMBER} GiB memory in use"),
    ("reserved_unallocated_gib", rf"{_NUMBER} GiB is reserved by PyTorch but unallocated"),
    ("reserved_unallocated_mib", rf"{_NUMBER} MiB is reserved by PyTorch but unallocated"),
    ("free_start_gib", rf"Free memory on device (?:\S+ )?\({_NUMBER}/[\d.]+ GiB\)"),
    ("total_start_gib", rf"Free memory on device (?:\S+ )?\([\d.]+/{_NUMBER} GiB\)"),
    ("utilisation", rf"desired GPU memory utilization \({_NUMBER}"),
    ("wanted_start_gib", rf"desired GPU memory utilization \([\d.]+, {_NUMBER} GiB\)"),
    ("max_len", rf"max seq len \({_NUMBER}\)"),
    ("kv_needed_gib", rf"{_NUMBER} GiB KV cache is needed"),
    ("kv_available_gib", rf"available KV cache memory \({_NUMBER} GiB\)"),
    ("est_max_len", rf"estimated maximum model length is {_NUMBER}"),
    ("derived_max_len", rf"derived max_model_len \([\w.]{{0,60}}={_NUMBER}"),
    ("asked_max_len", rf"User-specified max_model_len \({_NUMBER}\)"),
    ("weights_gib", rf"(?:Model loading took|Loading model weights took|model weights take) {_NUMBER} ?G(?:i?B)"),
    ("kv_memory_gib", rf"Available KV cache memory: {_NUMBER} GiB"),
    ("kv_tokens", rf"KV cache size: {_NUMBER} tokens"),
    ("warmup_requests", rf"warming up sampler with {_NUMBER} dummy requests"),
    ("max_num_batched_tokens", rf"max_num_batched_tokens={_NUMBER}"),
    ("scheduled_requests", r"num_running_reqs=(\d{1,6})"),
    ("running_requests", r"Running: (\d{1,6}) reqs"),
    ("rpc_timeout_s", rf"within {_NUMBER} ?s"),
    ("generation_tps", rf"generation throughput: {_NUMBER} tokens/s"),
)
_FIGURE_RES = tuple((name, re.compile(pattern)) for name, pattern in _FIGURES)
_FIGURE_WORDS = (
    "GiB", "MiB", "GB", "tokens", "max_model_len", "dummy requests", "num_running_reqs", "Running:", "max seq len", "within",
)  # fmt: skip

_PLATFORMS = (
    ("npu", ("torch_npu", "ascend", "Ascend", "HCCL", "npu:", "NPU", "acl error", "aclnn")),
    ("xpu", ("xpu:", "XPU", "oneccl", "oneCCL", "UR_RESULT_ERROR", "intel_extension")),
    ("rocm", ("rocm", "ROCm", "HIP ", "hipError", "gfx9", "gfx11", "amdgpu", "RCCL", "AITER", "aiter")),
    (
        "cpu",
        (
            "platform cpu",
            "CPU KV cache size",
            "cpu_worker.py",
            "device_config=cpu",
            "VLLM_CPU_",
            "cpu_model_runner",
            "+cpu)",
            "CPUWorker",
        ),
    ),
    ("tpu", ("TPU", "torch_xla", "tpu_worker")),
)

_MODULES = (
    ("npu", ("vllm_ascend", "torch_npu")),
    ("xpu", ("xpu_worker", "xpu_model_runner", "platforms/xpu")),
    ("cpu", ("cpu_worker", "cpu_model_runner", "platforms/cpu.py")),
    ("rocm", ("platforms/rocm.py", "aiter/")),
)
_ORIGINS = {
    "cpu.py": "cpu",
    "cpu_worker.py": "cpu",
    "cpu_model_runner.py": "cpu",
    "xpu.py": "xpu",
    "xpu_worker.py": "xpu",
    "rocm.py": "rocm",
}


def learn(event: Event, life: Life) -> None:
    """Adds to `life` what this event says about version, configuration and figures."""
    text = event.text
    if event.weight in ("quoted", "foreign") and "engine (v" not in text and "with config" not in text:
        return
    if ("v" in text or "V" in text) and not life.version:
        match = _VERSION.search(text[:3000])
        if match:
            life.version, life.version_line = match[1], event.line
    if event.kind in ("milestone", "log", "plain", "progress"):
        _learn_config(event, life)
    if any(word in text for word in _FIGURE_WORDS):
        for name, pattern in _FIGURE_RES:
            match = pattern.search(text[:4000])
            if match:
                life.figures[name] = (float(match[1].replace(",", "")), event.line)
    if event.weight == "quoted":
        return
    if "_" in text and "=" in text:
        for match in _ENV.finditer(text[:2000]):
            life.env.setdefault(match[1], match[2].strip("\"',;"))
    if "vllm" in text and not life.command and (event.kind in ("plain", "log")):
        match = _COMMAND.search(text[:3000])
        if match:
            life.command = match[1].rstrip("'\" ")


def _learn_config(event: Event, life: Life) -> None:
    text = event.text
    if "non-default args: {" in text:
        start = text.index("{")
        end = text.rfind("}")
        try:
            parsed = ast.literal_eval(text[start : end + 1])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            parsed = {}
            for match in re.finditer(r"'([a-z_]{2,40})': ('[^']{0,300}'|[\w.+\-]{1,60})", text[:4000]):
                parsed[match[1]] = _value(match[2])
        if isinstance(parsed, dict):
            life.config.update({str(key): value for key, value in parsed.items()})
    elif "args: Namespace(" in text or "with config:" in text or "with arguments" in text:
        for match in _PAIR.finditer(text[:8000]):
            if match[1] in _CONFIG_KEYS:
                life.config.setdefault(match[1], _value(match[2].rstrip(",)")))
    elif event.name == "weights-done" or "max_num_batched_tokens=" in text:
        pass
    model = life.config.get("model") or life.config.get("model_tag")
    if isinstance(model, str) and model:
        life.model = model


def _value(text: str) -> object:
    if text[:1] in "'\"":
        return text.strip("'\"")
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return parsed if isinstance(parsed, (int, float, str, bool, type(None))) else text


def settle(life: Life) -> None:
    """What follows from all events together: platform, world size, model from the command line."""
    counts = dict.fromkeys((name for name, _ in _PLATFORMS), 0)
    for event in life.events[:3000]:
        if event.weight in ("quoted", "foreign"):
            continue
        text = event.text if len(event.text) < 6000 else event.text[:6000]
        for name, parts in _PLATFORMS:
            if any(part in text for part in parts):
                counts[name] += 1
        for name, modules in _MODULES:
            if event.exc is not None and event.exc.passes(*modules):
                counts[name] += 3
        origin = event.origin.partition(":")[0]
        if origin in _ORIGINS:
            counts[_ORIGINS[origin]] += 3
    device = str(life.config.get("device_config", ""))
    if "+cpu" in life.version or device == "cpu":
        life.platform = "cpu"
    elif "+rocm" in life.version:
        life.platform = "rocm"
    else:
        name, count = max(counts.items(), key=lambda item: item[1])
        life.platform = name if count >= 2 else "cuda"
    size = 1
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = life.config.get(key)
        if isinstance(value, int) and 1 < value <= 4096:
            size *= value
    life.world_size = size
    if not life.model and life.command:
        match = re.search(r"vllm serve (\S+)|--model[= ](\S+)", life.command)
        if match:
            life.model = match[1] or match[2]
