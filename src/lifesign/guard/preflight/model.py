"""The shape of a check's answer, and what all checks are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lifesign.guard.helpers import Helpers
from lifesign.guard.settings import setting_of
from lifesign.remedies.catalog import load
from lifesign.remedies.overlay import ONE_AT_A_TIME
from lifesign.text import Lang, T, is_whole

Level = Literal["ok", "note", "warn", "stop"]
"""`stop`: an engine would not start, or would die. `warn`: it may. `note`: worth knowing. `ok`: looked at, fine."""


_NO_FIX = T("", "")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table. `fix` is what to type or change; empty for `ok`."""

    level: Level
    check: str
    what: T
    fix: T = _NO_FIX

    def as_json(self, lang: Lang) -> dict[str, Any]:
        """As JSON values, in one language."""
        return {"level": self.level, "check": self.check, "what": self.what.pick(lang), "fix": self.fix.pick(lang)}


def ok(check: str, en: str, zh: str) -> Finding:
    """A line that says that something is fine."""
    return Finding("ok", check, T(en, zh))


@dataclass
class Plan:
    """What is to be started, and where. Everything may be unknown; a check then says what it could not look at.

    command: the whole command line, or empty. timeout_s: the longest that one slow check (network, all-reduce) may take.
    """

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    port: int | None = None
    ranks: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29577
    all_reduce: bool | None = None
    timeout_s: float = 30.0
    offline: bool = False
    state_dirs: tuple[Path, ...] = ()
    helpers: Helpers = field(default_factory=Helpers)

    @property
    def is_cpu(self) -> bool:
        """Whether no accelerator is to be seen."""
        return not any(
            Path(path).exists()
            for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/davinci_manager", "/dev/dri/renderD128")
        )


def from_command(plan: Plan) -> Plan:
    """Fill in what the command line and its `--config` file say (model, port, ranks) where it wasn't given."""
    words = list(plan.command)
    if plan.model is None:
        served = _model_word(words[words.index("serve") + 1 :]) if "serve" in words else None
        plan.model = served or setting_of(words, "--model")
    if plan.port is None:
        text = setting_of(words, "--port")
        plan.port = int(text) if text and is_whole(text) else (8000 if words else None)
    if plan.ranks == 1 and words:
        plan.ranks = _number(words, "--tensor-parallel-size", "-tp") * _number(words, "--pipeline-parallel-size", "-pp")
    return plan


def _model_word(words: list[str]) -> str | None:
    """The first word that is neither an option nor an option's value: the model may stand anywhere behind `serve`."""
    catalog = load()
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("-"):
            return word
        name, equals, _ = word.partition("=")
        knob = catalog.option(name, catalog.newest)
        several = knob is not None and knob.type.endswith(("+", "*")) and knob.name not in ONE_AT_A_TIME
        if equals or (knob is not None and not knob.takes_value):
            continue
        while index < len(words) and not words[index].startswith("-"):
            index += 1
            if not several:
                break
    return None


def _number(words: list[str], *names: str) -> int:
    for name in names:
        text = setting_of(words, name)
        if text and is_whole(text):
            return max(1, int(text))
    return 1
