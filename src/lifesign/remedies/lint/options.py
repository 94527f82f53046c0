"""Rules for options: does the release's parser have it, does it mean what it looks like, is its value fit?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

import msgspec

from lifesign.remedies import overlay, versions
from lifesign.remedies.apply import spelled
from lifesign.remedies.catalog import Catalog, Knob, normal
from lifesign.remedies.lint.commands import DASHES
from lifesign.remedies.lint.model import Invocation, Problem, Word
from lifesign.remedies.lint.values import NUMBER, Values
from lifesign.text import T

LEVELS = ("0", "1", "2", "3")
TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


class Used(msgspec.Struct, frozen=True):
    """An option as the command uses it: the word, its knob, and its value (None when it has none)."""

    word: Word
    knob: Knob
    value: Word | None


class Options:
    """Checks the words of one invocation and remembers the options that are good, for the rules on combinations."""

    def __init__(self, invocation: Invocation, catalog: Catalog, release: str) -> None:
        self.invocation = invocation
        self.catalog = catalog
        self.release = release
        self.used: list[Used] = []
        self.values = Values(invocation.path, catalog, release)
        self._problem = self.values.problem
        self._models = 0
        self._doubt = False

    def problems(self) -> Iterator[Problem]:
        """Every problem of the words, in order."""
        words = self.invocation.words
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if word.text[:1] in DASHES and len(word.text) > 1:
                yield self._dash(word)
                self._doubt = True
                continue
            if not self._is_option(word.text):
                yield from self._stray(word)
                continue
            self._doubt = False
            name, equals, text = word.text.partition("=")
            if " " in name.strip() or "\n" in name.strip():
                yield from self._one_word(word)
                continue
            if re.fullmatch(r"-O(?:=|\.|\d).*", word.text):
                yield from self._optimisation(word)
                continue
            value = Word(text, word.line, word.literal) if equals else None
            knob = self.catalog.option(name, self.release)
            more: list[Word] = []
            if value is None and (knob is None or knob.takes_value):
                more = self._following(words, index, knob)
                index += len(more)
                value = more[0] if more else None
            elif value is None and knob is not None:
                flag_value = self._truth(words[index : index + 1])
                if flag_value is not None:
                    index += 1
                    yield self._value_on_flag(word, name, knob, flag_value)
            elif value is not None and knob is not None and not knob.takes_value and "." not in name:
                yield self._value_on_flag(word, name, knob, value)
                value = None
            if normal(name) == "--model":
                self._models += 1
            if knob is None:
                self._doubt = True
                yield from self._unknown(word, name, value)
            else:
                yield from self._known(word, name, knob, more or ([value] if value is not None else []))

    def _is_option(self, text: str) -> bool:
        return text.startswith("-") and text not in ("-", "--") and NUMBER.fullmatch(text) is None

    def _following(self, words: Sequence[Word], index: int, knob: Knob | None) -> list[Word]:
        """The words after an option that are its values."""
        several = knob is not None and knob.type.endswith(("+", "*")) and knob.name not in overlay.ONE_AT_A_TIME
        found: list[Word] = []
        while index < len(words) and not self._is_option(words[index].text) and words[index].text[:1] not in DASHES:
            found.append(words[index])
            index += 1
            if not several:
                break
        return found

    # -- words that belong to no option --------------------------------------------------------------------------------

    def _stray(self, word: Word) -> Iterator[Problem]:
        """The first word of this kind is the model; the parser refuses a second one."""
        if not word.literal or word.text in ("--", "...", "…", "[...]"):
            self._doubt = True  # it may stand for nothing, for several words, or for an option that wants the next one
            return
        if self._doubt or (word is self.invocation.words[0] and word.text == "serve" and not self.invocation.by_serve):
            return
        self._models += 1
        limit = 1 + (not self.invocation.by_serve and any(normal(w.text) == "--model" for w in self.invocation.words))
        if self._models > limit:
            message = T(
                "belongs to no option, and the model is given already: vLLM refuses it",
                "不属于任何选项，而模型已经给出：vLLM 会拒绝",
            )
            yield self._problem("error", "stray-word", word, word.text[:80], message, source="argparse")

    def _dash(self, word: Word) -> Problem:
        bare = word.text.lstrip(DASHES + "-")
        plain = bare.partition("=")[0]
        short = self.catalog.option("-" + plain, self.release) is not None
        message = T(
            "begins with a typographic dash, not with a hyphen: vLLM doesn't take it for an option",
            "开头是排版用的破折号，不是连字符：vLLM 不会把它当成选项",
        )
        right = ("-" if short else "--") + bare
        return self._problem("error", "typographic-dash", word, word.text[:80], message, right, source="argparse")

    def _truth(self, words: Sequence[Word]) -> Word | None:
        """The next word if it is one that people put after a switch."""
        return words[0] if words and words[0].literal and words[0].text.lower() in TRUE | FALSE else None

    def _value_on_flag(self, word: Word, name: str, knob: Knob, value: Word) -> Problem:
        text = value.text.strip().lower()
        message = T(
            f"takes no value (`{value.text[:40]}`): vLLM refuses it", f"不带值（`{value.text[:40]}`）：vLLM 会拒绝"
        )
        right = name if text in TRUE or not text else ""
        if text in FALSE and knob.type == "bool" and name.startswith("--"):
            right = knob.name if knob.negative else "--no-" + name[2:]
        return self._problem("error", "value-on-flag", word, name, message, right, source="argparse")

    # -- words that aren't options of the release ----------------------------------------------------------------------

    def _one_word(self, word: Word) -> Iterator[Problem]:
        name, _, rest = word.text.strip().partition(" ")
        if self.catalog.option(name, self.release) is not None:
            message = T(
                "option and value arrive as one word, which the parser doesn't recognise: make it two list items",
                "选项和值成了一个词，解析器不认识：拆成两个列表项",
            )
            yield self._problem("error", "one-word", word, name, message, f'"{name}", "{rest.strip()}"')

    def _unknown(self, word: Word, name: str, value: Word | None) -> Iterator[Problem]:
        plain = normal(name)
        entries = overlay.wrong(plain, "option")
        if entries:
            for entry in entries:
                message = with_notes(entry.why, entry.rights, self.release)
                rights = self._instead(entry.rights, value)
                yield self._problem("error", "invented-name", word, name, message, *rights, source=entry.source)
            return
        if plain == "--model":
            return
        alias = self.catalog.alias_elsewhere(plain, self.release)
        if alias is not None:
            yield from self._other_spelling(word, name, alias, value)
            return
        removed = overlay.renamed(plain)
        ranges = self.catalog.option_ranges(plain)
        prefixes = [] if "." in name else self.catalog.abbreviations(name, self.release)
        targets = {self.catalog.option(item, self.release) for item in prefixes}
        if ranges or removed is not None:
            yield from self._other_release(word, name, value, removed, ranges, prefixes)
        elif prefixes and len(targets) == 1:
            message = T(
                f"works only as an abbreviation of {prefixes[0]}; a later option with the same beginning breaks it",
                f"只是 {prefixes[0]} 的缩写；以后出现同前缀的选项就会失效",
            )
            yield self._problem("warning", "abbreviated-option", word, name, message, prefixes[0], source="argparse")
        elif prefixes:
            listed = ", ".join(prefixes[:4])
            message = T(f"ambiguous: could be {listed}; vLLM refuses it", f"有歧义：可能是 {listed}；vLLM 会拒绝")
            yield self._problem("error", "unknown-option", word, name, message, source="argparse")
        else:
            yield self._stranger(word, name, value)

    def _other_spelling(self, word: Word, name: str, alias: str, value: Word | None) -> Iterator[Problem]:
        plain = normal(name)
        message = T(
            f"{self.release} doesn't have this short form of {alias}", f"{self.release} 没有 {alias} 的这个缩写"
        )
        right = alias + name[len(plain) :] + (f"={value.text}" if "=" in word.text and value is not None else "")
        source = "parsers of the catalogued releases"
        yield self._problem("error", "unknown-option", word, name, message, right, source=source)
        knob = self.catalog.option(alias, self.release)
        if knob is not None and "." in name:
            yield from self.values.dotted(word, alias + name[len(plain) :], knob, value)

    def _other_release(
        self,
        word: Word,
        name: str,
        value: Word | None,
        removed: overlay.Renamed | None,
        ranges: str,
        prefixes: list[str],
    ) -> Iterator[Problem]:
        spell = self.catalog.spelled(ranges) if ranges else T("", "")
        rights = self._instead(removed.rights, value) if removed is not None else ()
        source = removed.source if removed is not None else "parsers of the catalogued releases"
        if len(prefixes) == 1:
            message = T(
                f"{self.release} silently takes it for {prefixes[0]}, which means something else (the option itself: {spell.en})",
                f"{self.release} 会悄悄把它当成含义不同的 {prefixes[0]}（该选项本身：{spell.zh}）",
            )
            whole = self._with(message, removed)
            yield self._problem("error", "taken-for-another", word, name, whole, *rights, source=source)
            return
        future = bool(ranges) and self._is_future(ranges)
        if future:
            message = T(f"not in {self.release} yet: {spell.en}", f"{self.release} 还没有：{spell.zh}")
            rights = rights or self._instead(overlay.earlier(normal(name)), value)
            yield self._problem("error", "future-option", word, name, message, *rights, source=source)
            return
        message = T(
            f"not in {self.release} any more{f' ({spell.en})' if ranges else ''}",
            f"{self.release} 已没有这个选项{f'（{spell.zh}）' if ranges else ''}",
        )
        whole = self._with(message, removed)
        yield self._problem("error", "removed-option", word, name, whole, *rights, source=source)

    def _is_future(self, ranges: str) -> bool:
        first, _ = self.catalog.span(ranges)
        return (versions.key(first) or ()) > (versions.key(self.release) or ())

    def _with(self, message: T, removed: overlay.Renamed | None) -> T:
        if removed is None:
            return message
        return T(f"{message.en}: {removed.why.en}", f"{message.zh}：{removed.why.zh}")

    def _stranger(self, word: Word, name: str, value: Word | None) -> Problem:
        plain = normal(name)
        message = T(f"vLLM {self.release} has no such option", f"vLLM {self.release} 没有这个选项")
        later = self.catalog.options_beginning(plain)
        close: list[str] = []
        if len(later) == 1:
            spell = self.catalog.spelled(self.catalog.option_ranges(later[0]))
            message = T(
                f"{message.en}; it is the beginning of {later[0]} ({spell.en})",
                f"{message.zh}；它是 {later[0]} 的开头（{spell.zh}）",
            )
        elif len(plain.lstrip("-")) > 1:
            names = self.catalog.option_names(self.release)
            close = difflib.get_close_matches(plain, names, n=4, cutoff=0.72)
        right = next((other for other in close if self._takes(other, value, "=" in word.text)), "")
        source = "parsers of the catalogued releases"
        return self._problem("error", "unknown-option", word, name, message, right, source=source)

    def _takes(self, option: str, value: Word | None, equals: bool) -> bool:
        """Whether an option could have this value: a correction to one of another type would be wrong."""
        knob = self.catalog.option(option, self.release)
        if knob is None or not knob.takes_value:
            return knob is not None and not equals
        if value is None:
            return not self.invocation.complete or knob.type.endswith(("?", "*"))
        number = NUMBER.fullmatch(value.text.strip()) is not None
        if not value.literal or knob.type.startswith("json"):
            return True
        numeric = knob.type.rstrip("?*+") in ("int", "float") or knob.name in overlay.WHOLE_LISTS
        return numeric == (number or bool(re.fullmatch(r"(?i)[\d.]+[kmgt]|auto|none", value.text.strip())))

    def _instead(self, rights: tuple[overlay.Right, ...], value: Word | None) -> tuple[str, ...]:
        return instead(rights, self.release, value.text if value is not None and value.literal else "")

    # -- options of the release ----------------------------------------------------------------------------------------

    def _known(self, word: Word, name: str, knob: Knob, values: list[Word]) -> Iterator[Problem]:
        value = values[0] if values else None
        self.used.append(Used(word, knob, value))
        if knob.deprecated:
            removed = overlay.renamed(knob.name)
            message = self._with(T("deprecated in this release", "在该版本中已弃用"), removed)
            rights = self._instead(removed.rights, value) if removed is not None else ()
            yield self._problem("note", "deprecated-option", word, name, message, *rights)
        if name == "-O" and value is not None and value.text in LEVELS:
            yield from self._level(word, value.text)
            return
        if knob.takes_value and value is None and not knob.type.endswith(("?", "*")):
            if self.invocation.complete:
                yield self._problem("error", "missing-value", word, name, T("needs a value", "需要一个值"))
            return
        if value is None or not knob.takes_value:
            return
        if "." in name:
            yield from self.values.dotted(word, name, knob, value)
        elif value.literal:
            for problem in self.values.check(name, knob, values):
                self._doubt = self._doubt or problem.code == "bad-json"  # its other words follow
                yield problem

    # -- -O ------------------------------------------------------------------------------------------------------------

    def _optimisation(self, word: Word) -> Iterator[Problem]:
        """`-O3`, `-O=3`, `-O.key=value`: compilation config to 0.11.2, optimisation level from 0.12.0 (trap 4)."""
        rest = word.text[2:].lstrip("=")
        if rest in LEVELS:
            yield from self._level(word, rest)
            return
        if not rest.startswith("."):
            return
        new = versions.at_least(self.release, "0.13.0")
        key, _, value = rest[1:].partition("=")
        if new:
            message = T(
                f"from 0.13.0 this sets the optimisation level to `{rest}`, not {key}",
                f"0.13.0 起这会把优化级别设成 `{rest}`，而不是设置 {key}",
            )
            right = f"-cc.{key}={value}" if value else f"-cc.{key}"
            source = "parsers of 0.12.0 and 0.13.0"
            yield self._problem("error", "changed-meaning", word, word.text, message, right, source=source)
            return
        knob = self.catalog.option("--compilation-config", self.release)
        if knob is not None:
            yield from self.values.dotted(
                word, f"--compilation-config.{key}", knob, Word(value, word.line, word.literal) if value else None
            )

    def _level(self, word: Word, level: str) -> Iterator[Problem]:
        if versions.at_least(self.release, "0.12.0"):
            message = T(
                f"is optimisation level {level} from 0.12.0 on; before, it was compilation level {level}",
                f"0.12.0 起表示优化级别 {level}；之前表示编译级别 {level}",
            )
            yield self._problem(
                "note",
                "changed-meaning",
                word,
                word.text,
                message,
                f"--optimization-level {level}",
                source="parsers of 0.11.2 and 0.12.0",
            )


def instead(rights: tuple[overlay.Right, ...], release: str, value: str) -> tuple[str, ...]:
    """What to write in `release` instead, each enough by itself; empty when that release has nothing."""
    texts: list[str] = []
    for right in rights:
        if right.knob and versions.within(release, right.since, right.until):
            filled = right.value.replace("{value}", value or "VALUE") if right.value is not None else None
            texts.append(spelled(right.knob, filled))
    return tuple(texts)


def with_notes(message: T, rights: tuple[overlay.Right, ...], release: str) -> T:
    """`message` with what the rights have to say about `release` (that it has no knob for this, say)."""
    for right in rights:
        if right.note is not None and not right.knob and versions.within(release, right.since, right.until):
            message = T(f"{message.en}; {right.note.en}", f"{message.zh}；{right.note.zh}")
    return message
