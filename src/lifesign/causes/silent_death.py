"""Deaths without a trace: a process of the engine ended and no line says why.

The honest answer is to say exactly that and to name what to collect. Everything here is TRACE (any real error beats
it), except a native crash: a segfault banner is decisive about what happened, though not about why.
"""

from __future__ import annotations

import re
from signal import Signals

from lifesign.causes._reading import explain
from lifesign.causes.model import DECISIVE, SYMPTOM, TRACE, Cause, Finding, Signature, Subtype
from lifesign.facts.events import C_ASSERTION
from lifesign.facts.exit_status import ended_by_signal, in_words, outside_status
from lifesign.facts.model import Event, Life
from lifesign.remedies import library as lib
from lifesign.remedies.model import Remedy
from lifesign.text import T

SIGNALS = {
    "-1": "SIGHUP",
    "-2": "SIGINT",
    "-3": "SIGQUIT",
    "-4": "SIGILL",
    "-6": "SIGABRT",
    "-7": "SIGBUS",
    "-8": "SIGFPE",
    "-9": "SIGKILL",
    "-11": "SIGSEGV",
    "-15": "SIGTERM",
    "132": "SIGILL",
    "134": "SIGABRT",
    "135": "SIGBUS",
    "136": "SIGFPE",
    "137": "SIGKILL",
    "139": "SIGSEGV",
    "143": "SIGTERM",
}
"""What an exit status means: negative in Python, 128 + number in a shell or container."""

_WORKER = ("Worker proc ", "RayWorkerProc rank=", "Worker ", "VllmWorkerProcess")
_CORE = (
    "engine core exited unexpectedly",
    "Engine core proc ",
    "Engine core process ",
    "Engine process (pid ",
    "Failed core proc(s): {'",
    'Failed core proc(s): {"',
)

SIGNAL_SENDER = Remedy(
    slug="who-sent-it",
    kind="check",
    title=T("who sent the signal?", "信号是谁发的？"),
    why=T(
        "Look for a supervisor, a probe, a clean-up script or a person at that minute; auditd names the sender next time.",
        "查那一分钟有没有守护程序、探针、清理脚本或人在操作；下次可用 auditd 记录发送者。",
    ),
    command="sudo auditctl -a exit,always -F arch=b64 -S kill -S tgkill -k who_kills; sudo ausearch -k who_kills -i | tail",
)
READ_STACK = Remedy(
    slug="read-native-stack",
    kind="check",
    title=T("read the first frames that aren't libc or Python", "看第一个不属于 libc、Python 的栈帧"),
    why=T(
        "They name the library that crashed; update or switch off that part first.",
        "它指出崩在哪个库；先升级或关掉那一部分。",
    ),
    command='grep -n -A25 "Segfault encountered\\|SIGSEGV\\|Fatal Python error" vllm.log',
)
PRELOADS = Remedy(
    slug="preloaded-libraries",
    kind="check",
    title=T("no foreign libraries in the process", "进程里不要混进外来库"),
    why=T(
        "A preloaded vGPU shim (libvgpu.so) or a second copy of a CUDA library in LD_PRELOAD or LD_LIBRARY_PATH is a common reason for a segfault in a library that works elsewhere.",
        "LD_PRELOAD 或 LD_LIBRARY_PATH 里的 vGPU 垫片（libvgpu.so）或另一份 CUDA 库，常让别处好好的库在这里段错误。",
    ),
    command="env | grep -E 'LD_PRELOAD|LD_LIBRARY_PATH'; cat /etc/ld.so.preload",
)

_LOST = ("Connection closed by peer", "Connection reset by peer", "Socket closed", "Broken pipe")
_COLLECT = (lib.COLLECT_KERNEL_LOG, lib.COLLECT_EXIT_CODE, lib.COLLECT_CORE_DUMP, lib.SUPERVISE, lib.COLLECT_DEBUG)

SUBTYPES = {
    "worker-died-no-trace": Subtype(
        T("A worker process died and left no trace", "一个 worker 进程死了，没有留下任何痕迹"),
        T(
            "{who} ended ({status}) and nothing in the log says why. The errors after this line only report it. Killed from outside (kernel for memory, a person, an orchestrator) and crashed in native code look the same here.",
            "{who_zh} 结束了（{status}），日志里没有任何原因；这一行之后的报错都只是转述。被外部杀死（内核因内存、人、编排系统）和在原生代码里崩溃，在这里看起来一模一样。",
        ),
        _COLLECT,
        ("vllm#38641",),
    ),
    "core-died-no-trace": Subtype(
        T("The engine core process died and left no trace", "引擎 core 进程死了，没有留下任何痕迹"),
        T(
            "The front end noticed that the engine core was gone ({status}). The core itself wrote no error, so the log can't say why.",
            "前端发现引擎 core 不在了（{status}）。core 自己没有写下任何错误，单凭日志说不出原因。",
        ),
        _COLLECT,
        ("vllm#38641",),
    ),
    "segfault-native": Subtype(
        T("A process crashed in native code (segfault)", "进程在原生代码里崩溃（段错误）"),
        T(
            "The process got {status} and printed its native stack. {library} A signal sent by somebody else looks the same, with arbitrary frames.",
            "进程收到 {status} 并打印了原生栈，{library_zh}别人发来的信号也会这样打印，那时栈帧没有意义。",
        ),
        (READ_STACK, PRELOADS, lib.COLLECT_CORE_DUMP, lib.COLLECT_KERNEL_LOG),
    ),
    "ray-actor-died": Subtype(
        T("A Ray actor's process died and left no trace", "Ray actor 的进程死了，没有留下痕迹"),
        T(
            "Ray saw the connection to the actor's process close. Its text lists guesses; only the worker's own files or the kernel log can say which holds.",
            "Ray 只看到和 actor 进程的连接断了。它列的都是猜测，要看 worker 自己的日志或内核日志才知道是哪一条。",
        ),
        (lib.COLLECT_RAY_LOGS, lib.COLLECT_KERNEL_LOG, lib.COLLECT_EXIT_CODE, lib.COLLECT_CORE_DUMP),
    ),
    "signal": Subtype(
        T("A process was ended by a signal", "进程被信号结束"),
        T(
            "The process ended with {status}. Nothing in the log says who sent it.",
            "进程以 {status} 结束，日志里看不出是谁发的。",
        ),
        (SIGNAL_SENDER, lib.COLLECT_KERNEL_LOG, lib.COLLECT_EXIT_CODE, lib.COLLECT_CORE_DUMP),
    ),
}

_NATIVE = (
    "Segfault encountered",
    "*** SIGSEGV",
    "*** SIGFPE",
    "Fatal Python error: Segmentation fault",
    "Segmentation fault (core dumped)",
    "Segmentation fault      (core dumped)",
    "SIGSEGV (@",
    "Fatal Python error: Floating point exception",
    "Caught signal 8 (",
    "Floating point exception(core dumped)",
    "Floating point exception (core dumped)",
)
_ABORTS = (
    "Fatal Python error: Aborted",
    "double free or corruption",
    "free(): invalid",
    "malloc(): ",
    "corrupted size vs. prev_size",
    "munmap_chunk(): invalid",
    "Caught signal 11 (Segmentation fault",
    "Fatal Python error: Bus error",
    "*** SIGBUS",
    "Bus error (core dumped)",
    "*** SIGABRT",
    "terminate called",
    "stack smashing detected",
)
_ENDED = r"(?i)exit(?:ed)?(?: with)?(?: exit)? (?:code|status):? {{0,8}}{}\b"
"""How a shell, a container runtime or a hosting service tells an exit status; to be filled with the statuses."""


def status_of(text: str) -> str:
    """The exit status that a death line prints, in words: `exit code -9 = SIGKILL`; `no exit code printed` if none."""
    cut = text[:4000]
    outside = outside_status(cut)
    if outside is not None and outside < 0:
        return in_words(outside)
    match = (
        re.search(r"(?i)exit(?:ed)?(?: with)?(?: exit)? (?:code|status)[:= ]{1,9}(-?\d{1,3}|None)", cut)
        or re.search(r"'[\w-]{1,60}': (-?\d{1,3})", cut)
        or re.search(r"\(code=(-?\d{1,3})\)", cut)
    )
    if match is None:
        return "no exit code printed"
    code = match[1]
    name = SIGNALS.get(code)
    if code == "None":
        return "exit code not yet known"
    return f"exit code {code} = {name}" if name else f"exit code {code}"


def _library(event: Event, life: Life) -> str:
    """The first library or function family that a native stack names below the banner, in plain words."""
    near = [event, *life.events[event.index + 1 : event.index + 40]]
    text = "\n".join(e.text[:4000] for e in near if e.kind in ("native", "plain", "kernel"))
    if event.exc is not None:
        text += "\n".join(f"{frame.file} in {frame.func}" for frame in event.exc.frames[:40])
    match = re.search(r"\b(nccl[A-Z]\w{2,60})", text)
    if match:
        return f"NCCL ({match[1]})"
    match = re.search(r"\b(lib(?!c\.so|pthread|python|c-)[\w.+-]{2,40}\.so)", text) or re.search(
        r" in (lib[\w.+-]{2,40}\.so)", text
    )
    if match:
        return match[1]
    match = re.search(r"\b(vllm|flash_attn|flashinfer|deep_gemm|at::native|c10::|torch::)\w{0,40}", text)
    return match[0] if match else "not named"


def _fill(finding: Finding, life: Life) -> Finding | None:
    """Adds who died, with which status, and the crashed library; an NCCL stack brings NCCL's remedies with it."""
    text = finding.event.text
    finding.values.setdefault("status", status_of(text))
    who = re.search(r"(?:Worker proc|RayWorkerProc|Worker) ([\w=./\[\]-]{1,60})", text[:4000])
    finding.values["who"] = who[1].rstrip(",") if who else "A worker"
    finding.values["who_zh"] = who[1].rstrip(",") if who else "某个 worker"
    if finding.subtype == "worker-died-no-trace" and _was_asked(finding, life):
        finding.remedies = (lib.FIND_SIGNAL_SENDER, *_COLLECT)
        explain(
            finding,
            SUBTYPES["worker-died-no-trace"].why.fill(**finding.values),
            T(
                "It ended in order, as after a SIGTERM: somebody asked this one process to stop.",
                "它是正常退出的，像是收到了 SIGTERM：有人单独让这个进程停下。",
            ),
        )
    if finding.subtype == "worker-died-no-trace" and _only_lost_connections(finding.event, life):
        finding.strength = SYMPTOM
    if finding.subtype == "segfault-native" and _after_python_error(finding.event, life):
        finding.strength, finding.certainty = TRACE, "possible"
    if finding.subtype == "segfault-native" and outside_status(text[:4000]) == -_SEGV and finding.strength == TRACE:
        finding.why = _ONLY_THE_STATUS.fill(status=in_words(-_SEGV))
        finding.values["why_is_whole"] = "yes"
        finding.remedies = (lib.COLLECT_CORE_DUMP, lib.COLLECT_KERNEL_LOG, PRELOADS)
    elif finding.subtype == "segfault-native":
        library = _library(finding.event, life)
        known = library != "not named"
        finding.values["library"] = f"Its topmost library is {library}." if known else "It names no library."
        finding.values["library_zh"] = f"最上面的库是 {library}。" if known else "其中看不出是哪个库。"
        signal = re.search(r"SIG[A-Z]{3,5}", text[:4000])
        caught = re.search(r"Caught signal (4|6|7|8|11)\b", text[:4000])
        finding.values["status"] = (
            signal[0]
            if signal
            else Signals(int(caught[1])).name
            if caught
            else "SIGABRT"
            if finding.event.has(*_ABORTS[:6], *_ABORTS[-2:]) or C_ASSERTION.search(text[:4000])
            else "SIGSEGV"
        )
        if library.startswith("NCCL"):
            finding.certainty = "supported"
            finding.remedies = (READ_STACK, PRELOADS, lib.NCCL_CUMEM_OFF, lib.COLLECT_CORE_DUMP, lib.COLLECT_KERNEL_LOG)
    return finding


def _was_asked(finding: Finding, life: Life) -> bool:
    """Whether the worker left with status 0 or said that it was terminated: a SIGTERM to it alone."""
    if finding.values.get("status", "").startswith("exit code 0"):
        return True
    return life.before(finding.event, "WorkerProc was terminated", within=40) is not None


def _only_lost_connections(event: Event, life: Life) -> bool:
    """Whether the errors after a worker's death only tell that the connection to it broke, and none stands before it."""
    if _after_python_error(event, life):
        return False
    return (
        life.after(event, "gloo/transport", within=80) is not None and life.after(event, *_LOST, within=80) is not None
    )


def _after_python_error(event: Event, life: Life) -> bool:
    """Whether an error had ended a process before the crash: then the crash belongs to the clean-up."""
    return any(
        other.kind == "wrapper" or (other.kind == "exception" and other.weight == "fatal")
        for other in life.events[: event.index]
    )


def _whole_start(event: Event, life: Life) -> bool:
    """Whether the log holds the engine's start and the workers' lines, so that a missing traceback means something."""
    if not life.version:
        return False
    return any(e.process.role == "worker" for e in life.events[: event.index]) or life.world_size == 1


def _process_really_died(event: Event, _life: Life) -> bool:
    """Ray's text for a lost process, not the one that wraps an error of the actor's own code."""
    return "error raised in its creation task" not in event.text


def _by_a_signal(event: Event, _life: Life) -> bool:
    """Whether this line is the exit status of a process that a signal ended; a segfault's status is a cause of its own."""
    return ended_by_signal(event.text[:4000]) and outside_status(event.text[:4000]) != -_SEGV


def _by_a_segfault(event: Event, _life: Life) -> bool:
    """Whether this line is the exit status of a process that crashed in native code."""
    return outside_status(event.text[:4000]) == -_SEGV


_SEGV = 11
_ONLY_THE_STATUS = T(
    "The process ended with {status}: it crashed in native code. Its log holds no stack, so nothing tells which library.",
    "进程以 {status} 结束：它崩在原生代码里。日志里没有栈，看不出是哪个库。",
)


def _killed_by_signal(event: Event, _life: Life) -> bool:
    return re.search(r"': -\d", event.text[:4000]) is not None


_ORPHAN = "Parent process exited, terminating worker queues"
_BEGAN = "Initializing a V1 LLM engine"
_ERRORS = ("exception", "wrapper", "death", "native")


def _core_vanished(event: Event, life: Life) -> bool:
    """Whether the core, whose lines the log has, was gone without an error, and a worker saw that it was.

    A core that fails writes its own traceback before it leaves; `Failed core proc(s)` is often empty even then.
    """
    if any(other.kind in _ERRORS for other in life.events[: event.index]):
        return False
    if any(other.kind in _ERRORS and other.process.role == "core" for other in life.events[event.index + 1 :]):
        return False
    began = any(other.process.role == "core" for other in life.events) or life.mentions(_BEGAN) is not None
    return began and (
        life.mentions(_ORPHAN) is not None or any(_lost_its_parent(e) for e in life.events[event.index :])
    )


def _lost_its_parent(event: Event) -> bool:
    """A worker that could not report to the core: the other end of its pipe was gone."""
    exc = event.exc
    return exc is not None and exc.short_type == "BrokenPipeError" and event.process.role == "worker"


CAUSE = Cause(
    slug="silent-death",
    code="C6",
    title=T("Died without a trace", "无痕死亡"),
    summary=T(
        "A process of the engine is gone and no line says why; collect the exit status, the kernel log, a core dump.",
        "引擎的某个进程没了，日志里没有原因；要去收集退出状态、内核日志、core dump。",
    ),
    subtypes=SUBTYPES,
    signatures=(
        Signature("segfault-native", any=_NATIVE, kinds=("native", "plain", "log"), strength=DECISIVE),
        Signature(
            "segfault-native",
            any=("segfault at ", "general protection fault"),
            none=("invalid opcode",),
            regex=r"(?i)vllm|python|pt_main|ray::|sglang|worker|engine",
            kinds=("kernel", "plain"),
            strength=DECISIVE,
            certainty="supported",
        ),
        Signature(
            "segfault-native", any=_ABORTS, kinds=("native", "plain", "log"), strength=SYMPTOM, certainty="supported"
        ),
        Signature(
            "segfault-native",
            any=(": Assertion `",),
            regex=C_ASSERTION.pattern,
            kinds=("native",),
            strength=SYMPTOM,
            certainty="supported",
        ),
        Signature(
            "worker-died-no-trace",
            any=_WORKER,
            regex=r"(?:Worker proc|RayWorkerProc|Worker) [\w=./\[\]-]{1,60}(?: pid \d{1,9})? died",
            kinds=("death", "log", "plain"),
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "worker-died-no-trace",
            any=(
                "WorkerProc initialization failed due to an exception in a background process",
                "Got fatal signal from worker processes",
            ),
            kinds=("exception", "death", "wrapper", "log"),
            strength=TRACE,
            certainty="possible",
            when=_whole_start,
        ),
        Signature(
            "core-died-no-trace",
            any=("Failed core proc(s): {",),
            kinds=("death", "exception", "log", "plain"),
            when=_killed_by_signal,
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "core-died-no-trace",
            any=("Failed core proc(s): {}",),
            kinds=("death", "exception", "log", "plain", "wrapper"),
            when=_core_vanished,
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "core-died-no-trace",
            any=_CORE[:4],
            regex=r"exited unexpectedly|died",
            kinds=("death", "exception", "log", "plain"),
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "ray-actor-died",
            any=(
                "The actor died unexpectedly before finishing this task",
                "The actor is dead because its worker process has died",
                "A worker died or was killed while executing a task by an unexpected system error",
            ),
            kinds=("death", "exception", "wrapper", "log", "plain"),
            when=_process_really_died,
            strength=TRACE,
            certainty="possible",
        ),
        Signature(
            "signal",
            regex=r"(?i)exit|killed|aborted|bus error|\b1[34]\d (?:oom=)?false|code=dumped",
            kinds=("plain", "log"),
            when=_by_a_signal,
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "signal",
            any=(
                "died with exit code -",
                "exited with exit code -",
                "terminated by signal",
                "killed by signal",
                "code=killed",
            ),
            kinds=("death", "exception", "log", "plain", "signal"),
            strength=TRACE,
            certainty="possible",
        ),
        Signature(
            "segfault-native",
            regex=r"\b(?:139|-?11)\b",
            kinds=("plain", "log"),
            when=_by_a_segfault,
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "segfault-native",
            any=("139", "code=dumped"),
            regex=_ENDED.format("139") + "|code=dumped, status=11",
            kinds=("plain", "log", "death"),
            strength=TRACE,
            certainty="supported",
        ),
        Signature(
            "signal",
            any=("132", "134", "135", "136", "137", "143"),
            regex=_ENDED.format("(?:132|134|135|136|137|143)"),
            kinds=("plain", "log", "death"),
            strength=TRACE,
            certainty="possible",
        ),
    ),
    refine=_fill,
    order=18,
)
