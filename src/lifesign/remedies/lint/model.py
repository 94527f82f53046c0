"""What lint reads and what it finds: an invocation of vLLM with its places, and problems with a fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from lifesign.text import Lang, T

Severity = Literal["error", "warning", "note"]
"""error: vLLM refuses it, or it can't do what it is meant for. warning: it acts otherwise than it looks. note: good to
know."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Code(msgspec.Struct, frozen=True):
    """A kind of problem: stable id and short title."""

    id: str
    title: T


CODES: dict[str, Code] = {
    code.id: code
    for code in (
        Code("invented-name", T("a name that no release has", "任何版本都没有的名字")),
        Code("unknown-option", T("an option that this release doesn't have", "该版本没有的选项")),
        Code("removed-option", T("an option that was removed", "已移除的选项")),
        Code("future-option", T("an option of later releases", "以后版本才有的选项")),
        Code("abbreviated-option", T("an abbreviated option", "缩写的选项")),
        Code("taken-for-another", T("an option that is taken for another one", "会被当成另一个选项")),
        Code("deprecated-option", T("a deprecated option", "已弃用的选项")),
        Code("changed-meaning", T("same spelling, other meaning in this release", "写法相同，该版本含义不同")),
        Code("missing-value", T("an option without its value", "选项缺少值")),
        Code("wrong-type", T("a value of the wrong type", "值的类型不对")),
        Code("out-of-range", T("a number that is too small or too large", "数字过小或过大")),
        Code("bad-json", T("a value that isn't JSON", "值不是合法 JSON")),
        Code("unknown-json-key", T("a JSON key that this release doesn't have", "该版本没有的 JSON 键")),
        Code("unknown-variable", T("a VLLM_ variable that this release doesn't know", "该版本不认识的 VLLM_ 变量")),
        Code("removed-variable", T("a variable that was removed", "已移除的变量")),
        Code("future-variable", T("a variable of later releases", "以后版本才有的变量")),
        Code("unread-variable", T("a variable that nothing reads", "没有任何代码读取的变量")),
        Code("no-effect", T("a setting without effect", "没有作用的设置")),
        Code("misspelt-variable", T("a variable that looks misspelt", "疑似拼写错误的变量")),
        Code("unknown-argument", T("an engine argument that this release doesn't have", "该版本没有的引擎参数")),
        Code("contradiction", T("settings that contradict each other", "相互矛盾的设置")),
        Code("trap", T("a combination that is known to fail", "已知会出问题的组合")),
        Code("typographic-dash", T("a dash that isn't a hyphen", "不是连字符的破折号")),
        Code("value-on-flag", T("a value on an option that takes none", "不带值的选项给了值")),
        Code("stray-word", T("a word that belongs to no option", "不属于任何选项的词")),
        Code("one-word", T("option and value in one word", "选项和值写成了一个词")),
    )
}


class Word(msgspec.Struct, frozen=True):
    """One word of a command, where it stands. literal: false when a shell or template would still change it.

    breaks: offsets in the text at which a line of the file ended and was joined, for words that are scripts themselves.
    """

    text: str
    line: int
    literal: bool = True
    breaks: tuple[int, ...] = ()


class Setting(msgspec.Struct, frozen=True):
    """One variable being set."""

    name: str
    value: str
    line: int
    literal: bool = True


class Invocation(msgspec.Struct):
    """One start of vLLM as a file or a command line describes it.

    words: the arguments after `vllm serve` (or of the image's entry point). settings: variables in its environment.
    arguments: keyword arguments of `LLM(...)` or an engine-args class. image_version: the vLLM release that the
    container image or the package asked for names, if one does. complete: false when words come from places that lint can't see (variables).
    by_serve: whether it is `vllm serve`, which takes the model as its first word.
    """

    path: str
    line: int
    words: list[Word] = msgspec.field(default_factory=list)
    settings: list[Setting] = msgspec.field(default_factory=list)
    arguments: list[Setting] = msgspec.field(default_factory=list)
    image_version: str = ""
    complete: bool = True
    by_serve: bool = False


class Problem(msgspec.Struct, frozen=True):
    """One finding. name: the knob as written. rights: right settings as one types them, each of them enough."""

    severity: Severity
    code: str
    path: str
    line: int
    name: str
    message: T
    rights: tuple[str, ...] = ()
    source: str = ""

    @property
    def instead(self) -> str:
        """What to write instead, in English; empty when there is nothing."""
        return " or ".join(self.rights)

    def instead_in(self, lang: Lang) -> str:
        """What to write instead, for a reader of this language."""
        return T(" or ", " 或 ").pick(lang).join(self.rights)

    def sort_key(self) -> tuple[str, int, int, str, str]:
        """File order; within a line the worst first."""
        return self.path, self.line, SEVERITIES.index(self.severity), self.name, self.code


class Report(msgspec.Struct):
    """The answer of one run. release: which catalogued release answered; basis: why that one (for the reader)."""

    problems: list[Problem] = msgspec.field(default_factory=list)
    release: str = ""
    version: str = ""
    basis: T | None = None
    checked: int = 0
    notes: list[T] = msgspec.field(default_factory=list)

    def count(self, severity: Severity) -> int:
        """How many problems have this severity."""
        return sum(problem.severity == severity for problem in self.problems)

    def failing(self) -> bool:
        """Whether there is anything worse than a note."""
        return any(problem.severity != "note" for problem in self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)
