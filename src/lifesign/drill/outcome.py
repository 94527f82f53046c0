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
    strict: bool = False  # the cause is the injected one, not merely an accepted one
    log: str = ""
    kernel_log: str = ""
    exit_log: str = ""
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
            "accept_subtypes": list(self.fault.expect.accept_subtypes),
            "got": self.got.slug if self.got else None,
            "certainty": self.got.certainty if self.got else None,
            "subtype_right": self.subtype_right,
            "strict": self.strict,
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
            "exit_log": self.exit_log or None,
            "wall_s": round(self.wall_s, 1),
        }


# (for one, for any other number)
ENDS = {
    "error event": (T("{n} error event", "{n} 次流中报错"), T("{n} error events", "{n} 次流中报错")),
    "http error": (T("{n} HTTP error", "{n} 次 HTTP 错误"), T("{n} HTTP errors", "{n} 次 HTTP 错误")),
    "cut": (T("{n} cut", "{n} 次连接中断"),) * 2,
    "no answer": (T("{n} without an answer", "{n} 次无应答"),) * 2,
    "refused": (T("{n} refused", "{n} 次拒绝连接"),) * 2,
    "ok": (T("{n} ok", "{n} 次成功"),) * 2,
}
LEFT = {
    "processes": (T("{n} process", "{n} 个进程"), T("{n} processes", "{n} 个进程")),
    "shm": (T("{n} block of shared memory", "{n} 块共享内存"), T("{n} blocks of shared memory", "{n} 块共享内存")),
    "tmp": (T("{n} temporary file", "{n} 个临时文件"), T("{n} temporary files", "{n} 个临时文件")),
}
NOTHING = T("nothing", "无")
COMMA = T(", ", "，")


def _counted(counts: dict[str, int], words: dict[str, tuple[T, T]], lang: Lang) -> str:
    parts = [one_many[counts[key] != 1].fill(n=counts[key]) for key, one_many in words.items() if counts.get(key)]
    return COMMA.pick(lang).join(part.pick(lang) for part in parts) or NOTHING.pick(lang)


def describe_client(counts: dict[str, int], lang: Lang = "en") -> str:
    """`2 error events, 3 ok`; the interesting ends first."""
    return _counted(counts, ENDS, lang)


def describe_left(left: dict[str, int], lang: Lang = "en") -> str:
    """`2 processes, 1 block of shared memory`, or `nothing`."""
    return _counted(left, LEFT, lang)
