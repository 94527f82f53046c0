"""What came of one drill, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lifesign.drill.diagnosis import Diagnosis
from lifesign.drill.model import Fault
from lifesign.text import Lang, T

Result = Literal["PASS", "FAIL", "SKIPPED"]


@dataclass(slots=True)
class Outcome:
    """One run. Times in seconds; `death_s` counts from the fault to the end of the top process, None if it lived."""

    fault: Fault
    engine: str
    release: str
    result: Result = "FAIL"
    why: T | None = None  # why it failed or was skipped
    ready_s: float | None = None
    death_s: float | None = None
    exit_code: int | None = None
    client: dict[str, int] = field(default_factory=dict)
    health: list[tuple[float, str]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    got: Diagnosis | None = None
    subtype_right: bool = False
    log: str = ""
    kernel_log: str = ""
    wall_s: float = 0.0
    events: list[tuple[float, T]] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why it failed or was skipped, in English; empty for a pass."""
        return self.why.en if self.why else ""

    def as_json(self) -> dict[str, object]:
        """The form of `lifesign.drill/1` results."""
        return {
            "fault": self.fault.name,
            "engine": self.engine,
            "release": self.release,
            "result": self.result,
            "reason": self.reason,
            "expect": self.fault.expect.slug,
            "accept": list(self.fault.expect.accept),
            "got": self.got.slug if self.got else None,
            "certainty": self.got.certainty if self.got else None,
            "subtype_right": self.subtype_right,
            "line": self.got.line if self.got else None,
            "ready_s": self.ready_s,
            "death_s": self.death_s,
            "exit_code": self.exit_code,
            "client": self.client,
            "health": self.health,
            "left": self.left,
            "events": [[round(time_s, 1), text.en] for time_s, text in self.events],
            "log": self.log,
            "kernel_log": self.kernel_log or None,
            "wall_s": round(self.wall_s, 1),
        }


ENDS = {
    "error event": T("error event", "流中报错"),
    "http error": T("HTTP error", "HTTP 错误"),
    "cut": T("cut", "连接中断"),
    "no answer": T("no answer", "无应答"),
    "refused": T("refused", "拒绝连接"),
    "ok": T("ok", "成功"),
}
LEFT = {
    "processes": T("processes", "个进程"),
    "shm": T("shared memory", "块共享内存"),
    "tmp": T("temporary files", "个临时文件"),
}
NOTHING = T("nothing", "无")


def describe_client(counts: dict[str, int], lang: Lang = "en") -> str:
    """`3 ok, 1 error event`; the interesting ends first."""
    parts = [f"{counts[end]} {text.pick(lang)}" for end, text in ENDS.items() if counts.get(end)]
    return ", ".join(parts) or NOTHING.pick(lang)


def describe_left(left: dict[str, int], lang: Lang = "en") -> str:
    """`2 processes, 1 shared memory`, or `nothing`."""
    return ", ".join(f"{count} {LEFT[what].pick(lang)}" for what, count in left.items()) or NOTHING.pick(lang)
