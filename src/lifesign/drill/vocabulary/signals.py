"""Signals to one process of a serving engine: what the kernel, an orchestrator, a bug in native code or a person sends."""

from __future__ import annotations

from lifesign.drill.model import Expect, Fault, Hook, KillParent, Leave, Signal, Start
from lifesign.text import T

DIED = ("died unexpectedly",)
WORKER_GONE = Expect("silent-death", "worker-died-no-trace", decisive=DIED)
CORE_GONE = Expect(
    "silent-death",
    "core-died-no-trace",
    decisive=("exited unexpectedly", "died unexpectedly"),
)
NATIVE_FAULT = Expect(
    "silent-death",
    "segfault-native",
    accept_subtypes=("worker-died-no-trace", "core-died-no-trace"),
    decisive=("Segfault encountered", "died unexpectedly", "exited unexpectedly"),
)


def _server_gone(status: int) -> Expect:
    """The top process takes its last words with it: the log just stops. Its exit status, which stands beside it, tells."""
    return Expect("silent-death", "signal", decisive=(f"exited with code {status}",))


# Nothing died, and a log can't show that a process stands still.
STANDS_STILL = Expect("not-a-crash", "healthy")

FAULTS = (
    Fault(
        "worker-sigkill",
        T("a worker is killed (SIGKILL)", "worker 进程被 SIGKILL"),
        WORKER_GONE,
        signal=Signal("worker", "SIGKILL"),
        ci=True,
    ),
    Fault(
        "worker-sigsegv",
        T("a worker crashes in native code (SIGSEGV)", "worker 在原生代码里段错误（SIGSEGV）"),
        NATIVE_FAULT,
        signal=Signal("worker", "SIGSEGV"),
        ci=True,
    ),
    Fault(
        "worker-sigbus",
        T("a worker gets SIGBUS (a mapped file or /dev/shm shrank)", "worker 收到 SIGBUS（映射文件或 /dev/shm 变小）"),
        WORKER_GONE,
        signal=Signal("worker", "SIGBUS"),
    ),
    Fault(
        "worker-sigabrt",
        T("a worker aborts in native code (SIGABRT)", "worker 在原生代码里 abort（SIGABRT）"),
        WORKER_GONE,
        signal=Signal("worker", "SIGABRT"),
    ),
    Fault(
        "worker-sigterm",
        T("a worker alone gets SIGTERM", "只有一个 worker 收到 SIGTERM"),
        WORKER_GONE,
        signal=Signal("worker", "SIGTERM"),
    ),
    Fault(
        "worker-exit",
        T("a worker leaves through exit() without a word", "worker 一声不响地 exit()"),
        WORKER_GONE,
        hook=Hook("worker.forward", (Leave("exit", 17),)),
    ),
    Fault(
        "worker-null-read",
        T("a worker reads a null pointer", "worker 读空指针"),
        NATIVE_FAULT,
        hook=Hook("worker.forward", (Leave("null"),)),
    ),
    Fault(
        "worker-sigkill-keep-alive",
        T(
            "a worker is killed while the API server is told to stay up (VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1)",
            "worker 被杀，而 API server 被要求继续运行（VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1）",
        ),
        WORKER_GONE,
        signal=Signal("worker", "SIGKILL"),
        start=Start(env=(("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1"),)),
        fate="lives",
        engines=("vllm",),
        bound_s=20,
    ),
    Fault(
        "core-sigkill",
        T("EngineCore is killed (SIGKILL)", "EngineCore 被 SIGKILL"),
        CORE_GONE,
        signal=Signal("core", "SIGKILL"),
        ci=True,
    ),
    Fault(
        "core-sigsegv",
        T("EngineCore crashes in native code (SIGSEGV)", "EngineCore 在原生代码里段错误（SIGSEGV）"),
        NATIVE_FAULT,
        signal=Signal("core", "SIGSEGV"),
    ),
    Fault(
        "core-sigbus",
        T("EngineCore gets SIGBUS", "EngineCore 收到 SIGBUS"),
        CORE_GONE,
        signal=Signal("core", "SIGBUS"),
    ),
    Fault(
        "core-sigabrt",
        T("EngineCore aborts in native code (SIGABRT)", "EngineCore 在原生代码里 abort（SIGABRT）"),
        CORE_GONE,
        signal=Signal("core", "SIGABRT"),
    ),
    Fault(
        "core-sigterm",
        T("EngineCore alone gets SIGTERM", "只有 EngineCore 收到 SIGTERM"),
        Expect(
            "process-lifecycle",
            "external-sigterm",
            decisive=("trigger received signal=SIGTERM", "exited unexpectedly"),
        ),
        signal=Signal("core", "SIGTERM"),
    ),
    Fault(
        "api-sigkill",
        T("the API server is killed (SIGKILL); its children stay behind", "API server 被 SIGKILL，子进程成为孤儿"),
        _server_gone(137),
        signal=Signal("api", "SIGKILL"),
    ),
    Fault(
        "api-sigsegv",
        T("the API server crashes in native code (SIGSEGV)", "API server 在原生代码里段错误（SIGSEGV）"),
        Expect(
            "silent-death",
            "segfault-native",
            decisive=("Segfault encountered",),
        ),
        signal=Signal("api", "SIGSEGV"),
    ),
    Fault(
        "api-sigabrt",
        T("the API server aborts in native code (SIGABRT)", "API server 在原生代码里 abort（SIGABRT）"),
        _server_gone(134),
        signal=Signal("api", "SIGABRT"),
    ),
    Fault(
        "api-sigbus",
        T("the API server gets SIGBUS", "API server 收到 SIGBUS"),
        _server_gone(135),
        signal=Signal("api", "SIGBUS"),
    ),
    Fault(
        "api-sigstop",
        T(
            "the API server is stopped (SIGSTOP): no answer, no line",
            "API server 被暂停（SIGSTOP）：不应答，也不再写日志",
        ),
        STANDS_STILL,
        signal=Signal("api", "SIGSTOP"),
        fate="lives",
        bound_s=12,
    ),
    Fault(
        "load-worker-exit",
        T("a worker leaves while it loads the model", "worker 在加载模型时退出"),
        Expect(
            "silent-death",
            "worker-died-no-trace",
            "startup-load",
            decisive=("WorkerProc initialization failed", "died unexpectedly"),
        ),
        when="start-up",
        hook=Hook("worker.load", (Leave("exit", 9),)),
    ),
    Fault(
        "load-worker-null-read",
        T("a worker reads a null pointer while it loads the model", "worker 在加载模型时读空指针"),
        Expect(
            "silent-death",
            "segfault-native",
            "startup-load",
            accept_subtypes=("worker-died-no-trace",),
            decisive=("Segfault encountered", "WorkerProc initialization failed", "died unexpectedly"),
        ),
        when="start-up",
        hook=Hook("worker.load", (Leave("null"),)),
    ),
    Fault(
        "load-core-sigkill",
        T("EngineCore is killed while the model loads", "加载模型时 EngineCore 被 SIGKILL"),
        Expect(
            "silent-death",
            "core-died-no-trace",
            "startup-load",
            accept_subtypes=("sigkill",),
            decisive=("Failed core proc(s)",),
        ),
        when="start-up",
        hook=Hook("worker.load", (KillParent(),)),
    ),
)
