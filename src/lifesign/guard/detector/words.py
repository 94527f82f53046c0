"""The detector's words for people, in two languages: states, findings, what a process does."""

from __future__ import annotations

from lifesign.guard.detector.evidence import Activity
from lifesign.guard.detector.states import Finding, State
from lifesign.text import T

STATES: dict[State, T] = {
    State.STARTING: T("starting", "启动中"),
    State.IDLE: T("idle", "空闲"),
    State.OK: T("working", "正常"),
    State.SLOW: T("slow, but working", "慢，但仍在计算"),
    State.SUSPECT: T("suspect", "可疑"),
    State.STOPPED: T("stopped", "被暂停"),
    State.BLIND: T("can't be seen", "看不到"),
    State.DEAD: T("dead", "已死"),
}

FINDINGS: dict[Finding, T] = {
    Finding.EXITED: T("a process of the engine is gone", "引擎的一个进程已退出"),
    Finding.STOPPED_TOO_LONG: T("stopped for too long (state T)", "被暂停太久（状态 T）"),
    Finding.HALTED: T("stopped (state T)", "被暂停（状态 T）"),
    Finding.STARTING: T("starting", "启动中"),
    Finding.START_STUCK: T("stuck during start-up", "启动过程卡死"),
    Finding.NO_DEMAND: T("nothing to do", "没有请求"),
    Finding.PROGRESS: T("making progress", "有进展"),
    Finding.STUCK_TOO_LONG: T("nothing moves, for too long", "长时间毫无动静"),
    Finding.SILENT_TOO_LONG: T(
        "no progress for too long, and nothing known about its processes", "长时间没有进展，且看不到进程在做什么"
    ),
    Finding.WORKING_TOO_LONG: T("still busy, but beyond all measure", "仍在忙，但已远超合理时间"),
    Finding.LATE_WORKING: T("the step is late, but it is being computed", "这一步超时，但仍在计算"),
    Finding.LATE_UNSEEN: T("the step is late, and progress can't be seen now", "这一步超时，且当前看不到进度"),
    Finding.LATE: T("the step is late, and nobody seems to compute it", "这一步超时，而且似乎没有进程在计算"),
    Finding.STUCK_EARLY: T("nothing moves", "毫无动静"),
    Finding.IN_TIME: T("within its time", "在预期时间内"),
}

ACTIVITIES: dict[Activity, T] = {
    Activity.COMPUTING: T("computing", "计算中"),
    Activity.STARVED: T("computing, short of processor time", "计算中，但抢不到 CPU"),
    Activity.PAGING: T("reading from disk", "正在读盘"),
    Activity.SPINNING: T("spinning", "空转"),
    Activity.POLLING: T("polling", "轮询等待"),
    Activity.BLOCKED: T("waiting", "等待中"),
    Activity.STOPPED: T("stopped", "被暂停"),
    Activity.EXITED: T("gone", "已退出"),
    Activity.UNCLEAR: T("busy, nothing known to move", "忙，但看不出是否有进展"),
    Activity.NO_PROCESSOR: T("gets no processor time", "完全抢不到 CPU"),
    Activity.UNSEEN: T("not visible", "不可见"),
}
