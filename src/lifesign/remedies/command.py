"""The reader's own command line with the remedies applied: what to paste, and what changed in it.

Taken from the log where it shows the `vllm serve` line, else rebuilt from `non-default args`. Secrets are replaced by
`***`: the line is for reading and pasting into a report as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lifesign.facts import command_line
from lifesign.facts.command_line import CommandLine, number, word
from lifesign.facts.shell_words import Token
from lifesign.remedies import catalog as catalogs
from lifesign.remedies.catalog import Catalog, Knob, normal
from lifesign.text import T

if TYPE_CHECKING:
    from lifesign.facts.model import Life
    from lifesign.remedies.apply import RenderedRemedy

SECRET_OPTIONS = frozenset({"--api-key", "--hf-token", "--ssl-keyfile-password"})
SECRET_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)\b")
MAX_WORDS = 400
_SKIPPED = frozenset({"model", "model_tag", "subparser", "dispatch_function", "config", "api_server_count"})


Setting = tuple[str, str | None]
"""A knob and its value; None for a bare option."""


class Change(msgspec.Struct, frozen=True):
    """One setting that the new command changes: its knob, the value before (None = not set) and after (None = bare)."""

    knob: str
    before: str | None
    after: str | None


class CorrectedCommand(msgspec.Struct, frozen=True):
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


class _Item(msgspec.Struct):
    """An option with its words, or (name empty) words that are none: the model, redirections."""

    name: str
    tokens: list[Token]
    values: list[str] = msgspec.field(default_factory=list)


class _Line(msgspec.Struct):
    """A command being changed: the line, and its arguments as items in order."""

    line: CommandLine
    items: list[_Item] = msgspec.field(default_factory=list)

    def text(self) -> str:
        """The line, ready to paste; secrets replaced."""
        self.line.args = [token for item in self.items for token in item.tokens]
        for tokens in (self.line.before, self.line.head, self.line.after):
            _hide(tokens)
        for wrap in self.line.wraps:
            _hide(wrap.before)
            _hide(wrap.after)
        return self.line.text()


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
            direction = remedy.direction if knob == remedy.knob else 0
            change = _apply(line, knob, value, direction, known, release)
            if change is not None:
                changes.append(change)
    return CorrectedCommand(line.text(), tuple(changes), basis, tuple(left_out))


def own_line(
    life: Life, settings: Sequence[Setting], without: Sequence[str], catalog: Catalog | None = None
) -> tuple[str, str] | None:
    """The life's own line with `settings` added and the options `without` taken out, in two parts: the variables before
    it (with a blank after them) and the rest. None where the log doesn't show a line, or not one that another program could start.
    """
    known = catalog or catalogs.load()
    release = known.basis(life.version).release
    line, basis, _ = _start(life, known, release)
    if basis not in ("command", "config") or not line.line.is_plain():
        return None
    for knob in without:
        target = known.option(knob, release)
        line.items = [
            item for item in line.items if not (item.name and _is_same(item.name, knob, target, known, release))
        ]
    for knob, value in settings:
        _apply(line, knob, value, 0, known, release)
    text = line.text()
    variables = "".join(f"{token.raw} " for token in line.line.head[: line.line.leading()])
    return variables, text.removeprefix(variables)


def _start(life: Life, catalog: Catalog, release: str) -> tuple[_Line, str, list[str]]:
    if life.command:
        line = _parse(life.command, catalog, release)
        if line is not None and not _of_another_run(line, life):
            return line, "command", []
    head = [word("vllm"), word("serve"), word(life.model) if life.model else word("...", "...")]
    line = _Line(CommandLine(head=head))
    # What the user set, where the log says so; the engine's own list holds defaults too.
    settings = life.user_args or life.config
    if not settings:
        return line, "model" if life.model else "none", []
    left_out: list[str] = []
    for name, value in settings.items():
        words = _as_option(name, value, catalog, release)
        if words is not None:
            line.items.append(_item(*words))
        elif name not in _SKIPPED and value not in (None, [], {}, ""):
            left_out.append(name)
    return line, "config" if line.items else "model" if life.model else "none", left_out


def _of_another_run(line: _Line, life: Life) -> bool:
    """Whether the arguments that the log prints contradict the command, which then started something else."""
    for name, value in line.line.settings().items():
        logged = life.user_args.get(name)
        if isinstance(logged, (int, float)) and not isinstance(logged, bool):
            given = number(str(value))
            if given is not None and given != logged:
                return True
    return False


def _item(name: str, values: list[str], secret: bool = False) -> _Item:
    raw = [word("***", "***")] if secret else [word(value) for value in values]
    return _Item(name, [word(name, name), *raw], ["***"] if secret else values)


def _as_option(
    name: str, value: object, catalog: Catalog, release: str
) -> tuple[str, list[str]] | tuple[str, list[str], bool] | None:
    """A logged argument as an option of the release; None when it is none, or has the default value."""
    if name in _SKIPPED or value is None:
        return None
    spelling = "--" + name.replace("_", "-")
    knob = catalog.option(spelling, release)
    if knob is None or (knob.has_default and knob.default == value and type(knob.default) is type(value)):
        return None
    if spelling in SECRET_OPTIONS:
        return spelling, ["***"], True
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
    """A command line with its options; None when it isn't a start of vLLM that can be taken apart."""
    found = command_line.read_or_none(command)
    if found is None:
        return None
    line = _Line(found)
    for token in found.args[:MAX_WORDS]:
        last = line.items[-1] if line.items else None
        if token.kind == "word" and token.text.startswith("-") and number(token.text) is None:
            name, equals, value = token.text.partition("=")
            line.items.append(_Item(name, [token], [value] if equals else []))
        elif token.kind == "word" and last is not None and last.name and _wants(last, catalog, release):
            last.tokens.append(token)
            last.values.append(token.text)
        else:
            line.items.append(_Item("", [token]))
    if len(found.args) > MAX_WORDS:
        return None
    line.items = [_item(item.name, [], True) if normal(item.name) in SECRET_OPTIONS else item for item in line.items]
    return line


_REFERENCE = re.compile(r"\$\{?\w{1,100}\}?|hf_\.\.\.")
_NAMED = re.compile(r"((?:-e|--env=)?([A-Za-z_][A-Za-z0-9_]{0,100})=)(.+)", re.DOTALL)


def _hide(tokens: list[Token]) -> None:
    """Replaces the values of secret variables; a reference to one (`$HF_TOKEN`), or our own `hf_...`, is none."""
    for index, token in enumerate(tokens):
        match = _NAMED.fullmatch(token.text) if token.kind == "word" else None
        if match and SECRET_VARIABLE.search(match[2]) and not _REFERENCE.fullmatch(match[3]):
            tokens[index] = word(f"{match[1]}***", f"{match[1]}***")


def _knob(name: str, catalog: Catalog, release: str) -> Knob | None:
    """The option that the release takes `name` for, abbreviations included."""
    if not name:
        return None
    found = catalog.option(name, release)
    if found is None and "." not in name:
        targets = {catalog.option(each, release) for each in catalog.abbreviations(name, release)}
        found = targets.pop() if len(targets) == 1 else None
    return found


def _wants(item: _Item, catalog: Catalog, release: str) -> bool:
    """Whether an option still takes a word. One that the release doesn't know takes one."""
    knob = _knob(item.name, catalog, release)
    if knob is None:
        return not item.values and re.match(r"-O\S", item.name) is None
    if not knob.takes_value:
        return False
    return not item.values or knob.type.endswith(("+", "*"))


def _apply(line: _Line, knob: str, value: str | None, direction: int, catalog: Catalog, release: str) -> Change | None:
    """Puts one setting into the line, in place of every one of its kind. None, and nothing done, where that would be no
    better than what stands there: the same value, or one on the wrong side of it."""
    if not knob.startswith("-"):
        held = line.line.variables().get(knob)
        if held is not None and _no_better(held, value or "", direction):
            return None
        return Change(knob, line.line.set_variable(knob, value or ""), value or "")
    target = catalog.option(knob, release)
    several = target is not None and target.type.endswith(("+", "*"))
    words = [] if value is None else value.split() if several else [value]
    same = [item for item in line.items if item.name and _is_same(item.name, knob, target, catalog, release)]
    if not same:
        last = max((index for index, item in enumerate(line.items) if _ends_arguments(item)), default=-1)
        line.items.insert(last + 1, _item(knob, words))
        return Change(knob, None, " ".join(words) or None)
    whole = [item for item in same if "." not in item.name]
    before = " ".join(whole[-1].values) or whole[-1].name if whole else _spelled(same)
    if target is not None and target.json and value is not None:
        words = [_merged(whole[-1].values[0] if whole and whole[-1].values else "{}", value, same)]
    elif whole and _no_better(before, " ".join(words), direction):
        return None
    place = line.items.index(same[0])
    line.items = [item for item in line.items if item not in same]
    line.items.insert(place, _item(knob, words))
    return Change(knob, before, " ".join(words) or None)


def _is_same(name: str, knob: str, target: Knob | None, catalog: Catalog, release: str) -> bool:
    if "." in name and (target is None or not target.json or name.endswith("+")):
        return False
    other = _knob(name, catalog, release)
    return normal(name) == normal(knob) or (target is not None and other is not None and target.name == other.name)


def _ends_arguments(item: _Item) -> bool:
    return bool(item.name) or item.tokens[0].kind == "word"


def _spelled(items: list[_Item]) -> str:
    return " ".join(part for item in items for part in (item.name, *item.values))


def _no_better(before: str, after: str, direction: int) -> bool:
    """Whether a change leads nowhere, or away from where its remedy wants to go."""
    old, new = number(before), number(after)
    if old is None or new is None:
        return before == after
    # -1 and 0 are words for "automatic" or "no limit".
    return new == old or (direction != 0 and old > 0 and (new - old) * direction < 0)


def _merged(before: str, added: str, items: Sequence[_Item] = ()) -> str:
    """Two JSON objects as one, the added keys winning, with the dotted options (`--x.key value`) of `items` between; the
    added one alone when the first is none."""
    try:
        first, second = json.loads(before), json.loads(added)
    except ValueError:
        return added
    if not isinstance(first, dict) or not isinstance(second, dict):
        return added
    for item in items:
        _, dot, path = item.name.partition(".")
        if not dot or not item.values:
            continue
        mapping = first
        *outer, key = path.split(".")
        for part in outer:
            inner = mapping.get(part)
            mapping[part] = inner if isinstance(inner, dict) else {}
            mapping = mapping[part]
        mapping[key] = _json_value(item.values[0])
    return json.dumps({**first, **second}, ensure_ascii=False)


def _json_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
