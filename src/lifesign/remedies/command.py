"""The reader's own command line with the remedies applied: what to paste, and what changed in it.

Taken from the log where it shows the `vllm serve` line, else rebuilt from `non-default args`. Secrets are replaced by
`***`: the line is for reading and pasting into a report as well.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lifesign.remedies import catalog as catalogs
from lifesign.remedies.catalog import Catalog, normal
from lifesign.text import T, is_whole

if TYPE_CHECKING:
    from lifesign.facts.model import Life
    from lifesign.remedies.apply import RenderedRemedy

SECRET_OPTIONS = frozenset({"--api-key", "--hf-token", "--ssl-keyfile-password"})
SECRET_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)\b")
MAX_WORDS = 400
_SKIPPED = frozenset({"model", "model_tag", "subparser", "dispatch_function", "config", "api_server_count"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}=")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that the new command changes: its knob, the value before (None = not set) and after (None = bare)."""

    knob: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class CorrectedCommand:
    """text: shell-quoted, ready to paste. changes: in order. basis: where the line came from: `command` (the log or the
    reader gave it), `config` (rebuilt from the logged arguments), `model` (only the model is known), `none`.
    left_out: settings of the log that couldn't be written as options."""

    text: str
    changes: tuple[Change, ...] = ()
    basis: str = "none"
    left_out: tuple[str, ...] = ()

    def note(self) -> T | None:
        """What a reader should know about where the line comes from; None when it is their own."""
        if self.basis == "command":
            return None
        if self.basis == "config":
            return T("rebuilt from the arguments that the log prints", "按日志打印的参数重建")
        return T("the log doesn't show the command: add the rest of yours", "日志里没有启动命令：请补上其余参数")


@dataclass
class _Line:
    """A command being rebuilt: variables before it, words up to the first option, options in order."""

    env: dict[str, str] = field(default_factory=dict)
    head: list[str] = field(default_factory=list)
    options: list[tuple[str, list[str]]] = field(default_factory=list)

    def text(self) -> str:
        """The line, shell-quoted; arguments that shells would split stay in one piece."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        words += [word if word in ("...", "MODEL") else shlex.quote(word) for word in self.head]
        for name, values in self.options:
            words.append(name)
            words += [shlex.quote(value) if value != "***" else value for value in values]
        return " ".join(words)


def corrected_command(
    life: Life, rendered: Sequence[RenderedRemedy], catalog: Catalog | None = None
) -> CorrectedCommand:
    """The life's own command with every setting of `rendered` applied.

    Settings without a knob (commands, checks) change nothing. Later remedies win over earlier ones.
    """
    known = catalog or catalogs.load()
    release = known.basis(life.version).release
    line, basis, left_out = _start(life, known, release)
    changes: list[Change] = []
    for remedy in rendered:
        for knob, value in ((remedy.knob, remedy.value or None), *remedy.also) if remedy.knob else ():
            changes.append(_apply(line, knob, value, known, release))
    return CorrectedCommand(line.text(), tuple(changes), basis, tuple(left_out))


def _start(life: Life, catalog: Catalog, release: str) -> tuple[_Line, str, list[str]]:
    if life.command:
        line = _parse(life.command, catalog, release)
        if line is not None:
            return line, "command", []
    line = _Line(head=["vllm", "serve", life.model or "..."])
    # What the user set, where the log says so; the engine's own list holds defaults too.
    settings = life.user_args or life.config
    if not settings:
        return line, "model" if life.model else "none", []
    left_out: list[str] = []
    for name, value in settings.items():
        words = _as_option(name, value, catalog, release)
        if words is not None:
            line.options.append(words)
        elif name not in _SKIPPED and value not in (None, [], {}, ""):
            left_out.append(name)
    return line, "config" if line.options else "model" if life.model else "none", left_out


def _as_option(name: str, value: object, catalog: Catalog, release: str) -> tuple[str, list[str]] | None:
    """A logged argument as an option of the release; None when it is none, or has the default value."""
    if name in _SKIPPED or value is None:
        return None
    spelling = "--" + name.replace("_", "-")
    knob = catalog.option(spelling, release)
    if knob is None or (knob.has_default and knob.default == value and type(knob.default) is type(value)):
        return None
    if spelling in SECRET_OPTIONS:
        return spelling, ["***"]
    if knob.type in ("bool", "flag"):
        if not isinstance(value, bool):
            return None
        if value:
            return (spelling, [])
        # A logged False that isn't the default was asked for.
        return ("--no-" + spelling[2:], []) if knob.type == "bool" else None
    if isinstance(value, dict) or (knob.type == "json" and isinstance(value, list)):
        return _json_option(spelling, value)
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, (str, int, float)) for item in value):
            return None
        return spelling, [str(item) for item in value]
    text = str(value).removeprefix("torch.")
    if knob.type == "json" and not text.lstrip().startswith(("{", "[")):
        return None
    plain = isinstance(value, (str, int, float)) and len(text) <= 2000 and "\n" not in text and "<" not in text[:1]
    return (spelling, [text]) if plain and text else None


def _json_option(spelling: str, value: object) -> tuple[str, list[str]] | None:
    try:
        return spelling, [json.dumps(value, ensure_ascii=False)]
    except (TypeError, ValueError):
        return None


def _parse(command: str, catalog: Catalog, release: str) -> _Line | None:
    """A command line as words; None when it can't be split or isn't one of vLLM."""
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=False)[:MAX_WORDS]
    except ValueError:
        return None
    line = _Line()
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        line.env[name] = "***" if SECRET_VARIABLE.search(name) else value
    if not any("vllm" in word for word in words[:4]):
        return None
    for word in words:
        if word in ("|", ">", ">>", "&", "&&", ";", "2>&1", "||"):
            break
        if word.startswith("-") and not _is_number(word):
            name, equals, value = word.partition("=")
            line.options.append((name, [value] if equals else []))
        elif line.options and _wants(line.options[-1], catalog, release):
            line.options[-1][1].append(word)
        else:
            line.head.append(word)
    line.options = [(name, ["***"] if normal(name) in SECRET_OPTIONS else values) for name, values in line.options]
    return line


def _is_number(word: str) -> bool:
    return is_whole(word[1:].replace(".", "", 1))


def _wants(option: tuple[str, list[str]], catalog: Catalog, release: str) -> bool:
    """Whether an option still takes a word. One that the release doesn't know takes one."""
    name, values = option
    knob = catalog.option(name, release)
    if knob is None:
        return not values and name not in ("-m",)
    if not knob.takes_value:
        return False
    return not values or knob.type.endswith(("+", "*"))


def _apply(line: _Line, knob: str, value: str | None, catalog: Catalog, release: str) -> Change:
    if not knob.startswith("-"):
        before = line.env.get(knob)
        line.env[knob] = value or ""
        return Change(knob, before, value or "")
    target = catalog.option(knob, release)
    several = target is not None and target.type.endswith(("+", "*"))
    words = [] if value is None else value.split() if several else [value]
    for index, (name, values) in enumerate(line.options):
        other = catalog.option(name, release)
        same = normal(name) == normal(knob) or (target is not None and other is not None and target.name == other.name)
        if not same or "." in name:
            continue
        before = " ".join(values) if values else name
        if target is not None and target.json and value is not None and values:
            words = [_merged(values[0], value)]
        line.options[index] = (knob, words)
        return Change(knob, before, " ".join(words) or None)
    line.options.append((knob, words))
    return Change(knob, None, " ".join(words) or None)


def _merged(before: str, added: str) -> str:
    """Two JSON objects as one, the added keys winning; the added one alone when the first is none."""
    try:
        first, second = json.loads(before), json.loads(added)
    except ValueError:
        return added
    if not isinstance(first, dict) or not isinstance(second, dict):
        return added
    return json.dumps({**first, **second}, ensure_ascii=False)
