"""How processes are started, told to stop and watched: fork after CUDA, spawn without a guard, signals, probes.

A stop that was asked for is no crash (`not-a-crash`). What belongs here is the stop that nobody in the log asked for:
the engine core alone was signalled while its API server lived on, or a probe killed a server that was still loading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lifesign.causes._reading import cite
from lifesign.causes.model import DECISIVE, SYMPTOM, Cause, Evidence, Finding, Signature, Subtype
from lifesign.facts.model import Event, Life, Phase
from lifesign.remedies import library as lib
from lifesign.remedies.model import Remedy
from lifesign.text import T

_CORE_SIGNAL = ("EngineCore: trigger received signal", "EngineCore received signal", "EngineCore exiting due to SIG")
_ASKED = (
    "[shutdown] API server: shutdown triggered",
    "[shutdown] MPClient: start",
    "DPSupervisor received",
    "Shutting down FastAPI HTTP server",
    "Received SIGINT",
    "KeyboardInterrupt",
    "^C",
)
_SENT = "send sigterm to process EngineCore"
_EARLIER_DEATH = ("died unexpectedly", "exited unexpectedly", "EngineCore encountered a fatal error", "EngineDeadError")
_PROBES = (
    "Liveness probe failed",
    "Startup probe failed",
    "failed startup probe, will be restarted",
    "failed liveness probe, will be restarted",
)

UPGRADE_MONITOR = Remedy(
    slug="upgrade-liveness-monitor",
    kind="upgrade",
    title=T("a release or patch with the corrected liveness monitor", "使用修正了存活监视器的版本或补丁"),
    why=T(
        "The monitor took a living engine core for dead and sent SIGTERM itself (vllm#54184): a defect, not the load. 0.32.0 still has it; the proposed fix is vllm#54204, so look whether your next release contains it, and restart automatically until then.",
        "监视器把活着的 core 当成死的，自己发了 SIGTERM（vllm#54184）：这是缺陷，与负载无关。0.32.0 仍有这个问题；修复提案是 vllm#54204，升级前先确认新版本是否包含它，在此之前靠自动重启兜底。",
    ),
    source="vllm#54184, vllm#54204 (open in September 2026); source of 0.32.0",
)
GUARD_OWNS = Remedy(
    slug="detach-from-session",
    kind="check",
    title=T("keep the engine out of a login session", "不要让引擎挂在登录会话下面"),
    why=T(
        "Rootless containers and user services are stopped when the last login session of that user ends, unless lingering is on.",
        "无 root 容器和用户级服务会在该用户最后一个登录会话结束时被停掉，除非打开 linger。",
    ),
    command="loginctl show-user $USER --property=Linger; sudo loginctl enable-linger $USER",
    source="vllm#50067",
)

WHO_KILLED_GUARD = Remedy(
    slug="who-killed-the-guard",
    kind="check",
    title=T("find out what killed the guard", "查出是什么杀死了 guard"),
    why=T(
        "Mostly the kernel for want of memory (the guard shares the container's limit with its engine), or somebody's kill -9. The engine that was found alone is in the incidents.",
        "多半是内核因内存不足（guard 和引擎共用容器的内存上限），或有人 kill -9。被单独留下的引擎记在事故列表里。",
    ),
    command="dmesg -T | grep -iE 'oom|killed process' | tail; lifesign incidents",
)
OWN_PROCESS = Remedy(
    slug="own-engine-process",
    kind="check",
    title=T("start the engine from a plain process", "在普通（非 daemon）进程里启动引擎"),
    why=T(
        "Pool workers, celery prefork and Process(daemon=True) may not start children: use daemon=False, `celery --pool=solo`, or a vLLM server of its own.",
        "进程池 worker、celery prefork、Process(daemon=True) 都不许再开子进程：改用 daemon=False、`celery --pool=solo`，或单独跑一个 vLLM 服务。",
    ),
    command='grep -nE "daemon *= *True|multiprocessing.Pool|celery" your_script.py',
    source="vllm#18308, vllm#3724",
)
MAIN_THREAD = Remedy(
    slug="engine-in-main-thread",
    kind="check",
    title=T("create the engine in the main thread", "在主线程里创建引擎"),
    why=T(
        "Python allows signal handlers only in the main thread; these releases set one when the engine is created. Create it there, or take a later release.",
        "Python 只允许在主线程里设信号处理函数，而这些版本创建引擎时要设一个。在主线程创建，或换更新的版本。",
    ),
    source="vllm#14008, vllm#12690",
)

SUBTYPES = {
    "fork-cuda-init": Subtype(
        T("CUDA was used before the workers were forked", "在 fork 出 worker 之前就用了 CUDA"),
        T(
            "The parent process had touched CUDA (torch.cuda call, another library) and then forked: a forked child can't use CUDA.",
            "父进程已经碰过 CUDA（torch.cuda 调用或别的库），之后又 fork：fork 出来的子进程不能再用 CUDA。",
        ),
        (
            lib.SPAWN_METHOD,
            lib.MAIN_GUARD,
            Remedy(
                slug="no-early-cuda",
                kind="check",
                title=T("no CUDA call before the engine is created", "创建引擎之前不要碰 CUDA"),
                why=T(
                    "torch.cuda.is_available(), set_device or another model in the same process are enough.",
                    "torch.cuda.is_available()、set_device、同进程里的另一个模型，都算。",
                ),
                command='grep -nE "torch\\.cuda|\\.cuda\\(|\\.to\\(.cuda" your_script.py',
            ),
        ),
    ),
    "spawn-no-main-guard": Subtype(
        T(
            "The script has no main guard, so spawned workers run it again",
            "脚本没有 main 保护，spawn 出的 worker 又把它跑了一遍",
        ),
        T(
            "Spawned workers import the main script. Without `if __name__ == '__main__':` they start an engine of their own, which Python forbids.",
            "spawn 出来的 worker 会导入主脚本。没有 `if __name__ == '__main__':`，它们又会各自启动引擎，Python 不允许这样。",
        ),
        (lib.MAIN_GUARD,),
    ),
    "daemon-parent": Subtype(
        T("The engine was started inside a daemonic process", "引擎被放在 daemon 进程里启动"),
        T(
            "vLLM starts processes of its own, and Python refuses that to a daemonic process (a pool worker, celery, Process(daemon=True)).",
            "vLLM 要自己启动子进程，而 Python 不允许 daemon 进程（进程池 worker、celery、Process(daemon=True)）再开子进程。",
        ),
        (OWN_PROCESS, lib.UPGRADE_VLLM),
        ("vllm#18308", "vllm#3724"),
    ),
    "not-main-thread": Subtype(
        T("The engine was created outside the main thread", "引擎不是在主线程里创建的"),
        T(
            "Creating the engine sets a signal handler, and Python allows that in the main thread only.",
            "创建引擎时要设信号处理函数，而 Python 只允许主线程这样做。",
        ),
        (MAIN_THREAD, lib.UPGRADE_VLLM),
        ("vllm#14008", "vllm#13806", "vllm#12690"),
    ),
    "external-sigterm": Subtype(
        T("Somebody outside told the engine to stop", "引擎收到了来自外部的停止信号"),
        T(
            "{who} received {signal} from outside and shut down in order; EngineDeadError and 'exited unexpectedly' after it only report that. Look for the sender: supervisor, probe, session end, a person.",
            "{who_zh} 收到外部发来的 {signal} 后有序退出；之后的 EngineDeadError、“exited unexpectedly” 只是转述。去找信号是谁发的：守护程序、探针、会话结束，还是人。",
        ),
        (lib.FIND_SIGNAL_SENDER, lib.PROBE_PATIENCE, GUARD_OWNS),
        ("vllm#50067", "vllm#17386", "vllm#18163"),
    ),
    "false-liveness": Subtype(
        T("vLLM's own monitor took a living engine core for dead", "vLLM 自己的监视器误把活着的引擎 core 当成死的"),
        T(
            "The API server sent SIGTERM to the engine core although nothing had failed and nobody had asked for a stop; the core was working.",
            "没有任何报错，也没人要求停止，API server 却主动给引擎 core 发了 SIGTERM；core 当时在正常工作。",
        ),
        (UPGRADE_MONITOR, lib.SUPERVISE, lib.COLLECT_DEBUG),
        ("vllm#54184", "vllm#54204"),
    ),
    "guard-killed": Subtype(
        T("The guard was killed, the engine was left alone", "guard 被杀死，引擎成了孤儿"),
        T(
            "The next guard found an engine that nobody looked after, and ended it: its log and its exits would have been lost. The engine itself may have been well.",
            "下一个 guard 发现一个没人看护的引擎，就把它结束了：否则它的日志和退出状态都无人记录。引擎本身可能没有问题。",
        ),
        (WHO_KILLED_GUARD,),
    ),
}


_PROBE_DID_IT = T(
    "The kubelet stopped the engine because its probe failed. While a model loads, /health doesn't answer yet: the probe must allow for the slowest load; while it serves, for the slowest answer.",
    "探针失败，kubelet 把引擎停掉了。加载模型期间 /health 还不会应答：探针要等得起最慢的一次加载；服务期间要等得起最慢的一次应答。",
)


def _fill(finding: Finding, life: Life) -> Finding | None:
    """Names the process and the signal; cites the sentence of Python's multi-line bootstrap error."""
    text = finding.event.text[:4000]
    signal = re.search(r"SIG[A-Z]{3,5}", text)
    finding.values.setdefault("signal", signal[0] if signal else "SIGTERM")
    finding.values["who"] = finding.event.process.name or "The server"
    finding.values["who_zh"] = finding.event.process.name or "服务"
    probe = life.mentions(*_PROBES) if finding.subtype == "external-sigterm" else None
    if probe is not None:
        finding.remedies = (lib.PROBE_PATIENCE, lib.FASTER_STORAGE)
        finding.why = _PROBE_DID_IT
        if probe is not finding.event:
            finding.evidence.append(
                Evidence(probe, "confirmation", T("the kubelet says who sent the signal", "kubelet 说明了信号是谁发的"))
            )
    if finding.subtype == "spawn-no-main-guard":
        return cite(finding, "An attempt has been made to start a new process")
    return finding


def _asked_before(event: Event, life: Life) -> bool:
    """Whether a stop of the whole server stands before `event`, or a death that explains the signal."""
    return life.before(event, *_ASKED) is not None or life.before(event, *_EARLIER_DEATH) is not None


def _server_stopped_too(event: Event, life: Life) -> bool:
    """Whether the API server began to shut down before anything failed: then the signal went to all processes."""
    for other in life.events[event.index + 1 :]:
        if other.kind in ("exception", "wrapper", "death"):
            return False
        if other.name in ("uvicorn-shutdown", "uvicorn-done"):
            return True
    return False


def _signals(life: Life) -> Iterable[Finding]:
    """The first signal to the engine core that nobody in this log asked for."""
    event = next((e for e in life.events if e.has(*_CORE_SIGNAL) and e.weight not in ("quoted", "foreign")), None)
    if event is None or "SIGINT" in event.text:
        return  # SIGINT is Ctrl-C: a terminal sends it to every process of the group
    sent = life.before(event, _SENT)
    if sent is not None and not _asked_before(sent, life):
        finding = Finding("process-lifecycle", "false-liveness", sent, certainty="supported", strength=DECISIVE)
        finding.evidence.append(
            Evidence(event, "confirmation", T("the core obeyed at once: it was alive", "core 立刻响应：它还活着"))
        )
        yield finding
        return
    if sent is None and not _asked_before(event, life) and not _server_stopped_too(event, life):
        yield Finding("process-lifecycle", "external-sigterm", event, certainty="established", strength=DECISIVE)


def _still_loading(event: Event, life: Life) -> bool:
    return event.phase is not Phase.SERVING and not life.served and not _failed_before(event, life)


_START_FRAMES = (
    ":load_model",
    ":init_device",
    ":determine_available_memory",
    ":initialize_from_config",
    ":compile_or_warm_up_model",
)


def _failed_before(event: Event, life: Life) -> bool:
    """Whether the start had failed already: a server can wait for hours for a worker that a traceback ended."""
    return any(
        other.kind == "exception"
        and other.process.role in ("core", "worker")
        and other.weight not in ("advice", "quoted", "foreign", "teardown")
        and other.exc is not None
        and other.exc.passes(*_START_FRAMES)
        for other in life.events[: event.index]
    )


def _probe_killed(event: Event, life: Life) -> bool:
    """A failed probe is a consequence as often as a cause; only the kubelet's own "Killing" makes it one.

    While the engine is loading, or when it was stopped while it served: the restart is what ended it.
    """
    killed = life.mentions("will be restarted", "Killing container", "Killing   ") is not None
    failed = not life.served and _failed_before(event, life)
    return killed and not failed and (_still_loading(event, life) or "will be restarted" in event.text)


CAUSE = Cause(
    slug="process-lifecycle",
    code="C7",
    title=T("Process start, signals and probes", "进程启动、信号与探针"),
    summary=T(
        "A process was started in a way that can't work, or told to stop by somebody outside.",
        "进程的启动方式不对，或被外部叫停。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature(
            "fork-cuda-init",
            any=(
                "Cannot re-initialize CUDA in forked subprocess",
                "Cannot re-initialize XPU in forked",
                "Cannot re-initialize NPU in forked",
            ),
        ),
        Signature("daemon-parent", any=("daemonic processes are not allowed to have children",)),
        Signature("not-main-thread", any=("signal only works in main thread",)),
        Signature("spawn-no-main-guard", any=("An attempt has been made to start a new process before the",)),
        Signature(
            "external-sigterm",
            any=_PROBES,
            kinds=("kernel", "plain", "log"),
            when=_probe_killed,
            certainty="supported",
        ),
        Signature(
            "external-sigterm",
            any=("KeyboardInterrupt: terminated", "SystemExit: 143", "Received signal 15"),
            kinds=("exception", "log", "plain", "signal", "death"),
            when=_still_loading,
            strength=SYMPTOM,
            certainty="supported",
        ),
        Signature(
            "external-sigterm",
            any=("WorkerProc was terminated",),
            kinds=("log", "signal", "death"),
            role="context",
            certainty="possible",
        ),
    ),
    refine=_fill,
    find=_signals,
    order=16,
)
