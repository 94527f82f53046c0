"""The cause of a death, from everything that is known: the verdict of the log, and what only the guard has seen.

A log can't know that the kernel killed a worker for memory, that a process was stopped, or by which signal it ended. So
the table below is asked in order; what it finds beats a log that only saw the traces. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from lifesign.guard.restart import ECC_XIDS, HARDWARE_XIDS
from lifesign.text import T

WEAK_CAUSES = (
    "silent-death",
    "insufficient-log",
    "not-a-crash",
    "unclassified",
    "timeout-hang",
    "process-lifecycle",
    "",
)
"""Verdicts that say *that* something ended rather than why: facts from outside the log may name the reason."""
IMITATED_CAUSES = (*WEAK_CAUSES, "illegal-memory-access", "cuda-lib", "collective-comm")
"""What a device looks like in the log when it fails: here a hardware error that is only likely ours may name the reason."""
CRASH_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP")


@dataclass(frozen=True, slots=True)
class End:
    """How one process of the engine ended, in the order in which the ends were seen. `ours`: guard ended it."""

    role: str
    name: str
    pid: int
    code: int | None
    signal: str | None
    ours: bool = False

    def show(self) -> str:
        """`Worker_TP1 (pid 12) ended by SIGKILL`."""
        how = f"ended by {self.signal}" if self.signal else f"ended with code {self.code}"
        if self.code is None and self.signal is None:
            how = "ended; nobody could learn how"
        return f"{self.name} (pid {self.pid}) {how}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What guard knows of a death. `hang` is the detector's finding when it called the death, `who` whom it points at.

    orphaned: the guard before this one was killed, and the engine was found without it. oom_known: an out-of-memory
    kill would have been seen (the kernel log or the counters of the control group could be read). log_cut: a part of
    the log is not in the bundle, so that silence proves nothing. xids: errors of this engine's own devices just before
    the death; xids_unsure: those of which only one of the two is known (see `evidence.gpu_faults`).
    """

    ends: tuple[End, ...] = ()
    became_ready: bool = False
    top_code: int | None = None
    hang: str = ""
    who: tuple[str, ...] = ()
    stopped: bool = False
    oom_kill_delta: int = 0
    kernel_oom_pids: tuple[int, ...] = ()
    xids: tuple[int, ...] = ()
    xids_unsure: tuple[int, ...] = ()
    orphaned: bool = False
    oom_known: bool = True
    log_cut: bool = False

    def as_json(self) -> dict[str, Any]:
        """As JSON values, for the process that diagnoses."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def load(cls, raw: dict[str, Any]) -> Facts:
        """From JSON values. Raises msgspec.ValidationError when they are not such."""
        return msgspec.convert(raw, cls)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The cause that the decision rests on. `source` is `log` or `guard`; `proof` is a line for guard.log; `end` the
    process that it is about, where it is about one."""

    cause: str
    subtype: str
    phase: str
    certainty: str
    title: T
    why: T
    source: str
    proof: str = ""
    end: End | None = None


def rule(verdict: dict[str, Any], facts: Facts) -> Ruling:
    """Weigh the verdict of the log against what was seen from outside."""
    logged = _from_log(verdict)
    for look in (_hardware, _host_oom, _orphaned, _hang):
        found = look(logged, facts)
        if found is not None:
            return found
    if logged.cause in ("silent-death", "insufficient-log", "not-a-crash", ""):
        found = _asked(logged, facts) or _ended(logged, facts)
        if found is not None:
            return found
    if not facts.became_ready and logged.cause in ("insufficient-log", "not-a-crash", ""):
        if facts.top_code in (2, 126, 127):
            proof = f"the command ended with code {facts.top_code}"
            return _named(logged, facts, "user-config", "usage", "established", _USAGE, proof, code=facts.top_code)
        if not any(end.role in ("core", "worker") for end in facts.ends) and facts.top_code is not None:
            proof = f"the command ended with code {facts.top_code} before it was an engine"
            return _named(logged, facts, "insufficient-log", "", "possible", _AT_ONCE, proof, code=facts.top_code)
    return logged


def _from_log(verdict: dict[str, Any]) -> Ruling:
    title, why = str(verdict.get("title", "")), str(verdict.get("why", ""))
    return Ruling(
        str(verdict.get("cause", "")) or "insufficient-log",
        str(verdict.get("subtype", "")),
        str(verdict.get("phase", "")),
        str(verdict.get("certainty", "possible")),
        T(title, title),
        T(why, why),
        "log",
    )


def _named(
    logged: Ruling,
    facts: Facts,
    cause: str,
    subtype: str,
    certainty: str,
    text: tuple[T, T],
    proof: str,
    end: End | None = None,
    **values: object,
) -> Ruling:
    phase = logged.phase or ("serving" if facts.became_ready else "startup-load")
    if facts.became_ready and phase == "shutdown":
        phase = "serving"
    title, why = text[0].fill(**values), text[1].fill(**values)
    return Ruling(cause, subtype, phase, certainty, title, why, "guard", proof, end)


def _hardware(logged: Ruling, facts: Facts) -> Ruling | None:
    if logged.cause == "hardware-fault":
        return None
    for found, text, certainty in ((facts.xids, _XID, "established"), (facts.xids_unsure, _XID_UNSURE, "supported")):
        broken = sorted(HARDWARE_XIDS.intersection(found))
        if broken and (certainty == "established" or logged.cause in IMITATED_CAUSES):
            subtype = "ecc" if ECC_XIDS.intersection(broken) else "xid"
            numbers = ", ".join(map(str, broken))
            proof = f"kernel log: NVIDIA Xid {numbers}"
            return _named(logged, facts, "hardware-fault", subtype, certainty, text, proof, xids=numbers)
    return None


def _host_oom(logged: Ruling, facts: Facts) -> Ruling | None:
    if logged.cause not in WEAK_CAUSES:
        return None
    killed = [end for end in facts.ends if end.signal == "SIGKILL" and not end.ours]
    named = [end for end in facts.ends if end.pid in facts.kernel_oom_pids]
    if named:
        proof = f"kernel log: out of memory, killed {named[0].name} (pid {named[0].pid})"
        subtype = "cgroup-limit" if facts.oom_kill_delta else "kernel-oom-killer"
        return _named(logged, facts, "host-oom", subtype, "established", _OOM, proof, named[0], who=named[0].name)
    unknown = [end for end in facts.ends if end.code is None and end.signal is None and not end.ours]
    if facts.oom_kill_delta > 0 and (killed or unknown):
        who = (killed or unknown)[0]
        proof = f"control group: oom_kill grew by {facts.oom_kill_delta}; {who.show()}"
        return _named(logged, facts, "host-oom", "cgroup-limit", "established", _OOM, proof, who, who=who.name)
    return None


def _orphaned(logged: Ruling, facts: Facts) -> Ruling | None:
    if not facts.orphaned or logged.cause not in WEAK_CAUSES:
        return None
    proof = "the guard of this engine was killed; the next one found the engine without it"
    return _named(logged, facts, "process-lifecycle", "guard-killed", "established", _GUARD_KILLED, proof)


def _hang(logged: Ruling, facts: Facts) -> Ruling | None:
    if not facts.hang:
        return None
    who = ", ".join(facts.who) or "-"
    proof = f"detector: {facts.hang}; {who}"
    if facts.stopped:
        return _named(logged, facts, "timeout-hang", "stopped", "established", _STOPPED, proof, who=who)
    if logged.cause not in WEAK_CAUSES:
        return None  # the log knows why it hangs
    if not facts.became_ready:
        return _named(logged, facts, "timeout-hang", "start-stuck", "supported", _START_STUCK, proof, who=who)
    return _named(logged, facts, "timeout-hang", "stuck", "established", _STUCK, proof, who=who, finding=facts.hang)


def _asked(logged: Ruling, facts: Facts) -> Ruling | None:
    """An orderly end that guard did not ask for: the children's signals are then the server's own tidying."""
    if logged.cause != "not-a-crash" or facts.top_code != 0 or not facts.became_ready:
        return None
    proof = "the server ended in order with code 0; guard had not asked for it"
    return _named(
        logged, facts, "process-lifecycle", "external-sigterm", "supported", _TERMINATED, proof,
        who="the server", signal="a request to end",
    )  # fmt: skip


def _ended(logged: Ruling, facts: Facts) -> Ruling | None:
    """The first engine process that was ended by a signal not ours, or that ended in C with a code."""
    for end in facts.ends:
        if end.ours or end.role not in ("api", "core", "worker", "coordinator"):
            continue
        lost = {"worker": "worker-died-no-trace", "core": "core-died-no-trace"}.get(end.role, "signal")
        values: dict[str, Any] = {"who": end.name, "signal": end.signal, "code": end.code}
        if end.signal in CRASH_SIGNALS:
            subtype = "segfault-native" if end.signal == "SIGSEGV" else "signal"
            return _named(logged, facts, "silent-death", subtype, "established", _CRASHED, end.show(), end, **values)
        if end.signal in ("SIGTERM", "SIGINT", "SIGHUP"):
            kind = ("process-lifecycle", "external-sigterm")
            return _named(logged, facts, *kind, "established", _TERMINATED, end.show(), end, **values)
        if end.signal is not None:
            text = _KILLED if facts.oom_known else _KILLED_UNSURE
            certainty = "established" if facts.oom_known else "supported"
            return _named(logged, facts, "silent-death", lost, certainty, text, end.show(), end, **values)
        if end.role in ("core", "worker") and end.code not in (0, None) and logged.cause != "silent-death":
            text, certainty = (_LEFT_CUT, "possible") if facts.log_cut else (_LEFT, "supported")
            return _named(logged, facts, "silent-death", lost, certainty, text, end.show(), end, **values)
    return None


_XID = (
    T("The GPU or its link is broken (Xid {xids})", "GPU 或其连接出了硬件故障（Xid {xids}）"),
    T(
        "The driver reported a hardware error while the engine ran; what the engine's log says is a consequence.",
        "引擎运行期间驱动报告了硬件错误；引擎日志里的报错只是后果。",
    ),
)
_XID_UNSURE = (
    T("Perhaps a broken GPU or link (Xid {xids})", "可能是 GPU 或其连接的硬件故障（Xid {xids}）"),
    T(
        "The driver reported a hardware error; that it was a device of this engine, at the moment of the death, is likely and not proven. The engine's log names no better reason.",
        "驱动报告了硬件错误；但无法确认就是本引擎用的那块卡、就发生在死亡那一刻。引擎日志里没有更可信的原因。",
    ),
)
_OOM = (
    T("The kernel killed {who} because memory ran out", "内存耗尽，内核杀死了 {who}"),
    T(
        "The memory of the host, or of the control group, was used up. The engine's log can't show it: the kernel's can.",
        "主机或 cgroup 的内存用尽了。引擎自己的日志里看不到，只有内核知道。",
    ),
)
_GUARD_KILLED = (
    T("The guard was killed, the engine was left alone", "guard 被杀死，引擎成了孤儿"),
    T(
        "The engine itself may have been well; without a guard nobody kept its log and its exits, so it was ended.",
        "引擎本身可能没有问题；但 guard 不在，日志和退出状态都无人记录，所以把它结束了。",
    ),
)
_STOPPED = (
    T(
        "The engine was stopped (SIGSTOP or a debugger) and did not go on",
        "引擎被暂停（SIGSTOP 或调试器），一直没有恢复",
    ),
    T(
        "In state T: {who}. vLLM itself doesn't notice: /health went on answering 200.",
        "处于 T 状态：{who}。vLLM 自己察觉不到，/health 照样返回 200。",
    ),
)
_START_STUCK = (
    T("The engine got stuck while it was starting", "引擎卡死在启动过程中"),
    T("Nothing moved any more before it served: {who}.", "还没开始服务就不再有任何动静：{who}。"),
)
_STUCK = (
    T("The engine hung: requests waited and nothing moved", "引擎卡死：请求在等，却没有任何进展"),
    T(
        "{finding}: {who}. The stacks of that moment are in the bundle; compare the processes: the one that differs is the culprit.",
        "卡住的是：{who}。当时各进程的调用栈都在事故包里；对比一下，与众不同的那个就是元凶。",
    ),
)
_CRASHED = (
    T("{who} crashed in native code ({signal})", "{who} 在原生代码里崩溃（{signal}）"),
    T(
        "The process ended by {signal}; Python never got the chance to print a traceback.",
        "进程因 {signal} 结束，Python 来不及打印 traceback。",
    ),
)
_TERMINATED = (
    T("{who} was asked to end ({signal}), not by guard", "有人让 {who} 退出（{signal}），不是 guard 发的"),
    T(
        "Somebody or something else sent {signal} to a process of the engine. To stop the engine, stop the guard.",
        "有别的人或程序向引擎的进程发了 {signal}。要停引擎，请停 guard。",
    ),
)
_KILLED = (
    T("{who} was killed from outside ({signal})", "{who} 被外部杀死（{signal}）"),
    T(
        "It ended by {signal} that guard did not send, and the kernel's out-of-memory killer was not at work.",
        "它因 {signal} 结束，信号不是 guard 发的，也不是内核的 OOM killer。",
    ),
)
_KILLED_UNSURE = (
    T("{who} was killed ({signal})", "{who} 被杀死（{signal}）"),
    T(
        "It ended by {signal} that guard did not send. Whether the kernel did it for want of memory can't be told: neither its log nor the counters of the control group may be read here.",
        "它因 {signal} 结束，信号不是 guard 发的。是不是内核因内存不足杀的，这里看不出来：内核日志和 cgroup 计数都读不到。",
    ),
)
_LEFT_CUT = (
    T("{who} ended with code {code}", "{who} 以退出码 {code} 结束"),
    T(
        "The part of the log that could be kept does not say why; the missing part may.",
        "留下来的那部分日志没有说明原因；缺失的部分也许有。",
    ),
)
_LEFT = (
    T("{who} ended by itself with code {code} and said nothing", "{who} 自行退出（退出码 {code}），什么也没说"),
    T("A call of exit() in native code looks like this.", "原生代码里直接调用 exit() 就是这个样子。"),
)
_USAGE = (
    T("The command line was refused", "命令行参数被拒绝"),
    T("The program ended with code {code} before it did anything.", "程序什么都没做就以退出码 {code} 结束。"),
)
_AT_ONCE = (
    T(
        "The command ended with code {code} before it was ever an engine",
        "命令以退出码 {code} 结束，期间没有出现过引擎",
    ),
    T(
        "No engine process was started and the log says no reason; run the command by itself and look at its output.",
        "没有任何引擎进程启动过，日志里也没有原因；单独运行这条命令看看输出。",
    ),
)
