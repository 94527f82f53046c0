"""How four releases of vLLM write: prefixes, positions of messages, wording that changed. Read off real logs (see corpus/)."""

from __future__ import annotations

from dataclasses import dataclass

from lifesign.drill.model import Role


@dataclass(frozen=True, slots=True)
class Release:
    """One release's way of writing. `at` maps a message to the position that it is logged with."""

    version: str
    api_prefix: str
    core_prefix: str
    worker_prefix: str
    core_name: str  # the name of the EngineCore process in messages
    uvicorn_prefixed: bool
    banner: bool  # the ASCII logo of 0.18+
    exit_code_in_death: bool  # "died unexpectedly (exit code: N)"
    shutdown_lines: bool  # "[shutdown] ..." of 0.26+
    failed_procs: bool  # "Failed core proc(s): {...}"
    repeats_fatal: bool  # EngineCore repeats its traceback as "Process EngineCore:"
    accelerator_error: str
    root: str  # where site-packages lies in its usual container
    at: dict[str, str]

    def prefix(self, role: Role, pid: int, rank: int, ranks: int) -> str:
        """What stands before each line of a process, with a trailing blank; empty where the release had none."""
        if role == "api":
            return self.api_prefix.format(pid=pid)
        if role == "core":
            return self.core_prefix.format(pid=pid)
        name = f"Worker_TP{rank}" if ranks > 1 else "Worker"
        return self.worker_prefix.format(pid=pid, rank=rank, name=name)


_COMMON_ROOT = "/usr/local/lib/python3.12/dist-packages"

RELEASES: dict[str, Release] = {
    "0.8.5": Release(
        version="0.8.5",
        api_prefix="",
        core_prefix="",
        worker_prefix="(VllmWorker rank={rank} pid={pid}) ",
        core_name="EngineCore_0",
        uvicorn_prefixed=False,
        banner=False,
        exit_code_in_death=False,
        shutdown_lines=False,
        failed_procs=False,
        repeats_fatal=False,
        accelerator_error="RuntimeError",
        root=_COMMON_ROOT,
        at={
            "hello": "api_server.py:1043",
            "args": "api_server.py:1044",
            "arch": "config.py:717",
            "chunked": "config.py:2003",
            "core": "core.py:58",
            "world": "parallel_state.py:1004",
            "load": "gpu_model_runner.py:1329",
            "loaded": "loader.py:458",
            "size": "gpu_model_runner.py:1347",
            "kv": "kv_cache_utils.py:634",
            "concurrency": "kv_cache_utils.py:637",
            "init": "core.py:159",
            "start": "api_server.py:1090",
            "worker_failed": "multiproc_executor.py:435",
            "worker_error": "multiproc_executor.py:470",
            "worker_died": "multiproc_executor.py:123",
            "parent": "multiproc_executor.py:400",
            "dump": "dump_input.py:68",
            "fatal": "core.py:398",
            "start_failed": "core.py:396",
            "output_handler": "async_llm.py:399",
            "core_died": "core_client.py:522",
            "serving": "serving_completion.py:330",
            "stats": "loggers.py:87",
        },
    ),
    "0.11.2": Release(
        version="0.11.2",
        api_prefix="\x1b[0;36m(APIServer pid={pid})\x1b[0;0m ",
        core_prefix="\x1b[0;36m(EngineCore_DP0 pid={pid})\x1b[0;0m ",
        worker_prefix="\x1b[0;36m({name} pid={pid})\x1b[0;0m ",
        core_name="EngineCore_DP0",
        uvicorn_prefixed=True,
        banner=False,
        exit_code_in_death=False,
        shutdown_lines=False,
        failed_procs=True,
        repeats_fatal=True,
        accelerator_error="torch.AcceleratorError",
        root=_COMMON_ROOT,
        at={
            "hello": "api_server.py:1977",
            "args": "utils.py:253",
            "arch": "model.py:631",
            "chunked": "scheduler.py:216",
            "core": "core.py:93",
            "world": "parallel_state.py:1169",
            "load": "gpu_model_runner.py:3259",
            "loaded": "default_loader.py:314",
            "size": "gpu_model_runner.py:3338",
            "kv": "kv_cache_utils.py:1224",
            "concurrency": "kv_cache_utils.py:1234",
            "init": "core.py:250",
            "start": "api_server.py:2052",
            "worker_failed": "multiproc_executor.py:750",
            "worker_error": "multiproc_executor.py:822",
            "worker_died": "multiproc_executor.py:230",
            "parent": "multiproc_executor.py:708",
            "dump": "dump_input.py:72",
            "fatal": "core.py:845",
            "start_failed": "core.py:842",
            "output_handler": "async_llm.py:525",
            "core_died": "core_client.py:598",
            "serving": "serving_completion.py:400",
            "stats": "loggers.py:236",
        },
    ),
    "0.19.1": Release(
        version="0.19.1",
        api_prefix="(APIServer pid={pid}) ",
        core_prefix="(EngineCore pid={pid}) ",
        worker_prefix="({name} pid={pid}) ",
        core_name="EngineCore",
        uvicorn_prefixed=True,
        banner=True,
        exit_code_in_death=False,
        shutdown_lines=False,
        failed_procs=True,
        repeats_fatal=True,
        accelerator_error="torch.AcceleratorError",
        root="/opt/venv/lib/python3.11/site-packages",
        at={
            "hello": "utils.py:299",
            "args": "utils.py:233",
            "arch": "model.py:549",
            "chunked": "scheduler.py:238",
            "core": "core.py:105",
            "world": "parallel_state.py:1400",
            "load": "gpu_model_runner.py:4735",
            "loaded": "default_loader.py:384",
            "size": "gpu_model_runner.py:4820",
            "kv": "kv_cache_utils.py:1319",
            "concurrency": "kv_cache_utils.py:1324",
            "init": "core.py:283",
            "start": "api_server.py:596",
            "worker_failed": "multiproc_executor.py:870",
            "worker_error": "multiproc_executor.py:963",
            "worker_died": "multiproc_executor.py:273",
            "parent": "multiproc_executor.py:764",
            "dump": "dump_input.py:72",
            "fatal": "core.py:1110",
            "start_failed": "core.py:1108",
            "output_handler": "async_llm.py:707",
            "core_died": "core_client.py:670",
            "serving": "serving.py:448",
            "stats": "loggers.py:259",
            "core_stop": "core.py:1210",
        },
    ),
    "0.32.0": Release(
        version="0.32.0",
        api_prefix="(APIServer pid={pid}) ",
        core_prefix="(EngineCore pid={pid}) ",
        worker_prefix="({name} pid={pid}) ",
        core_name="EngineCore",
        uvicorn_prefixed=False,
        banner=True,
        exit_code_in_death=True,
        shutdown_lines=True,
        failed_procs=True,
        repeats_fatal=False,
        accelerator_error="torch.AcceleratorError",
        root="/opt/venv/lib/python3.11/site-packages",
        at={
            "hello": "api_utils.py:347",
            "args": "api_utils.py:286",
            "arch": "model.py:733",
            "chunked": "scheduler.py:307",
            "core": "core.py:133",
            "world": "parallel_state.py:1906",
            "load": "gpu_model_runner.py:5063",
            "loaded": "default_loader.py:501",
            "size": "gpu_model_runner.py:5150",
            "kv": "kv_cache_utils.py:2327",
            "concurrency": "kv_cache_utils.py:2331",
            "init": "core.py:402",
            "start": "entry.py:140",
            "worker_failed": "multiproc_executor.py:953",
            "worker_error": "multiproc_executor.py:1063",
            "worker_died": "multiproc_executor.py:315",
            "parent": "multiproc_executor.py:843",
            "dump": "dump_input.py:72",
            "fatal": "core.py:1512",
            "start_failed": "core.py:1510",
            "output_handler": "async_llm.py:906",
            "core_died": "core_client.py:817",
            "serving": "serving.py:500",
            "stats": "loggers.py:301",
            "core_stop": "core.py:1454",
        },
    ),
}
DEFAULT_RELEASE = "0.32.0"
