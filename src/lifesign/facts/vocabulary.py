"""What vLLM (and its surroundings) say at the turning points of a life, as tables: deaths, signals, progress, advice.

Texts are matched literally. Releases are noted where a wording is limited to some. Sources: vLLM's own messages,
0.8.5 to 0.33.0, and V0's of 0.4 to 0.7.
"""

from __future__ import annotations

from typing import NamedTuple


class Mark(NamedTuple):
    """`text` (or all of `also` with it) in a line means event `kind` with `name`."""

    text: str
    kind: str
    name: str
    also: str = ""


# Lines that report a death without being its cause.
DEATHS = (
    Mark("EngineDeadError", "death", "engine-dead"),
    Mark("EngineCore encountered an issue", "death", "engine-dead"),
    Mark("Background loop has errored", "death", "engine-dead"),
    Mark("Background loop is stopped", "death", "engine-dead"),
    Mark("Engine loop is not running", "death", "engine-dead"),
    Mark("Engine loop has died", "death", "engine-dead"),
    Mark("Engine background task failed", "death", "core-fatal"),
    Mark("Task finished unexpectedly. This should never happen", "death", "engine-dead"),
    Mark("MQLLMEngine is already dead", "death", "engine-dead"),
    Mark("terminating server process", "death", "engine-dead"),
    Mark("EngineCore encountered a fatal error", "death", "core-fatal"),
    Mark("EngineCore hit an exception", "death", "core-fatal"),
    Mark("EngineCore failed to start", "death", "core-failed-to-start"),
    Mark("Fatal error in engine core", "death", "core-fatal"),
    Mark("WorkerProc hit an exception", "death", "worker-exception"),
    Mark("WorkerProc failed to start", "death", "worker-failed-to-start"),
    Mark("WorkerProc initialization failed due to an exception", "death", "worker-init-failed"),
    Mark("Worker proc", "death", "worker-died", "died unexpectedly"),
    Mark("RayWorkerProc", "death", "worker-died", "died unexpectedly"),
    Mark("Worker VllmWorkerProcess pid", "death", "worker-died", "died"),
    Mark("Killing local vLLM worker processes", "death", "workers-killed"),
    Mark("Engine core proc", "death", "core-died", "died unexpectedly"),
    Mark("engine core exited unexpectedly", "death", "core-exited"),
    Mark("Engine core initialization failed", "death", "init-failed"),
    Mark("Engine process failed to start", "death", "init-failed"),
    Mark("Engine process (pid", "death", "core-died", "died"),
    Mark("Got fatal signal from worker processes", "death", "engine-dead"),
    Mark("AsyncLLM output_handler failed", "death", "engine-dead"),
    Mark("Scheduler hit an exception", "death", "core-fatal"),
    Mark("SIGQUIT received", "death", "engine-dead", "child failed"),
    Mark("DP Coordinator process", "death", "coordinator-died", "died unexpectedly"),
    Mark("DP Coordinator process failed", "death", "coordinator-died"),
)

# Exception messages that only follow from another process's death. They can never be a root.
CASCADE_EXCEPTIONS = (
    "EngineDeadError", "AsyncEngineDeadError", "MQEngineDeadError", "AsyncEngineDeadError",
)  # fmt: skip
CASCADE_MESSAGES = (
    ("RuntimeError", "cancelled"),
    ("RuntimeError", "Engine core initialization failed"),
    ("RuntimeError", "Engine process failed to start"),
    ("Exception", "WorkerProc initialization failed due to an exception"),
    ("RuntimeError", "Engine process (pid"),
    ("RuntimeError", "Engine loop has died"),
    ("RuntimeError", "Executor failed"),
    ("RuntimeError", "One or more workers failed"),
    ("ChildProcessError", "worker died"),
    ("RuntimeError", "Worker processes are not running"),
    ("BrokenPipeError", ""),
    ("ConnectionResetError", "Connection lost"),
    ("AssertionError", "The engine background task should never finish without an exception"),
    ("RuntimeError", "cannot schedule new futures after"),
)

# Somebody asked for an end.
SIGNALS = (
    Mark("EngineCore: trigger received signal", "signal", "core-signal"),
    Mark("API server: shutdown triggered", "signal", "api-shutdown"),
    Mark("Received KeyboardInterrupt", "signal", "ctrl-c"),
    Mark("KeyboardInterrupt: terminated", "signal", "api-shutdown"),
    Mark("Shutting down FastAPI HTTP server", "signal", "api-shutdown"),
    Mark("shutting down FastAPI HTTP server", "signal", "api-shutdown"),
    Mark("Shutdown initiated (timeout=", "signal", "api-shutdown"),
    Mark("Engine is gracefully shutting down", "signal", "api-shutdown"),
    Mark("DPSupervisor received", "signal", "api-shutdown"),
    Mark("SIGTERM received", "signal", "sigterm"),
    Mark("Received SIGTERM", "signal", "sigterm"),
    Mark("received SIGTERM", "signal", "sigterm"),
    Mark("Received signal SIGTERM", "signal", "sigterm"),
    Mark("Stopping container", "signal", "kubelet-kill"),
    Mark("signal SIGINT", "signal", "ctrl-c"),
    Mark("Received SIGINT", "signal", "ctrl-c"),
)

SHUTDOWN_STEPS = (
    Mark("Shutting down", "shutdown", "uvicorn-shutdown"),
    Mark("Application shutdown complete", "shutdown", "uvicorn-done"),
    Mark("Finished server process", "shutdown", "uvicorn-done"),
    Mark("WorkerProc shutting down", "shutdown", "worker-shutdown"),
    Mark("Parent process exited, terminating worker", "shutdown", "worker-orphaned"),
    Mark("[shutdown]", "shutdown", "shutdown-step"),
)

# Start-up went on. The name is the phase that begins with it, or a plain milestone.
MILESTONES = (
    Mark("Initializing a V1 LLM engine", "milestone", "engine-init"),
    Mark("Initializing a V0 LLM engine", "milestone", "engine-init"),
    Mark("Initializing an LLM engine", "milestone", "engine-init"),
    Mark("non-default args", "milestone", "args"),
    Mark("vLLM API server version", "milestone", "banner"),
    Mark("\u2588  version ", "milestone", "banner"),
    Mark("LLM engine version", "milestone", "banner"),
    Mark("args: Namespace", "milestone", "args"),
    Mark("Starting to load model", "milestone", "load"),
    Mark("Loading weights took", "milestone", "weights"),
    Mark("Model loading took", "milestone", "weights-done"),
    Mark("Loading model weights took", "milestone", "weights-done"),
    Mark("model weights take", "milestone", "weights-done"),
    Mark("Memory profiling takes", "milestone", "weights-done"),
    Mark("Warming up FlashInfer attention", "milestone", "weights-done"),
    Mark("Warming up model for the compilation", "milestone", "weights-done"),
    Mark("Warming up GDN prefill kernels", "milestone", "weights-done"),
    Mark("torch.compile took", "milestone", "weights-done"),
    Mark("torch.compile takes", "milestone", "weights-done"),
    Mark("Dynamo bytecode transform time", "milestone", "weights-done"),
    Mark("Available KV cache memory", "milestone", "kv"),
    Mark("KV cache size:", "milestone", "kv"),
    Mark("# GPU blocks", "milestone", "kv"),
    Mark("Capturing CUDA graph", "milestone", "capture"),
    Mark("Capturing cudagraphs for decoding", "milestone", "capture"),
    Mark("Capturing the model for CUDA graphs", "milestone", "capture"),
    Mark("Capturing cuda graph", "milestone", "capture"),
    Mark("Capture cuda graph begin", "milestone", "capture"),
    Mark("Graph capturing finished", "milestone", "captured"),
    Mark("init engine (profile", "milestone", "ready-core"),
    Mark("Starting vLLM API server", "milestone", "ready-core"),
    Mark("Started server process", "milestone", "uvicorn-start"),
    Mark("Application startup complete", "milestone", "ready"),
    Mark("The server is fired up and ready", "milestone", "ready"),
    Mark("Uvicorn running on", "milestone", "ready"),
)

# Work was done. `vLLM's` stats line also counts when its rate is not zero (see events.py).
PROGRESS = (
    Mark('" 200', "progress", "request-ok", "POST /"),
    Mark("throughput:", "progress", "stats", "generation throughput"),
    Mark("Decode batch", "progress", "stats"),
    Mark("Prefill batch", "progress", "stats"),
    Mark("Processed prompts:", "progress", "batch"),
)

# Hints and boiler-plate that programs print around an error. Never evidence.
ADVICE = (
    "CUDA kernel errors might be asynchronously reported",
    "HIP kernel errors might be asynchronously reported",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING",
    "For debugging consider passing AMD_SERIALIZE_KERNEL",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Compile with `TORCH_USE_HIP_DSA`",
    "Device-side assertion tracking was not enabled",
    "Search for `cudaError",
    "Search for `hipError",
    "please ignore because this is the expected termination",
    "If reserved but unallocated memory is large",
    "If out-of-memory error occurs during cudagraph capture",
    "resource_tracker",
    "destroy_process_group() was not called",
    "Error retrieving safetensors",
    "Exception in ASGI application",
    "libnccl-net.so",
    "Could not find: libnccl-env",
    "Failed to import from amdsmi",
    "Failed to import from vllm._rocm_C",
    "does not have native support for FP8",
    "Set TORCHDYNAMO_VERBOSE=1",
    "You can suppress this exception and fall back to eager",
    "nanobind: leaked",
    "leaked semaphore",
    "leaked shared_memory",
)

# Text of users: request logging and state dumps, possibly over many lines.
QUOTED = (
    "Dumping input data",
    "Dumping scheduler output",
    "Dumping scheduler stats",
    "Received request ",
    "Generated response ",
    "Input prompt:",
    "prompt: '",
    'prompt: "',
)

KERNEL = (
    "Out of memory: Killed process",
    "Memory cgroup out of memory",
    "oom-kill:",
    "invoked oom-killer",
    "oom_reaper:",
    "NVRM: Xid",
    "NVRM:",
    "segfault at",
    "traps: ",
    "general protection fault",
    "Killed process",
    "Tasks state (memory values in pages)",
    "amdgpu: ",
    "mce: [Hardware Error]",
    "EDAC ",
    "pcieport",
    "hung_task",
    "blocked for more than",
    "watchdog: BUG: soft lockup",
)

PROCESS_WIDE = ("Too many open files", "[Errno 24]", "can't start new thread")

NATIVE = (
    "!!!!!!! Segfault encountered",
    "*** SIGSEGV received",
    "*** SIGBUS received",
    "*** SIGABRT received",
    "*** Aborted at",
    "Fatal Python error: Segmentation fault",
    "Fatal Python error: Bus error",
    "Fatal Python error: Aborted",
    "Fatal Python error: Illegal instruction",
    "Fatal Python error: Floating point exception",
    "Segmentation fault",
    "Bus error",
    "Illegal instruction",
    "Caught signal 11",
    "Caught signal 8 (",
    "Caught signal 7 (",
    "Caught signal 6 (",
    "Caught signal 4 (",
    "Signal: Segmentation fault",
    "Process received signal",
    "terminate called",
    "stack smashing detected",
    "double free or corruption",
    "corrupted size vs. prev_size",
    "free(): invalid pointer",
    "munmap_chunk(): invalid pointer",
    "malloc(): ",
)

# A program refused its command line and never started.
USAGE_ERRORS = (
    ": error: unrecognized arguments",
    ": error: argument ",
    ": error: the following arguments are required",
    ": error: ambiguous option",
)

# What a shell, a container runtime or an orchestrator says about the end of a process; exit statuses: exit_status.py.
OUTSIDE_DEATHS = (
    "OOMKilled", "137 true", "CrashLoopBackOff", "Main process exited, code=killed", "Main process exited, code=exited, status=1/FAILURE",
    "code=dumped", "killed by the OOM killer", "Failed with result 'oom-kill'", "systemd-oomd killed", "status=9/KILL",
    "status=11/SEGV", "status=6/ABRT", "error while attempting to bind on address",
)  # fmt: skip

FATAL_HEADERS = (
    "EngineCore encountered a fatal error",
    "EngineCore failed to start",
    "EngineCore hit an exception",
    "WorkerProc hit an exception",
    "WorkerProc failed to start",
    "Process EngineCore",
    "Process SpawnProcess",
    "Process ForkProcess",
    "Process Process-",
    "Exception in worker",
    "Error executing method",
    "Engine background task failed",
    "Exception in thread",
    "Scheduler hit an exception",
    "TpModelWorkerClient hit an exception",
    "ModelRunner hit an exception",
)

REQUEST_HEADERS = (
    "Exception in ASGI application",
    "Error in ",
    "Error with ",
    "Error processing",
    "Failed to advance",
    "Unexpected error pre-processing request",
    "Failed to apply",
    "Invocation of",
    "Error while loading LoRA",
    "Request ",
    "HarmonyError",
)

TEARDOWN_FRAMES = (
    "destroy_process_group", ":__del__", ":_cleanup", ":cleanup_dist_env", "destroy_model_parallel",
    "destroy_distributed_environment", "atexit", ":_exit_function", "weakref.py",
)  # fmt: skip
