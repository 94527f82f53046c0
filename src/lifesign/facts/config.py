"""Version, platform, configuration and figures: what the log says about the engine's set-up."""

from __future__ import annotations

import ast
import re

from lifesign.facts import command_line
from lifesign.facts.model import Event, Life
from lifesign.facts.reprs import read_repr

_VERSION = re.compile(
    r"(?:Initializing an? (?:V[01] )?LLM engine \(v|vLLM API server version |LLM engine version |[█▀▄ ]{3,40}version |vLLM Version *: ?|"
    r"\bvllm==|\bvllm-|vllm/vllm-openai:v|vllm-ascend:v|vLLM version: |\bvllm +|vllm_version[=: '\"]{1,4})v?(\d{1,2}\.\d{1,3}(?:\.\d{1,3}){0,2}(?:\.?(?:post|dev|rc|a|b)\d{1,6}){0,3}(?:\+[\w.]{1,40})?)"
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
# A command that somebody typed or a script echoed: it begins the line (after a prompt), it isn't a sentence about one.
_COMMAND = re.compile(
    r"(?:[\w@.:~/\-]{0,60}[$#>] +|\+ +|exec +|Command: +|command: +|Running: +)?"
    r"((?:[A-Z][A-Z0-9_]{1,60}=\S{0,200} +){0,20}(?:[\w/.\-]{0,120}/)?(?:vllm serve (?!with |to |and |is |\.\.\.)\S.{0,1500}|python3? -m vllm\.entrypoints\S* .{0,1500}))"
)

_NUMBER = r"(\d{1,12}(?:,\d{3}){0,4}(?:\.\d{1,6})?)"
_SIZE = rf"{_NUMBER} ?(GiB|MiB|GB|MB)"

# Sizes are kept in GiB whatever the log prints. (name, word that the line must have, pattern with number and unit): the word
# spares most lines the search, and most runs the compilation of most patterns.
_SIZES: tuple[tuple[str, str, str], ...] = (
    ("total_gib", "total capacity", rf"total capacity of {_SIZE}"),
    ("total_gib", "Free memory on", rf"Free memory on device (?:\S+ )?\([\d.]+/{_SIZE}\)"),
    ("free_gib", "of which", rf"of which {_SIZE} is free"),
    ("tried_gib", "Tried to", rf"Tried to allocate {_SIZE}"),
    ("in_use_gib", "this process", rf"this process has {_SIZE} memory in use"),
    ("other_gib", "memory in use", rf"Process \d+ has {_SIZE} memory in use"),
    ("reserved_gib", "is reserved", rf"{_SIZE} is reserved by PyTorch but unallocated"),
    ("desired_gib", "desired GPU", rf"desired GPU memory utilization \([\d.]+, {_SIZE}\)"),
    ("kv_needed_gib", "is needed", rf"\(?{_SIZE} KV cache is needed"),
    ("kv_available_gib", "available KV", rf"available KV cache memory \({_SIZE}\)"),
    ("kv_available_gib", "Available KV", rf"Available KV cache memory: {_SIZE}"),
    ("weights_gib", "Model loading", rf"Model loading took {_SIZE}"),
    ("weights_gib", "model weights", rf"(?:Loading model weights took|model weights take) {_SIZE}"),
    ("graph_gib", "Graph capturing", rf"Graph capturing finished in \d+ secs, took {_SIZE}"),
    ("graph_gib", "Estimated CUDA", rf"Estimated CUDA graph memory: {_SIZE}"),
    ("ram_gib", "Available RAM", rf"Available RAM: {_SIZE}"),
)
_PLAIN: tuple[tuple[str, str, str], ...] = (
    ("free_gib", "Free memory on", rf"Free memory on device (?:\S+ )?\({_NUMBER}/[\d.]+ GiB\)"),
    ("utilisation", "desired GPU", rf"desired GPU memory utilization \({_NUMBER}"),
    ("max_len", "max seq len", rf"max seq len \({_NUMBER}\)"),
    ("max_len", "Maximum concurrency", rf"Maximum concurrency for {_NUMBER} tokens"),
    ("concurrency", "tokens per request", rf"tokens per request: {_NUMBER}x"),
    ("est_max_len", "estimated maximum", rf"estimated maximum model length is {_NUMBER}"),
    ("derived_max_len", "derived max_model_len", rf"derived max_model_len \([\w.]{{0,60}}={_NUMBER}"),
    ("asked_max_len", "User-specified", rf"User-specified max_model_len \({_NUMBER}\)"),
    ("kv_tokens", "KV cache size", rf"KV cache size: {_NUMBER} tokens"),
    ("dummy_requests", "dummy requests", rf"warming up sampler with {_NUMBER} dummy requests"),
    ("vocab_size", "vocab_size", rf"vocab_size[=:] ?{_NUMBER}"),
    ("token_count", "stored in KV", rf"stored in KV cache \({_NUMBER}\)"),
    (
        "suggested_utilisation",
        "--gpu-memory-util",
        rf"(?:increase|raise|set) `?--gpu-memory-utilization`? to {_NUMBER}",
    ),
    ("suggested_kv_bytes", "--kv-cache-memory", rf"--kv-cache-memory(?:-bytes)?[= ]{_NUMBER}"),
    ("running_reqs", "num_running_reqs", rf"num_running_reqs={_NUMBER}"),
    ("running_reqs", "Running:", rf"Running: {_NUMBER} reqs"),
    ("scheduled_tokens", "total_num_scheduled", rf"total_num_scheduled_tokens={_NUMBER}"),
    ("lora_rank", "LoRA rank", rf"LoRA rank {_NUMBER} is greater"),
    ("gpus_seen", "available GPUs", rf"total number of available GPUs \({_NUMBER}\)"),
    ("max_num_batched_tokens", "max_num_batched", rf"max_num_batched_tokens={_NUMBER}"),
)
_FIGURES = (*_SIZES, *_PLAIN)
_FIGURE_WORDS = (
    "GiB", "MiB", " GB", "tokens", "max_model_len", "dummy requests", "num_running_reqs", "Running:", "max seq len", "vocab_size",
    "total_num_scheduled_tokens", "LoRA rank", "available GPUs",
)  # fmt: skip
_TO_GIB = {"GiB": 1.0, "MiB": 1 / 1024, "GB": 1e9 / 2**30, "MB": 1e6 / 2**30}

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
    # The state dump at a death names the release too, and is nearer to it than a start-up line that may be another run's.
    dumped = event.weight == "quoted" and "LLM engine (v" in text
    if ("v" in text or "V" in text) and (dumped or not life.version):
        match = _VERSION.search(text[:3000])
        if match:
            life.version, life.version_line = match[1], event.line
    if event.kind in ("milestone", "log", "plain", "progress"):
        _learn_config(event, life)
    if any(word in text for word in _FIGURE_WORDS):
        _learn_figures(event, life)
    if event.weight == "quoted":
        return
    # "consider passing CUDA_LAUNCH_BLOCKING=1" is advice of a program, not a setting of the user.
    if (
        "_" in text
        and "=" in text
        and event.kind in ("plain", "log", "milestone")
        and (event.weight != "advice" or text.startswith(("$ ", "# ")))
    ):
        for match in _ENV.finditer(text[:2000]):
            life.env.setdefault(match[1], match[2].strip("\"',;"))
    if "vllm" in text and not life.command and event.kind == "plain":
        match = _COMMAND.match(text[:3000].lstrip())
        # `vllm serve ... --flag   # comment` in somebody's notes is a sketch, no command.
        if match and "..." not in match[1]:
            learn_command(life, match[1].partition(" #")[0].rstrip("'\" "))


def _learn_figures(event: Event, life: Life) -> None:
    """Figures of an error: the first one counts, it belongs to the process that failed. Of ordinary lines: the latest."""
    text = event.text[:4000]
    for name, word, pattern in _FIGURES:
        match = re.search(pattern, text) if word in text else None
        if match is None:
            continue
        known = life.figures.get(name)
        if known is not None and known[1] in life.error_lines:
            continue
        value = float(match[1].replace(",", ""))
        if match.re.groups == 2:
            value *= _TO_GIB[match[2]]
        life.figures[name] = (round(value, 4), event.line)
        if event.kind in ("exception", "wrapper"):
            life.error_lines.add(event.line)


def _learn_config(event: Event, life: Life) -> None:
    text = event.text
    if "non-default args: {" in text:
        start = text.index("{")
        end = text.rfind("}")
        parsed: object
        try:
            parsed = read_repr(text[start : end + 1])
        except (ValueError, TypeError):  # TypeError: a key that can't be one
            found: dict[str, object] = {}
            parsed = found
            for match in re.finditer(r"'([a-z_]{2,40})': ('[^']{0,300}'|[\w.+\-]{1,60})", text[:4000]):
                found[match[1]] = _value(match[2])
        if isinstance(parsed, dict):
            life.user_args = {str(key): value for key, value in parsed.items()}
            life.config.update(life.user_args)
    elif "args: Namespace(" in text or "with config:" in text or "with arguments" in text:
        for match in _PAIR.finditer(text[:8000]):
            if match[1] in _CONFIG_KEYS:
                value = _value(match[2].rstrip(",)"))
                life.config.setdefault(match[1], value)
                if "args: Namespace(" in text:
                    # Older releases print every argument here, defaults too; the command builder leaves those out.
                    life.user_args.setdefault(match[1], value)
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


MAX_VALUE = 60
"""Longer values of options are text, never numbers."""
_COUNTS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")


def _setting(key: str, text: str) -> object:
    """The value of an option: a count may be written as `8k`."""
    amount = command_line.number(text) if key in _COUNTS else None
    if amount is not None and amount == int(amount):
        return int(amount)
    return _value(text) if len(text) <= MAX_VALUE else text


def learn_command(life: Life, command: str, *, overrides: bool = False) -> bool:
    """Takes a command line, its settings and its variables into `life`; whether it could be read as a start of vLLM.

    overrides: the reader gave it, so it wins over what the log says.
    """
    line = command_line.read_or_none(command)
    if line is None:
        return False
    life.command = command
    settings = {
        key: _setting(key, value) if isinstance(value, str) else value for key, value in line.settings().items()
    }
    if overrides:
        life.config.update(settings)
        life.user_args = settings
        life.env.update(line.variables())
        return True
    for key, value in settings.items():
        life.config.setdefault(key, value)
    for name, value in line.variables().items():
        life.env.setdefault(name, value)
    return True


def settle(life: Life) -> None:
    """What follows from all events together: platform, world size, model from the command line."""
    counts = dict.fromkeys((name for name, _ in _PLATFORMS), 0)
    detected = ""
    for event in life.events[:3000]:
        if event.weight in ("quoted", "foreign"):
            continue
        text = event.text if len(event.text) < 6000 else event.text[:6000]
        if "Automatically detected platform " in text:
            detected = text.partition("Automatically detected platform ")[2].split(".")[0].strip()
        elif "Platform plugin ascend is activated" in text:
            detected = "npu"
        if "Failed to import from amdsmi" in text:
            continue  # said on any machine without an AMD card
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
    elif detected in counts or detected == "cuda":
        life.platform = detected
    elif device in counts:
        life.platform = device
    else:
        name, count = max(counts.items(), key=lambda item: item[1])
        life.platform = name if count >= 2 else "cuda"
    if any(
        event.origin == "sglang"
        or "sglang" in event.text[:300]
        or (event.exc is not None and event.exc.passes("sglang/"))
        for event in life.events
        if event.weight not in ("quoted", "foreign")
    ) and not life.mentions("vllm/v1/", "EngineCore"):
        life.engine = "sglang"
    size = 1
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = life.config.get(key)
        if isinstance(value, int) and 1 < value <= 4096:
            size *= value
    life.world_size = size
    if not life.model and life.command:
        line = command_line.read_or_none(life.command)
        life.model = line.model() if line is not None else ""
