"""Should the engine be started again, when, and with what changed? Pure: facts in, a decision out.

An engine needs one to five minutes to start, so the usual supervisors' rules miss: Erlang's "1 in 5 s" and systemd's
"5 in 10 s" are never reached, and Kubernetes resets its back-off after ten minutes of *running*, which a slow start
plus a death at the first request passes for ever. This policy counts what matters instead:

* the **cause** decides first (table `RULES`): a bad flag stays bad, a lost peer may come back, broken hardware
  must not get the next try;
* then **progress** (not seconds): three starts without progress, or six restarts within an hour, and the engine is
  HELD (after NVIDIA's NVRx, which stops after three restarts without 200 iterations);
* then the **delay**: 5 s x 2^n, jittered by half, at most 300 s; at once after a long healthy life;
* a **request** that was in flight in two deaths is named as poison;
* with `apply_remedies`, one **change** at a time: kept when progress follows, undone when it doesn't.

Nothing here reads a clock, draws a random number or touches a file: `handle(event, now_s)` and an injected `draw`.
Times are seconds since the epoch, so that the memory survives the guard itself (`export`, `RestartPolicy(memory=...)`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lifesign.text import T

BASE_DELAY_S = 5.0
DELAY_CAP_S = 300.0
LONG_HEALTHY_S = 600.0
"""A life that served at least this long, with progress, is followed by a start without delay."""
MAX_FRUITLESS_STARTS = 3
MAX_RESTARTS_PER_HOUR = 6
HOUR_S = 3600.0
KEPT_DEATHS = 20
KEPT_REQUESTS = 256
HARDWARE_XIDS = frozenset({48, 64, 74, 79, 94, 95, 119, 120, 140})
"""NVIDIA Xid numbers that mean broken or wedged hardware (double-bit ECC, a page or row that could not be retired, NVLink,
fallen off the bus, contained and uncontained ECC, GSP time-outs). 13, 31, 43, 45 are usually software. 63 (a page or row
was retired, which went well) and 92 (many corrected errors) are news only: NVIDIA's catalog says to ignore them."""
ECC_XIDS = frozenset({48, 64, 94, 95, 140})
"""Those of them that are errors of the device's memory."""

Action = Literal["restart", "stop", "hold"]
Retry = Literal["yes", "no", "hardware"]


@dataclass(frozen=True, slots=True)
class Change:
    """One remedy as a change of the command or environment: `value` None means a bare flag."""

    kind: Literal["flag", "env"]
    knob: str
    value: str | None

    def show(self) -> str:
        """`--max-num-seqs 64` or `NAME=value`."""
        if self.kind == "env":
            return f"{self.knob}={self.value or ''}"
        return self.knob if self.value is None else f"{self.knob} {self.value}"


@dataclass(frozen=True, slots=True)
class Started:
    """A life was spawned."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The life became ready and did real work (200 steps, 10 finished requests, or half an hour of service)."""


@dataclass(frozen=True, slots=True)
class Died:
    """A life ended in a death. `requests` are fingerprints of the requests in flight; `changes` the verified remedies.

    `life` names the life: a death that was decided is not counted again, whoever reports it.
    """

    cause: str
    subtype: str = ""
    phase: str = ""
    exit_code: int | None = None
    became_ready: bool = False
    served_s: float = 0.0
    hung: bool = False
    host_oom_kills: int = 0
    xids: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    life: str = ""


Event = Started | Progressed | Died


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a death. `rule` names the line of the table or the budget that decided."""

    action: Action
    delay_s: float
    why: T
    rule: str
    poison: tuple[str, ...] = ()
    apply: Change | None = None
    undo: Change | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table. `*` matches anything; `phase` may be `startup` for everything before serving."""

    cause: str
    subtype: str
    phase: str
    retry: Retry
    why: T

    @property
    def name(self) -> str:
        """`device-oom/*/startup`."""
        return f"{self.cause}/{self.subtype}/{self.phase}"

    def matches(self, death: Died) -> bool:
        """Whether this line speaks about that death."""
        startup = not death.became_ready
        return (
            self.cause in ("*", death.cause)
            and self.subtype in ("*", death.subtype)
            and (self.phase == "*" or (self.phase == "startup") == startup)
        )


_SETTING = T(
    "the same command would fail in the same way: the setting has to change first",
    "原样重启只会再次失败：先改配置",
)
_ENVIRONMENT = T(
    "the installation or the machine has to change first; starting again can't help",
    "要先修好安装环境或机器；重启无济于事",
)
_MODEL = T(
    "the model's files or its quantisation don't fit; starting again can't help",
    "模型文件或量化方式不匹配；重启无济于事",
)
_MEMORY = T(
    "memory ran out before serving: the same settings need the same memory again",
    "还没开始服务就内存（显存）不足：配置不变，需求也不变",
)
_HARDWARE = T(
    "hardware fault: drain this node and reset or replace the device before anything starts on it again",
    "硬件故障：先把该节点排空，重置或更换设备，再启动任何任务",
)
_TRANSIENT = T("this kind of death may not come back", "这类死亡未必会重现")
_LOST = T("a process was lost; the next start may live", "丢了一个进程，重启后也许就好")
_NETWORK = T("the download may succeed next time", "下载也许下次就能成功")
_UNKNOWN = T("the cause is not known, and the budget is not spent", "原因未知，重启次数还在限额内")

RULES: tuple[Rule, ...] = (
    Rule("hardware-fault", "*", "*", "hardware", _HARDWARE),
    Rule("user-config", "*", "*", "no", _SETTING),
    Rule("unsupported-hw", "*", "*", "no", _ENVIRONMENT),
    Rule("env-install", "*", "*", "no", _ENVIRONMENT),
    Rule("model-load", "hf-download", "*", "yes", _NETWORK),
    Rule("model-load", "aux-download", "*", "yes", _NETWORK),
    Rule("model-load", "*", "startup", "no", _MODEL),
    Rule("model-quant-incompat", "*", "startup", "no", _MODEL),
    Rule("compile-jit", "*", "startup", "no", _ENVIRONMENT),
    Rule("host-resource", "*", "startup", "no", _ENVIRONMENT),
    Rule("distributed-orchestration", "*", "startup", "no", _SETTING),
    Rule("graph-capture", "*", "startup", "no", _SETTING),
    Rule("device-oom", "*", "startup", "no", _MEMORY),
    Rule("process-lifecycle", "fork-cuda-init", "*", "no", _SETTING),
    Rule("process-lifecycle", "spawn-no-main-guard", "*", "no", _SETTING),
    Rule("host-oom", "*", "*", "yes", _LOST),
    Rule("silent-death", "*", "*", "yes", _LOST),
    Rule("timeout-hang", "*", "*", "yes", _TRANSIENT),
    Rule("collective-comm", "*", "*", "yes", _TRANSIENT),
    Rule("unclassified", "*", "*", "yes", _UNKNOWN),
    Rule("insufficient-log", "*", "*", "yes", _UNKNOWN),
    Rule("not-a-crash", "*", "*", "yes", _UNKNOWN),
    Rule("*", "*", "*", "yes", _TRANSIENT),
)


def rule_for(death: Died) -> Rule:
    """The first line of `RULES` that matches; the last one matches everything."""
    return next(rule for rule in RULES if rule.matches(death))


@dataclass
class Memory:
    """What must survive from life to life, and from guard to guard. Bounded; plain JSON through `export`."""

    starts: list[float] = field(default_factory=list)
    fruitless: int = 0
    progressed: bool = False
    deaths: list[dict[str, Any]] = field(default_factory=list)
    active: list[Change] = field(default_factory=list)
    on_trial: Change | None = None
    failed: list[tuple[str, Change]] = field(default_factory=list)
    decided: tuple[str, Decision] | None = None
    """The last life whose death was decided, and how: in the same file as the count, so that both are known or neither."""

    def export(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "starts": self.starts[-64:],
            "fruitless": self.fruitless,
            "progressed": self.progressed,
            "deaths": self.deaths[-KEPT_DEATHS:],
            "active": [_dump(change) for change in self.active],
            "on_trial": _dump(self.on_trial) if self.on_trial else None,
            "failed": [[cause, _dump(change)] for cause, change in self.failed[-64:]],
            "decided": [self.decided[0], _dump_decision(self.decided[1])] if self.decided else None,
        }

    @classmethod
    def load(cls, raw: dict[str, Any]) -> Memory:
        """From JSON values; raises KeyError, TypeError or ValueError when they are not such."""
        return cls(
            starts=[float(at) for at in raw["starts"]],
            fruitless=int(raw["fruitless"]),
            progressed=bool(raw["progressed"]),
            deaths=[dict(death) for death in raw["deaths"]],
            active=[_parse(change) for change in raw["active"]],
            on_trial=_parse(raw["on_trial"]) if raw["on_trial"] else None,
            failed=[(str(cause), _parse(change)) for cause, change in raw["failed"]],
            decided=(str(raw["decided"][0]), _parse_decision(raw["decided"][1])) if raw.get("decided") else None,
        )


def _dump(change: Change) -> dict[str, str | None]:
    return {"kind": change.kind, "knob": change.knob, "value": change.value}


def _parse(raw: dict[str, Any]) -> Change:
    kind: Literal["flag", "env"] = "env" if raw["kind"] == "env" else "flag"
    return Change(kind, str(raw["knob"]), None if raw["value"] is None else str(raw["value"]))


def _dump_decision(decision: Decision) -> dict[str, Any]:
    return {
        "action": decision.action,
        "delay_s": decision.delay_s,
        "why": list(decision.why),
        "rule": decision.rule,
        "poison": list(decision.poison),
        "apply": _dump(decision.apply) if decision.apply else None,
        "undo": _dump(decision.undo) if decision.undo else None,
    }


def _parse_decision(raw: dict[str, Any]) -> Decision:
    action: Action = "restart" if raw["action"] == "restart" else "stop" if raw["action"] == "stop" else "hold"
    english, chinese = raw["why"]
    return Decision(
        action,
        float(raw["delay_s"]),
        T(str(english), str(chinese)),
        str(raw["rule"]),
        tuple(str(request) for request in raw["poison"]),
        apply=_parse(raw["apply"]) if raw["apply"] else None,
        undo=_parse(raw["undo"]) if raw["undo"] else None,
    )


class RestartPolicy:
    """The policy with its memory. `draw()` gives a number in [0, 1); `max_restarts` caps the restarts of this guard."""

    def __init__(
        self,
        draw: Callable[[], float],
        *,
        memory: Memory | None = None,
        max_restarts: int | None = None,
        apply_remedies: bool = False,
    ) -> None:
        self.memory = memory or Memory()
        self._draw = draw
        self._max_restarts = max_restarts
        self._apply_remedies = apply_remedies
        self._restarts = 0

    def handle(self, event: Event, now_s: float) -> Decision | None:
        """Take an event at `now_s` (seconds since the epoch); a death gives a decision, anything else None."""
        if isinstance(event, Started):
            recent = [at for at in self.memory.starts if now_s - at < HOUR_S]
            self.memory.starts = [*recent[-63:], now_s]
            self.memory.progressed = False
            return None
        if isinstance(event, Progressed):
            self.memory.progressed = True
            self.memory.fruitless = 0
            if self.memory.on_trial is not None:
                self.memory.active.append(self.memory.on_trial)
                self.memory.on_trial = None
            return None
        known = self.decided(event.life)
        if known is not None:
            return known
        decision = self._died(event, now_s)
        if event.life:
            self.memory.decided = (event.life, decision)
        return decision

    def decided(self, life: str) -> Decision | None:
        """What was decided when that life died; None when it wasn't, or when that is no longer remembered."""
        known = self.memory.decided
        return known[1] if known is not None and life and known[0] == life else None

    def _died(self, death: Died, now_s: float) -> Decision:
        memory = self.memory
        if not memory.progressed:
            memory.fruitless += 1
        poison = self._poison(death)
        kind = f"{death.cause}/{death.subtype}"
        seen_before = any(entry["kind"] == kind for entry in memory.deaths[-MAX_FRUITLESS_STARTS:])
        memory.deaths = [
            *memory.deaths[-(KEPT_DEATHS - 1) :],
            {"at": now_s, "kind": kind, "requests": sorted(death.requests)[:KEPT_REQUESTS]},
        ]
        undo = memory.on_trial if not memory.progressed else None
        if undo is not None:
            memory.failed.append((kind, undo))
            memory.on_trial = None
        rule = rule_for(death)
        hardware = rule.retry == "hardware" or bool(HARDWARE_XIDS.intersection(death.xids))
        if hardware:
            return Decision("hold", 0.0, _HARDWARE, "hardware", poison, undo=undo)
        change = self._next_change(death, kind) if rule.retry == "no" or seen_before else None
        if rule.retry == "no" and change is None:
            why = _NO_REMEDY_LEFT.fill(change=undo.show()) if undo is not None else rule.why
            return Decision("hold" if undo is not None else "stop", 0.0, why, rule.name, poison, undo=undo)
        spent = self._budget_spent(now_s)
        if spent is not None:
            return Decision("hold", 0.0, spent[1], spent[0], poison, undo=undo)
        self._restarts += 1
        memory.on_trial = change
        why = rule.why if change is None else _WITH_CHANGE.fill(change=change.show())
        return Decision("restart", self._delay_s(death), why, rule.name, poison, apply=change, undo=undo)

    def _budget_spent(self, now_s: float) -> tuple[str, T] | None:
        """The budget that forbids another start, with its reason; None while one is allowed."""
        memory = self.memory
        if self._max_restarts is not None and self._restarts >= self._max_restarts:
            return "max-restarts", _MAX_RESTARTS.fill(n=self._max_restarts)
        if memory.fruitless >= MAX_FRUITLESS_STARTS:
            return "no-progress", _NO_PROGRESS.fill(n=memory.fruitless)
        recent = sum(1 for at in memory.starts if now_s - at < HOUR_S)
        if recent > MAX_RESTARTS_PER_HOUR:
            return "hourly", _HOURLY.fill(n=recent)
        return None

    def _delay_s(self, death: Died) -> float:
        if self.memory.progressed and death.served_s >= LONG_HEALTHY_S:
            return 0.0
        exponent = min(max(self.memory.fruitless - 1, 0), 10)
        delay_s: float = BASE_DELAY_S * 2**exponent * (0.5 + self._draw())
        return min(DELAY_CAP_S, delay_s)

    def _poison(self, death: Died) -> tuple[str, ...]:
        """Requests in flight now that were in flight in an earlier death as well."""
        before = {request for entry in self.memory.deaths for request in entry["requests"]}
        return tuple(sorted(before.intersection(death.requests)))

    def _next_change(self, death: Died, kind: str) -> Change | None:
        """The first remedy that was not tried for this kind of death and is not in force already."""
        if not self._apply_remedies:
            return None
        tried = [change for cause, change in self.memory.failed if cause == kind] + self.memory.active
        return next((change for change in death.changes if change not in tried), None)


def apply_changes(
    command: list[str], environment: dict[str, str], changes: Iterable[Change]
) -> tuple[list[str], dict[str, str]]:
    """Command and environment with the changes made: a flag that is there is replaced (both `--a b` and `--a=b`)."""
    command, environment = list(command), dict(environment)
    for change in changes:
        if change.kind == "env":
            environment[change.knob] = change.value or ""
            continue
        kept: list[str] = []
        skip = False
        for index, word in enumerate(command):
            if skip:
                skip = False
                continue
            if word == change.knob:
                follows = command[index + 1] if index + 1 < len(command) else "--"
                skip = change.value is not None and not follows.startswith("--")
                continue
            if not word.startswith(change.knob + "="):
                kept.append(word)
        command = kept + [change.knob] + ([] if change.value is None else [change.value])
    return command, environment


_WITH_CHANGE = T("with one change: {change}", "改一处：{change}")
_NO_REMEDY_LEFT = T(
    "{change} did not help and was undone; no other remedy is known to fit",
    "{change} 没有用，已撤销；没有其他适用的办法",
)
_MAX_RESTARTS = T("--max-restarts {n} is used up", "已用完 --max-restarts {n} 次")
_NO_PROGRESS = T(
    "{n} starts in a row made no progress: starting again would only hide it",
    "连续 {n} 次启动都没有任何进展：再启动只会掩盖问题",
)
_HOURLY = T("{n} starts within the last hour: something is wrong for good", "最近一小时内已启动 {n} 次：问题是持续性的")
