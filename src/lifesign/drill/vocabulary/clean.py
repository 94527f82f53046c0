"""Ends that aren't deaths. A tool that calls one of these a crash is worse than none."""

from __future__ import annotations

from lifesign.drill.model import Expect, Fault, Signal, Start
from lifesign.text import T

STOPPED = Expect(
    "not-a-crash",
    "clean-shutdown",
    "shutdown",
    accept_subtypes=("orderly-shutdown", "healthy"),
)

FAULTS = (
    Fault(
        "healthy",
        T("no fault: serve, then stop", "没有故障：正常服务后停止"),
        STOPPED,
        fate="lives",
        bound_s=6,
    ),
    Fault(
        "stop-sigterm",
        T("SIGTERM to the server with requests in flight", "有请求在处理时对服务器发 SIGTERM"),
        STOPPED,
        signal=Signal("api", "SIGTERM"),
        fate="stopped",
        ci=True,
    ),
    Fault(
        "stop-drain",
        T("SIGTERM with --shutdown-timeout 20 (drain)", "SIGTERM 加 --shutdown-timeout 20（排空）"),
        STOPPED,
        signal=Signal("api", "SIGTERM"),
        start=Start(args=("--shutdown-timeout", "20")),
        fate="stopped",
        engines=("vllm",),
    ),
    Fault(
        "stop-ctrl-c",
        T("Ctrl-C in the terminal", "终端里按 Ctrl-C"),
        STOPPED,
        signal=Signal("api", "SIGINT", group=True),
        fate="stopped",
        bound_s=30,
    ),
    Fault(
        "start-ctrl-c",
        T("Ctrl-C while the model loads", "加载模型时按 Ctrl-C"),
        Expect(
            "not-a-crash",
            "clean-shutdown",
            "startup-load",
            accept_subtypes=STOPPED.accept_subtypes,
        ),
        when="start-up",
        signal=Signal("api", "SIGINT", group=True),
        after_log="Starting to load model",
        fate="stopped",
        engines=("vllm",),
        bound_s=40,
    ),
    Fault(
        "start-sigterm",
        T(
            "SIGTERM while the model loads (vLLM 0.32 may then hang, without a word)",
            "加载模型时收到 SIGTERM（vLLM 0.32 可能就此静默挂住）",
        ),
        Expect(
            "not-a-crash",
            "healthy",
            # Where the start hangs after the signal, the log ends in the middle of it: no death either.
            accept=("insufficient-log",),
            accept_subtypes=("clean-shutdown", "orderly-shutdown", "slow-load"),
        ),
        when="start-up",
        signal=Signal("api", "SIGTERM"),
        after_log="Initializing a V1 LLM engine",
        fate="stopped",
        engines=("vllm",),
        bound_s=25,
    ),
)
