"""The log can't carry a verdict: the excerpt starts after the cause, or it just stops. Say so and name what is missing.

When it applies is the ranking's decision (only consequences are left, or no end at all). This file says what the reader
is told and asked for.
"""

from __future__ import annotations

from lifesign.causes.model import Cause, Subtype
from lifesign.remedies import library as lib
from lifesign.remedies.model import Remedy
from lifesign.text import T

LINES_ABOVE = Remedy(
    slug="collect-lines-above",
    kind="collect",
    title=T("the lines above this excerpt", "这段日志之前的部分"),
    why=T(
        "Every line here is a consequence. The cause is the first line with ERROR and EngineCore or Worker; keep both streams of the whole run.",
        "这里每一行都是后果。原因是第一条带 ERROR 且来自 EngineCore 或 Worker 的行；请保留整次运行的两个输出流。",
    ),
    command='vllm serve ... 2>&1 | tee vllm_full.log; grep -nE "ERROR.*(EngineCore|Worker)|(EngineCore|Worker).*ERROR|Traceback" vllm_full.log | head',
)
ENGINE_LOG = Remedy(
    slug="collect-engine-log",
    kind="collect",
    title=T("the engine's own log", "引擎自己的日志"),
    why=T(
        "This text seems to come from another program, or holds nothing of the engine's. Give what `vllm serve` itself prints, with both streams and from its start.",
        "这段文字像是别的程序的，或者没有引擎的内容。请提供 `vllm serve` 自己的输出，两个输出流都要，从启动开始。",
    ),
    command="vllm serve ... 2>&1 | tee vllm_full.log",
)
OTHER_STREAM = Remedy(
    slug="collect-container-log",
    kind="collect",
    title=T("the log of the container that died, not of the new one", "死掉的那个容器的日志，而不是新起的"),
    why=T(
        "After a restart the platform shows the new run; the dead one's log is kept under 'previous'.",
        "重启之后平台显示的是新的一次；死掉那次的日志要用 previous 取。",
    ),
    command="kubectl logs POD --previous --timestamps > previous.log; docker logs --timestamps NAME > all.log 2>&1; journalctl -u SERVICE -b > unit.log",
)
STILL_RUNNING = Remedy(
    slug="collect-still-running",
    kind="collect",
    title=T("is anything left running?", "还有进程在跑吗？"),
    why=T(
        "A log that just stops: the top process was killed, the machine went down, or it hangs. Left-over EngineCore or Worker processes mean the first.",
        "日志戛然而止：顶层进程被杀、机器掉电，或者卡住了。如果还留着 EngineCore、Worker 进程，就是第一种。",
    ),
    command="ps -eo pid,ppid,stat,lstart,cmd | grep -E 'VLLM|vllm serve'; lifesign reap",
)

SUBTYPES = {
    "tail-only": Subtype(
        T("The log starts after the cause", "日志从原因之后才开始"),
        T(
            "What is here only reports a death that happened before: {seen}. The process that failed isn't in this excerpt.",
            "这里只是在转述之前发生的死亡：{seen}。出错的那个进程不在这段日志里。",
        ),
        (LINES_ABOVE, lib.COLLECT_ALL_RANKS, lib.COLLECT_KERNEL_LOG, OTHER_STREAM, lib.COLLECT_DEBUG),
    ),
    "stops-without-trace": Subtype(
        T("The log just stops", "日志戛然而止"),
        T(
            "There is no error, no stop signal and no report of a death: the last line is an ordinary one.",
            "没有报错、没有停止信号，也没有死亡的记录：最后一行只是普通的一行。",
        ),
        (STILL_RUNNING, lib.COLLECT_EXIT_CODE, lib.COLLECT_KERNEL_LOG, lib.PY_SPY_STACKS, OTHER_STREAM),
    ),
    "empty": Subtype(
        T("No engine speaks in this log", "这份日志里没有引擎的内容"),
        T(
            "No line of vLLM or SGLang was recognised.",
            "没有认出任何 vLLM 或 SGLang 的日志行。",
        ),
        (ENGINE_LOG, OTHER_STREAM),
    ),
}

CAUSE = Cause(
    slug="insufficient-log",
    code="C10",
    title=T("The log can't say", "这份日志说明不了"),
    summary=T("The line with the cause isn't in this text.", "原因那一行不在这段文字里。"),
    subtypes=SUBTYPES,
    order=24,
)
