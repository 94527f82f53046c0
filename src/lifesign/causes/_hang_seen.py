"""Hangs that somebody watched: subtypes of timeout-hang that need lifesign's guard or its plugin to be told.

A log alone can't tell a slow worker from a stuck one. The plugin writes what it saw into the engine's log
(`lifesign: DEAD: ...`); the guard knows it from outside and puts it into the report of the incident.
"""

from __future__ import annotations

import re

from lifesign.causes.model import SYMPTOM, Finding, Signature, Subtype
from lifesign.remedies import library as lib
from lifesign.remedies.model import Remedy
from lifesign.text import T

READ_STACKS = Remedy(
    slug="read-stacks-of-incident",
    kind="check",
    title=T("read the stacks that were taken at suspicion", "先看怀疑时刻抓到的调用栈"),
    why=T(
        "They are in stacks/ of the bundle, or after the DEAD line of the log. The process whose stack differs from its peers' is where to look.",
        "在事故包的 stacks/ 里，或日志里 DEAD 那行之后。栈和其他进程不一样的那个，就是该查的地方。",
    ),
    command="lifesign incidents",
)
LOOK_AT_CHILD = Remedy(
    slug="look-at-child",
    kind="collect",
    title=T("see what the child process does", "看子进程在做什么"),
    why=T(
        "The front end only waits. The core process says nothing, so its stack must tell.",
        "前端只是在等；core 进程没有输出，只能看它的堆栈。",
    ),
    command="pgrep -af 'EngineCore|multiprocessing'; py-spy dump --pid PID_OF_ENGINECORE",
)
WHO_STOPPED = Remedy(
    slug="who-stopped-it",
    kind="check",
    title=T("find out what stopped the process, and let it go on", "查出是什么暂停了进程，并让它继续"),
    why=T(
        "SIGSTOP, Ctrl-Z, a debugger, a snapshot of the container or a full suspend leave a process in state T or its group frozen. kill -CONT wakes it when nobody holds it.",
        "SIGSTOP、Ctrl-Z、调试器、容器快照或整机挂起，都会让进程停在 T 状态或 cgroup 被冻结。没有人占着它时，kill -CONT 就能唤醒。",
    ),
    command="ps -eo pid,ppid,stat,lstart,cmd | awk '$3 ~ /T/'; grep TracerPid /proc/PID/status",
)

SEEN = {
    "stuck": Subtype(
        T("The engine hung: requests waited and nothing moved", "引擎卡死：请求在等，却没有任何进展"),
        T(
            "Not a slow step: {who}. It was watched until waiting cost more than a restart.",
            "不是慢：{who}。一直观察到继续等比重启更不划算为止。",
        ),
        (READ_STACKS, lib.PY_SPY_STACKS, lib.NCCL_DEBUG_INFO, lib.COLLECT_DEBUG),
        ("vllm#39863", "vllm#36451"),
    ),
    "stopped": Subtype(
        T(
            "The engine was stopped (SIGSTOP or a debugger) and did not go on",
            "引擎被暂停（SIGSTOP 或调试器），一直没有恢复",
        ),
        T(
            "Stopped from outside: {who}. vLLM itself doesn't notice: /health goes on answering 200.",
            "被外部暂停：{who}。vLLM 自己察觉不到，/health 照样返回 200。",
        ),
        (WHO_STOPPED,),
    ),
    "start-stuck": Subtype(
        T("The engine got stuck while it was starting", "引擎卡死在启动过程中"),
        T(
            "Nothing moved any more before it served: {who}.",
            "还没开始服务就不再有任何动静：{who}。",
        ),
        (READ_STACKS, lib.FASTER_STORAGE, lib.COLLECT_DEBUG, lib.PY_SPY_STACKS),
    ),
}

_DEAD = re.compile(
    r"lifesign: DEAD: .{0,200}? has not come back after (?P<age>[\d.]{1,9}) s \((?P<why>[^)]{0,40}?): (?P<who>.{1,400})\)"
)
SIGNATURE = Signature(
    "stuck",
    any=("lifesign: DEAD: ",),
    kinds=("log",),
    regex=r"lifesign: DEAD: .{0,200}? has not come back after",
    strength=SYMPTOM,
    certainty="supported",
)


def name_who(finding: Finding) -> Finding:
    """Whom the plugin's line points at, and whether that was stopped or turned in circles."""
    match = _DEAD.search(finding.event.text[:1200])
    finding.values["who"] = match["who"] if match else "-"
    if match and match["why"] == "stopped too long":
        # The kernel says so; that something spins is a judgement.
        finding.subtype, finding.certainty = "stopped", "established"
    return finding
