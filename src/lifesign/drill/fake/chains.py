"""Tracebacks as vLLM prints them on its way down, built from short tables of frames.

Between releases the functions stay and the lines move; the lines here are those of 0.32.0, except where a release's own are
known. A diagnosis must not depend on them anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

from lifesign.drill.fake.dialect import Release
from lifesign.drill.model import Frame

_CORE = "vllm/v1/engine/core.py"
_CLIENT = "vllm/v1/engine/core_client.py"
_ASYNC = "vllm/v1/engine/async_llm.py"
_EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
_RING = "vllm/distributed/device_communicators/shm_broadcast.py"

# version -> line of (run_engine_core, run_busy_loop, _process_engine_step, step)
_CORE_LINES = {
    "0.8.5": (389, 413, 438, 203),
    "0.11.2": (836, 863, 892, 346),
    "0.19.1": (1101, 1142, 1181, 398),
    "0.32.0": (1496, 1555, 1606, 674),
}
_CLIENT_LINES = {"0.8.5": (357, 716), "0.11.2": (478, 895), "0.19.1": (663, 985), "0.32.0": (849, 1235)}

DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
BUILDING = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."


def traceback_text(release: Release, frames: Iterable[Frame], last: str) -> str:
    """A traceback without a prefix, its last line(s) given."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path = frame.path if frame.path.startswith("/") else f"{release.root}/{frame.path}"
        lines += [f'  File "{path}", line {frame.line or 100}, in {frame.function}', f"    {frame.code}"]
    return "\n".join([*lines, last])


def core_step(release: Release) -> list[Frame]:
    """From the start of EngineCore's loop down to one step."""
    run, loop, process, step = _CORE_LINES[release.version]
    return [
        Frame(_CORE, "run_engine_core", "engine_core.run_busy_loop()", run),
        Frame(_CORE, "run_busy_loop", "self._process_engine_step()", loop),
        Frame(_CORE, "_process_engine_step", "outputs, model_executed = self.step_fn()", process),
        Frame(_CORE, "step", "model_output = future.result()", step),
    ]


def core_start(release: Release) -> list[Frame]:
    """EngineCore's constructor as far as the workers."""
    run = _CORE_LINES[release.version][0]
    return [
        Frame(_CORE, "run_engine_core", "engine_core = EngineCoreProc(*args, **kwargs)", run - 14),
        Frame(_CORE, "__init__", "super().__init__(", 1194 if release.version == "0.32.0" else 606),
    ]


def core_building(release: Release) -> list[Frame]:
    """EngineCore waits for workers that never become ready."""
    return [
        *core_start(release),
        Frame(_CORE, "__init__", "self.model_executor = executor_class(vllm_config)", 144),
        Frame("vllm/v1/executor/abstract.py", "__init__", "self._init_executor()", 126),
        Frame(_EXECUTOR, "_init_executor", "self.workers = WorkerProc.wait_for_ready(unready_workers)", 215),
        Frame(_EXECUTOR, "wait_for_ready", "raise e from None", 815),
    ]


def core_profiling(release: Release) -> list[Frame]:
    """EngineCore asks its workers how much memory there is."""
    return [
        *core_start(release),
        Frame(_CORE, "__init__", "kv_cache_config = self._initialize_kv_caches(vllm_config)", 160),
        Frame(
            _CORE,
            "_initialize_kv_caches",
            "available_gpu_memory = self.model_executor.determine_available_memory()",
            300,
        ),
        Frame(
            "vllm/v1/executor/abstract.py",
            "determine_available_memory",
            'return self.collective_rpc("determine_available_memory")',
            160,
        ),
    ]


RPC = (
    Frame(_EXECUTOR, "collective_rpc", "return future if non_block else future.result()", 455),
    Frame(_EXECUTOR, "get_response", "status, result = mq.dequeue(timeout=dequeue_timeout)", 440),
)
RPC_ERROR = (
    Frame(_EXECUTOR, "collective_rpc", "return future if non_block else future.result()", 455),
    Frame(_EXECUTOR, "get_response", "raise RuntimeError(", 444),
)
RPC_TIMEOUT = (
    Frame(_EXECUTOR, "collective_rpc", "return future if non_block else future.result()", 455),
    Frame(_EXECUTOR, "get_response", 'raise TimeoutError(f"RPC call to {method} timed out.") from e', 442),
)
RING_WAIT = (
    Frame(_RING, "dequeue", "with self.acquire_read(timeout, indefinite) as buf:", 971),
    Frame("/usr/local/lib/python3.11/contextlib.py", "__enter__", "return next(self.gen)", 137),
)
RING_CANCELLED = (*RPC, *RING_WAIT, Frame(_RING, "acquire_read", 'raise RuntimeError("cancelled")', 867))
RING_TIMEOUT = (RPC[1], *RING_WAIT, Frame(_RING, "acquire_read", "raise TimeoutError", 865))

WORKER_BUSY = (
    Frame(_EXECUTOR, "worker_busy_loop", "output = func(*args, **kwargs)", 1055),
    Frame("vllm/v1/worker/worker_base.py", "execute_model", "return self.worker.execute_model(scheduler_output)", 370),
)
WORKER_CALL = (Frame(_EXECUTOR, "worker_busy_loop", "output = func(*args, **kwargs)", 1055),)
WORKER_MAIN = (
    Frame(_EXECUTOR, "worker_main", "worker = WorkerProc(*args, **kwargs)", 920),
    Frame(_EXECUTOR, "__init__", "self.worker.load_model()", 640),
)
CHAINED = "\n\nThe above exception was the direct cause of the following exception:\n\n"


def output_handler(release: Release) -> str:
    """The API server finds out that the engine is dead."""
    handler, client = _CLIENT_LINES[release.version]
    frames = (
        Frame(_ASYNC, "output_handler", "outputs = await engine_core.get_output_async()", handler),
        Frame(_CLIENT, "get_output_async", "raise self._format_exception(outputs) from None", client),
    )
    return traceback_text(release, frames, DEAD)


def stream_error(release: Release) -> str:
    """A streamed request is told."""
    handler, client = _CLIENT_LINES[release.version]
    frames = (
        Frame(
            "vllm/entrypoints/openai/completion/serving.py",
            "completion_stream_generator",
            "async for prompt_idx, res in result_generator:",
            306,
        ),
        Frame(_ASYNC, "generate", "out = q.get_nowait() or await q.get()", handler - 82),
        Frame("vllm/v1/engine/output_processor.py", "get", "raise output", 92),
        Frame(_ASYNC, "output_handler", "outputs = await engine_core.get_output_async()", handler),
        Frame(_CLIENT, "get_output_async", "raise self._format_exception(outputs) from None", client),
    )
    return traceback_text(release, frames, DEAD)


def init_failed(release: Release, codes: dict[str, int]) -> str:
    """The API server's last words when the engine never came up."""
    frames = (
        Frame("/opt/venv/bin/vllm", "<module>", "sys.exit(main())", 8),
        Frame("vllm/entrypoints/cli/main.py", "main", "args.dispatch_function(args)", 120),
        Frame("vllm/entrypoints/cli/serve.py", "cmd", "uvloop.run(run_server(args))", 156),
        Frame(_ASYNC, "__init__", "self.engine_core = EngineCoreClient.make_async_mp_client(", 184),
        Frame(_CLIENT, "__init__", "with launch_core_engines(", 682),
        Frame("vllm/v1/engine/utils.py", "wait_for_engine_startup", "raise RuntimeError(", 1431),
    )
    tail = f" Failed core proc(s): {codes}" if release.failed_procs else ""
    return traceback_text(
        release, frames, f"RuntimeError: Engine core initialization failed. See root cause above.{tail}"
    )
