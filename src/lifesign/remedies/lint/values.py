"""Rules for the values of options: numbers, ranges, choices, and JSON with its keys."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence

from lifesign.remedies import overlay, versions
from lifesign.remedies.catalog import Catalog, Knob
from lifesign.remedies.lint.model import Problem, Severity, Word
from lifesign.text import T, is_whole

NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
"""What Python's float() takes, of what people write."""
WHOLE = re.compile(r"[-+]?\d+(?:_\d+)*", re.ASCII)
"""What Python's int() takes."""
_HUMAN = re.compile(r"\d+(?:\.\d+)?[kKmMgGtT]", re.ASCII)
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


class Values:
    """Checks values for one release; `path` is where they stand."""

    def __init__(self, path: str, catalog: Catalog, release: str) -> None:
        self.path = path
        self.catalog = catalog
        self.release = release

    def problem(
        self, severity: Severity, code: str, word: Word, name: str, message: T, *rights: str, source: str = ""
    ) -> Problem:
        """A finding at a word."""
        return Problem(severity, code, self.path, word.line, name, message, tuple(r for r in rights if r), source)

    def check(self, name: str, knob: Knob, values: Sequence[Word]) -> Iterator[Problem]:
        """Every problem of the words given to an option that takes a value."""
        if knob.name in overlay.WHOLE_LISTS and knob.type.endswith("+"):
            yield from self._whole_list(name, values)
            return
        value, kind, text = values[0], knob.type.rstrip("?*+"), values[0].text.strip()
        if kind == "json":
            yield from self.json(value, name, knob, text)
            return
        if text.lower() == "auto" and knob.name in AUTO_SINCE:
            since = AUTO_SINCE[knob.name]
            if versions.at_least(self.release, since) is False:
                message = T(f"`auto` is accepted from {since} on", f"{since} 起才接受 `auto`")
                yield self.problem("error", "wrong-type", value, name, message)
            return
        if _HUMAN.fullmatch(text) and knob.name in HUMAN_SINCE:
            yield from self._human(value, name, knob, text)
            return
        number = NUMBER.fullmatch(text) is not None
        bad = (kind == "int" and WHOLE.fullmatch(text) is None) or (kind == "float" and not number)
        if bad and text.lower() != "none" and not knob.type.endswith(("+", "*")):
            yield self._not_a_number(
                value, name, T("a whole number", "整数") if kind == "int" else T("a number", "数字")
            )
        elif number:
            yield from self._range(value, name, knob, float(text))

    def _whole_list(self, name: str, values: Sequence[Word]) -> Iterator[Problem]:
        for value in values:
            if value.literal and WHOLE.fullmatch(value.text.strip()) is None:
                message = T(
                    f"takes whole numbers with blanks between them, not `{value.text[:60]}`",
                    f"要填用空格分开的整数，而不是 `{value.text[:60]}`",
                )
                parts = value.text.strip("[] ").split(",")
                right = " ".join((name, *parts)) if all(is_whole(part) for part in parts) else ""
                yield self.problem("error", "wrong-type", value, name, message, right)
                return

    def _not_a_number(self, value: Word, name: str, wanted: T) -> Problem:
        text = value.text.strip()[:60]
        message = T(f"takes {wanted.en}, not `{text}`", f"要填{wanted.zh}，而不是 `{text}`")
        return self.problem("error", "wrong-type", value, name, message)

    def _human(self, value: Word, name: str, knob: Knob, text: str) -> Iterator[Problem]:
        since = HUMAN_SINCE[knob.name]
        if versions.at_least(self.release, since) is False:
            message = T(
                f"`{text}` is accepted from {since} on: write the number out",
                f"{since} 起才接受 `{text}`：请写完整数字",
            )
            yield self.problem("error", "wrong-type", value, name, message)
        elif "." in text and text[-1].isupper() and versions.at_least(self.release, "0.19.1"):
            message = T(
                f"`{text}`: a decimal point goes with k, m, g, t only, not with {text[-1]}",
                f"`{text}`：带小数点时只能用小写 k、m、g、t，不能用 {text[-1]}",
            )
            source = "human_readable_int, vLLM 0.19.1 to 0.32.0"
            yield self.problem("error", "wrong-type", value, name, message, f"{name} {text.lower()}", source=source)

    def _range(self, value: Word, name: str, knob: Knob, number: float) -> Iterator[Problem]:
        if knob.name == "--gpu-memory-utilization":
            if not 0 < number <= 1:
                message = T("is a share of the GPU: above 0, at most 1", "是显存份额：大于 0、不超过 1")
                yield self.problem("error", "wrong-type", value, name, message)
            return
        bounds = overlay.BOUNDS.get(knob.name)
        if bounds is None or bounds.low <= number <= bounds.high:
            return
        message = T(f"must be at least {bounds.low}, not {number:g}", f"至少是 {bounds.low}，而不是 {number:g}")
        if number > bounds.high:
            message = T(f"must be at most {bounds.high}, not {number:g}", f"最大是 {bounds.high}，而不是 {number:g}")
        yield self.problem("error", "out-of-range", value, name, message, source=bounds.source)

    # -- JSON ----------------------------------------------------------------------------------------------------------

    def json(self, value: Word, name: str, knob: Knob, text: str) -> Iterator[Problem]:
        """Every problem of a value that is to be JSON."""
        if is_whole(text) or text.lower() == "none" or (knob.name == "--limit-mm-per-prompt" and "=" in text):
            return
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            message = T(
                f"`{text[:60]}` isn't valid JSON (put single quotes round it, so that the shell keeps the double ones)",
                f"`{text[:60]}` 不是合法 JSON（外面用单引号包住，避免 shell 去掉双引号）",
            )
            yield self.problem("error", "bad-json", value, name, message)
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
                else:
                    yield from self._choice(where, name, group, key, inner)

    def _choice(self, where: Word, name: str, group: str, key: str, value: object) -> Iterator[Problem]:
        choices = overlay.KEY_CHOICES.get((group, key))
        if choices is None or not isinstance(value, str) or not versions.at_least(self.release, choices.releases[0]):
            return
        if value.upper() in choices.names or value in choices.others:
            return
        listed = ", ".join(choices.names)
        close = difflib.get_close_matches(value.upper(), choices.names, n=1, cutoff=0.6)
        message = T(f"`{key}` takes {listed}, not `{value[:60]}`", f"`{key}` 可取 {listed}，而不是 `{value[:60]}`")
        last = choices.releases[1]
        severity: Severity = "error"
        if not versions.within(self.release, None, last):
            severity = "warning"
            message = T(
                f"{message.en} (in {last}, the last release that was read)",
                f"{message.zh}（以核对过的最后一版 {last} 为准）",
            )
        yield self.problem(severity, "wrong-type", where, name, message, *close, source=choices.source)

    def _unknown_key(self, where: Word, name: str, knob: Knob, group: str, path: str, known: dict[str, str]) -> Problem:
        key = path.rpartition(".")[2]
        ranges = self.catalog.json_ranges(group, key)
        lenient = self.catalog.inside(overlay.lenient(knob.name), self.release)
        spell = self.catalog.spelled(ranges) if ranges else T("", "")
        fate = T("silently ignored", "会被悄悄忽略") if lenient else T("refused", "会被拒绝")
        message = T(
            f"no key `{path}` in {self.release}{f' ({spell.en})' if ranges else ''}: it is {fate.en}",
            f"{self.release} 没有 `{path}` 这个键{f'（{spell.zh}）' if ranges else ''}：{fate.zh}",
        )
        renamed = [new for new in overlay.other_keys(group, key) if new in known or new.startswith("--")]
        close = renamed[:1] or difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
        return self.problem(
            "error", "unknown-json-key", where, name, message, *close, source="dataclass fields of the release"
        )

    def dotted(self, word: Word, name: str, knob: Knob, value: Word | None) -> Iterator[Problem]:
        """Every problem of `--option.key.key VALUE`."""
        if not knob.json or knob.name in overlay.FREE_JSON:
            return
        group = knob.json
        parts = name.partition(".")[2].rstrip("+").split(".")
        for index, part in enumerate(parts):
            known = self.catalog.json_keys(group, self.release)
            if known is None:
                return
            if part not in known:
                option = name.partition(".")[0]
                yield self._unknown_key(word, option, knob, group, ".".join(parts[: index + 1]), known)
                return
            if value is not None and value.literal and index == len(parts) - 1:
                yield from self._choice(value, name, group, part, value.text)
            group = known[part]
            if not group:
                return
