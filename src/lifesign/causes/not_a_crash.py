"""No death in the log, or only a stop that was asked for: an honest verdict with its own title and little advice.

When it applies is the ranking's decision (no death, an orderly end, work after the error). This file says what the
reader is told.
"""

from __future__ import annotations

from lifesign.causes._reading import explain
from lifesign.causes.model import Cause, Finding, Subtype
from lifesign.causes.request_poison import NO_MM_CACHE
from lifesign.facts.model import Life, Phase
from lifesign.remedies import library as lib
from lifesign.remedies.model import Form, Remedy
from lifesign.text import T

STILL_THERE = Remedy(
    slug="is-it-still-there",
    kind="check",
    title=T("is the service still there?", "服务还在吗？"),
    why=T(
        "SIGKILL and SIGSTOP leave no line in the log. No process left: it was killed from outside; an exit code of 137 (-9) and the kernel log tell it, and `lifesign diagnose LOG --with FILE` reads them together with the log. STAT T: it is stopped, `kill -CONT PID`.",
        "SIGKILL 和 SIGSTOP 不会在日志里留下任何一行。进程不在了，就是被外部杀掉的：看退出码是不是 137（-9），再看内核日志；把它们存成文件，用 `lifesign diagnose 日志 --with 文件` 和日志一起分析。STAT 为 T，就是被暂停了：`kill -CONT PID`。",
    ),
    command="ps -eo pid,ppid,stat,lstart,cmd | grep -E 'VLLM|vllm serve'; docker inspect -f '{{.State.ExitCode}} oom={{.State.OOMKilled}}' NAME; kubectl describe pod POD | grep -A6 'Last State'; dmesg -T | grep -iE 'oom|killed process' | tail",
)
KEEP_RUNNING = Remedy(
    slug="nothing-to-do",
    kind="check",
    title=T("if it still answers, there is nothing to repair", "如果它还在应答，就不用修"),
    why=T(
        "If requests do fail, start from the request's own error (HTTP status, body) and its minute in the log.",
        "如果确实有请求失败，请从那个请求自己的报错（HTTP 状态、响应体）和它那一分钟的日志查起。",
    ),
)
CLIENT_SIDE = Remedy(
    slug="look-at-that-request",
    kind="check",
    title=T("look at that one request", "看那一个请求"),
    why=T(
        "Only this request failed; the engine went on and answered others. Correct or refuse the request at the gateway.",
        "只有这个请求失败了，引擎继续在为别的请求服务。在网关处修正或拒绝它即可。",
    ),
)
WHO_STOPPED = Remedy(
    slug="was-it-meant",
    kind="check",
    title=T("was the stop meant?", "这次停止是有意的吗？"),
    why=T(
        "If nobody stopped it on purpose, ask the supervisor, the probe or the CI job that sent the signal.",
        "如果没人有意停它，就去问发信号的那一方：守护程序、探针或 CI 任务。",
    ),
    command="kubectl get events --sort-by=.lastTimestamp | tail; journalctl -u SERVICE --since '-1h'",
)
DRAIN = Remedy(
    slug="drain-on-stop",
    kind="flag",
    title=T("let running requests finish at a stop", "停止时让在途请求跑完"),
    why=T(
        "By default requests in flight are aborted at once, which prints EngineDeadError tracebacks that mean nothing.",
        "默认会立刻中止在途请求，因此会打印一堆没有意义的 EngineDeadError 堆栈。",
    ),
    forms=(Form("--shutdown-timeout", "30", since="0.18.0"),),
    cost=T("a stop takes up to that long", "停止最多要等这么久"),
)
CLOSE_ENGINE = Remedy(
    slug="close-the-engine",
    kind="check",
    title=T("close the engine before the script ends", "脚本结束前先关掉引擎"),
    why=T(
        "The message is printed when the script's interpreter goes down before the engine's processes; harmless, and gone in newer versions.",
        "脚本的解释器先于引擎子进程退出时就会打印这句；无害，新版本已经没有了。",
    ),
    source="vllm#28898, vllm#41507",
)

TOOL_PARSER = Remedy(
    slug="tool-parser",
    kind="check",
    title=T(
        "the tool parser failed: another release, or another --tool-call-parser",
        "出错的是工具解析器：换个版本，或换 --tool-call-parser",
    ),
    why=T(
        "What the model wrote was not what the parser expected. Parsers are mended from release to release; one that doesn't fit the model fails again and again, and a request without streaming takes another path through it.",
        "模型写出的内容不是解析器预期的格式。解析器在各版本中不断修正；与模型不匹配的解析器会反复出错；不用流式输出时走的是另一条路径。",
    ),
    command="vllm serve --help=all | grep -A3 -e --tool-call-parser",
)

OPEN_END = ("healthy", "slow-load", "request-aborted", "request-failed")
"""Subtypes of a log that just ends: no line says that the engine stopped, and none could if it was killed at that moment."""

SUBTYPES = {
    "healthy": Subtype(
        T("Work to the last line, and no death in this log", "直到最后一行都在工作，日志里没有死亡的记录"),
        T(
            "No line reports a death or a stop. That is all the log can say: if the service is gone all the same, it was most likely killed from outside: SIGKILL leaves no line.",
            "没有任何一行说到死亡或停止。日志能说明的只有这些：如果服务已经不在了，多半是被外部杀掉的：SIGKILL 不会留下日志。",
        ),
        (STILL_THERE, KEEP_RUNNING),
    ),
    "orderly-shutdown": Subtype(
        T("An orderly stop, not a crash", "正常停止，不是崩溃"),
        T(
            "The server was asked to stop and did; errors after that line come from the shutdown itself.",
            "服务被要求停止并照做了；那一行之后的报错都来自关闭过程本身。",
        ),
        (WHO_STOPPED, DRAIN),
    ),
    "clean-shutdown": Subtype(
        T("A stop that was asked for, not a crash", "按要求停止，不是崩溃"),
        T(
            "The server received a stop signal and shut down. EngineDeadError, 'force killing' and 'cannot schedule new futures' after it only report that.",
            "服务收到停止信号后关闭。之后的 EngineDeadError、force killing、cannot schedule new futures 只是在转述。",
        ),
        (WHO_STOPPED, DRAIN),
    ),
    "clean-exit-race": Subtype(
        T(
            "The script had ended; the 'died unexpectedly' line is a race at exit",
            "脚本已正常结束，died unexpectedly 是退出时的竞态",
        ),
        T(
            "The work was done and no process reported an error; the monitor only saw the engine core go first.",
            "任务已完成，没有进程报错；只是监视器先看到引擎 core 退出了。",
        ),
        (CLOSE_ENGINE, lib.UPGRADE_VLLM),
        ("vllm#28898", "vllm#41507"),
    ),
    "slow-load": Subtype(
        T("A slow but healthy start", "启动慢，但一切正常"),
        T(
            "Loading or compiling takes long, and nothing in the log failed. 'No available shared memory broadcast block' is a notice about waiting, no error.",
            "加载或编译花的时间长，日志里没有任何失败。No available shared memory broadcast block 只是提示在等待，不是错误。",
        ),
        (lib.FASTER_STORAGE, STILL_THERE, KEEP_RUNNING),
    ),
    "slow-step": Subtype(
        T("A step took long, then work went on", "有一步很慢，之后恢复正常"),
        T(
            "A process stood still or computed for long, within its limit, and answered in the end.",
            "某个进程停顿或计算了很久，但没有超过时限，最后还是回应了。",
        ),
        (KEEP_RUNNING,),
    ),
    "request-aborted": Subtype(
        T("One request ended with an error; the engine went on", "一个请求以错误结束，引擎继续运行"),
        T(
            "The ERROR lines concern one request (grammar, KV transfer). It was ended or computed again, and others were answered after it.",
            "这些 ERROR 只涉及一个请求（语法、KV 传输）：它被终止或重算了，之后别的请求都得到了回应。",
        ),
        (CLIENT_SIDE, STILL_THERE),
    ),
    "request-failed": Subtype(
        T("One request failed; the service went on", "一个请求失败，服务照常"),
        T(
            "The error was raised in the API server while it handled one request. The engine wasn't touched.",
            "异常出在 API server 处理某个请求的时候，引擎没有受影响。",
        ),
        (CLIENT_SIDE, STILL_THERE),
    ),
    "recovered": Subtype(
        T("The engine failed once and recovered", "引擎出错一次后恢复了"),
        T(
            "An error of the kind that ends an engine was reported, but work went on afterwards (fault tolerance, or a retry); look at the error itself.",
            "报过一次通常会让引擎退出的错误，但之后工作恢复了（容错机制或重试）；请看那个错误本身。",
        ),
        (CLIENT_SIDE, lib.REPORT_BUG),
    ),
}


def name_the_error(finding: Finding, life: Life) -> Finding:
    """Tells which error it was that one request met, and what to do about it where its place is known."""
    told = [event for event in life.events if event.weight not in ("quoted", "foreign", "advice", "teardown")]
    serving = [event for event in told if event.phase is Phase.SERVING]
    error = next((event for event in serving if event.exc is not None), None) or next(
        (event for event in serving if event.level == "ERROR" and event.process.role in ("core", "worker")), None
    )
    if error is None:
        return finding
    what = error.text.partition("\n")[0][:160]
    frames = error.exc.frames if error.exc is not None else []
    if any("tool_parser" in part for frame in frames for part in (frame.file, frame.func, frame.code)):
        finding.remedies = (TOOL_PARSER, CLIENT_SIDE, STILL_THERE)
    elif "Expected a cached item for" in error.text:
        finding.remedies = (NO_MM_CACHE, CLIENT_SIDE, STILL_THERE)
    note = T(f"Line {error.line} has it: {what}", f"见第 {error.line} 行：{what}")
    return explain(finding, SUBTYPES[finding.subtype].why, note)


CAUSE = Cause(
    slug="not-a-crash",
    code="C9",
    title=T("Not a crash", "不是崩溃"),
    summary=T("The log holds no death, or a stop that was meant.", "日志里没有死亡，或者是有意停止的。"),
    subtypes=SUBTYPES,
    order=23,
)
