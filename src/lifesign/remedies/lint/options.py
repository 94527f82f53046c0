"""Rules for options: does the release's parser have it, does it mean what it looks like, is its value fit?"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lifesign.remedies import overlay, versions
from lifesign.remedies.apply import spelled
from lifesign.remedies.catalog import Catalog, Knob, normal
from lifesign.remedies.lint.model import Invocation, Problem, Severity, Word
from lifesign.text import T, is_whole

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?")
_HUMAN = re.compile(r"\d+(?:\.\d+)?[kKmMgGtT]")
HUMAN_SINCE: dict[str, str] = {
    "--max-model-len": "0.8.5",
    "--max-num-batched-tokens": "0.9.1",
    "--kv-cache-memory-bytes": "0.10.2",
    "--max-num-scheduled-tokens": "0.20.0",
    "--max-num-queued-tokens": "0.20.0",
    "--safetensors-prefetch-block-size": "0.20.0",
}
"""Options that take `2k`, `1M` ... and since when (real parsers)."""
AUTO_SINCE: dict[str, str] = {"--max-model-len": "0.14.0"}
"""Options that take `auto`, and since when (real parsers)."""
LEVELS = ("0", "1", "2", "3")


@dataclass(frozen=True, slots=True)
class Used:
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

    def problems(self) -> Iterator[Problem]:
        """Every problem of the words, in order."""
        words = self.invocation.words
        index = 0
        while index < len(words):
            word = words[index]
            index += 1
            if not self._is_option(word.text):
                continue
            name, equals, text = word.text.partition("=")
            if " " in name.strip() or "\n" in name.strip():
                yield from self._one_word(word)
                continue
            if re.fullmatch(r"-O(?:=|\.|\d).*", word.text):
                yield from self._optimisation(word)
                continue
            value = Word(text, word.line, word.literal) if equals else None
            knob = self.catalog.option(name, self.release)
            follows = index < len(words) and not self._is_option(words[index].text)
            if value is None and follows and (knob is None or knob.takes_value):
                value = words[index]
                index += 1
            if knob is None:
                yield from self._unknown(word, name, value)
            else:
                yield from self._known(word, name, knob, value)

    def _is_option(self, text: str) -> bool:
        return text.startswith("-") and text not in ("-", "--") and _NUMBER.fullmatch(text) is None

    def _problem(
        self, severity: Severity, code: str, word: Word, name: str, message: T, instead: str = "", source: str = ""
    ) -> Problem:
        return Problem(severity, code, self.invocation.path, word.line, name, message, instead, source)

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
                right = self._instead(entry.rights, value)
                yield self._problem("error", "invented-name", word, name, message, right, entry.source)
            return
        if plain == "--model":
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
            yield self._problem("warning", "abbreviated-option", word, name, message, prefixes[0], "argparse")
        elif prefixes:
            listed = ", ".join(prefixes[:4])
            message = T(f"ambiguous: could be {listed}; vLLM refuses it", f"有歧义：可能是 {listed}；vLLM 会拒绝")
            yield self._problem("error", "unknown-option", word, name, message, "", "argparse")
        else:
            yield self._stranger(word, name)

    def _other_release(
        self,
        word: Word,
        name: str,
        value: Word | None,
        removed: overlay.Renamed | None,
        ranges: str,
        prefixes: list[str],
    ) -> Iterator[Problem]:
        spell = self.catalog.spelled(ranges) if ranges else ""
        instead = self._instead(removed.rights, value) if removed is not None else ""
        source = removed.source if removed is not None else "parsers of the catalogued releases"
        if len(prefixes) == 1:
            message = T(
                f"{self.release} silently takes it for {prefixes[0]}, which means something else (the option itself: {spell})",
                f"{self.release} 会悄悄把它当成含义不同的 {prefixes[0]}（该选项本身：{spell}）",
            )
            yield self._problem("error", "taken-for-another", word, name, self._with(message, removed), instead, source)
            return
        future = bool(ranges) and self._is_future(ranges)
        if future:
            message = T(f"not in {self.release} yet: {spell}", f"{self.release} 还没有：{spell}")
            yield self._problem("error", "future-option", word, name, message, instead, source)
            return
        where = f" ({spell})" if spell else ""
        message = T(f"not in {self.release} any more{where}", f"{self.release} 已没有这个选项{where}")
        yield self._problem("error", "removed-option", word, name, self._with(message, removed), instead, source)

    def _is_future(self, ranges: str) -> bool:
        first, _ = self.catalog.span(ranges)
        return (versions.key(first) or ()) > (versions.key(self.release) or ())

    def _with(self, message: T, removed: overlay.Renamed | None) -> T:
        if removed is None:
            return message
        return T(f"{message.en}: {removed.why.en}", f"{message.zh}：{removed.why.zh}")

    def _stranger(self, word: Word, name: str) -> Problem:
        names = self.catalog.option_names(self.release)
        close = difflib.get_close_matches(normal(name), names, n=1, cutoff=0.72)
        message = T(f"vLLM {self.release} has no such option", f"vLLM {self.release} 没有这个选项")
        return self._problem(
            "error",
            "unknown-option",
            word,
            name,
            message,
            close[0] if close else "",
            "parsers of the catalogued releases",
        )

    def _instead(self, rights: tuple[overlay.Right, ...], value: Word | None) -> str:
        return instead(rights, self.release, value.text if value is not None and value.literal else "")

    # -- options of the release ----------------------------------------------------------------------------------------

    def _known(self, word: Word, name: str, knob: Knob, value: Word | None) -> Iterator[Problem]:
        self.used.append(Used(word, knob, value))
        if knob.deprecated:
            removed = overlay.renamed(knob.name)
            message = T("deprecated in this release", "在该版本中已弃用")
            rights = removed.rights if removed is not None else ()
            yield self._problem(
                "note", "deprecated-option", word, name, self._with(message, removed), self._instead(rights, value)
            )
        if name == "-O" and value is not None and value.text in LEVELS:
            yield from self._level(word, value.text)
            return
        if knob.takes_value and value is None and not knob.type.endswith(("?", "*")):
            if self.invocation.complete:
                yield self._problem("error", "missing-value", word, name, T("needs a value", "需要一个值"))
            return
        if value is None or not value.literal:
            return
        dotted = "." in name
        if dotted:
            yield from self._dotted(word, name, knob)
        elif knob.takes_value:
            yield from self._value(word, name, knob, value)

    def _value(self, word: Word, name: str, knob: Knob, value: Word) -> Iterator[Problem]:
        kind = knob.type.rstrip("?*+")
        text = value.text.strip()
        if kind == "json":
            yield from self._json(value, name, knob, text)
            return
        if text.lower() == "auto" and knob.name in AUTO_SINCE:
            since = AUTO_SINCE[knob.name]
            if versions.at_least(self.release, since) is False:
                message = T(f"`auto` is accepted from {since} on", f"{since} 起才接受 `auto`")
                yield self._problem("error", "wrong-type", value, name, message)
            return
        if _HUMAN.fullmatch(text) and knob.name in HUMAN_SINCE:
            since = HUMAN_SINCE[knob.name]
            if versions.at_least(self.release, since) is False:
                message = T(
                    f"`{text}` is accepted from {since} on: write the number out",
                    f"{since} 起才接受 `{text}`：请写完整数字",
                )
                yield self._problem("error", "wrong-type", value, name, message)
            return
        number = _NUMBER.fullmatch(text)
        whole = number is not None and "." not in text and "e" not in text.lower()
        bad = (kind == "int" and not whole) or (kind == "float" and number is None)
        if bad and text.lower() != "none" and not knob.type.endswith(("+", "*")):
            wanted = T("a whole number", "整数") if kind == "int" else T("a number", "数字")
            message = T(f"takes {wanted.en}, not `{text[:60]}`", f"要填{wanted.zh}，而不是 `{text[:60]}`")
            yield self._problem("error", "wrong-type", value, name, message)
        elif knob.name == "--gpu-memory-utilization" and number is not None and not 0 < float(text) <= 1:
            message = T("is a share of the GPU: above 0, at most 1", "是显存份额：大于 0、不超过 1")
            yield self._problem("error", "wrong-type", value, name, message)

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def _json(self, value: Word, name: str, knob: Knob, text: str) -> Iterator[Problem]:
        if is_whole(text) or text.lower() == "none" or (knob.name == "--limit-mm-per-prompt" and "=" in text):
            return
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            message = T(
                f"`{text[:60]}` isn't valid JSON (put single quotes round it, so that the shell keeps the double ones)",
                f"`{text[:60]}` 不是合法 JSON（外面用单引号包住，避免 shell 去掉双引号）",
            )
            yield self._problem("error", "bad-json", value, name, message)
            return
        if knob.json and isinstance(parsed, dict) and knob.name not in overlay.FREE_JSON:
            yield from self._keys(value, name, knob, parsed)

    def _keys(self, where: Word, name: str, knob: Knob, parsed: dict[str, object]) -> Iterator[Problem]:
        pending: list[tuple[dict[str, object], str, str]] = [(parsed, knob.json, "")]
        while pending:
            mapping, group, prefix = pending.pop()
            known = self.catalog.json_keys(group, self.release)
            if known is None:
                continue
            for key, inner in mapping.items():
                if key not in known:
                    yield self._unknown_key(where, name, knob, group, prefix + str(key), known)
                elif known[key] and isinstance(inner, dict):
                    pending.append((inner, known[key], f"{prefix}{key}."))

    def _unknown_key(self, where: Word, name: str, knob: Knob, group: str, path: str, known: dict[str, str]) -> Problem:
        key = path.rpartition(".")[2]
        ranges = self.catalog.json_ranges(group, key)
        lenient = self.catalog.inside(overlay.lenient(knob.name), self.release)
        close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
        when = f" ({self.catalog.spelled(ranges)})" if ranges else ""
        fate = T("silently ignored", "会被悄悄忽略") if lenient else T("refused", "会被拒绝")
        message = T(
            f"no key `{path}` in {self.release}{when}: it is {fate.en}",
            f"{self.release} 没有 `{path}` 这个键{when}：{fate.zh}",
        )
        better = "--enforce-eager" if key == "cudagraph_mode" and ranges else close[0] if close else ""
        return self._problem(
            "error", "unknown-json-key", where, name, message, better, "dataclass fields of the release"
        )

    def _dotted(self, word: Word, name: str, knob: Knob) -> Iterator[Problem]:
        if not knob.json or knob.name in overlay.FREE_JSON:
            return
        group = knob.json
        parts = name.partition(".")[2].rstrip("+").split(".")
        for index, part in enumerate(parts):
            known = self.catalog.json_keys(group, self.release)
            if known is None:
                return
            if part not in known:
                yield self._unknown_key(word, name.partition(".")[0], knob, group, ".".join(parts[: index + 1]), known)
                return
            group = known[part]
            if not group:
                return

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
            yield self._problem(
                "error", "changed-meaning", word, word.text, message, right, "parsers of 0.12.0 and 0.13.0"
            )
            return
        knob = self.catalog.option("--compilation-config", self.release)
        if knob is not None:
            yield from self._dotted(word, f"--compilation-config.{key}", knob)

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
                "parsers of 0.11.2 and 0.12.0",
            )


def instead(rights: tuple[overlay.Right, ...], release: str, value: str) -> str:
    """What to write in `release` instead, joined with `or`; empty when that release has nothing."""
    texts: list[str] = []
    for right in rights:
        if right.knob and versions.within(release, right.since, right.until):
            filled = right.value.replace("{value}", value or "VALUE") if right.value is not None else None
            texts.append(spelled(right.knob, filled))
    return " or ".join(texts)


def with_notes(message: T, rights: tuple[overlay.Right, ...], release: str) -> T:
    """`message` with what the rights have to say about `release` (that it has no knob for this, say)."""
    for right in rights:
        if right.note is not None and not right.knob and versions.within(release, right.since, right.until):
            message = T(f"{message.en}; {right.note.en}", f"{message.zh}；{right.note.zh}")
    return message
