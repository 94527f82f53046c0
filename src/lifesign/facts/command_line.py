"""The start of vLLM inside a command: what stands before it, its arguments, and what a shell does after it.

Everything up to the start (`numactl -N 0 vllm serve`, `python -m vllm.entrypoints...`, `docker run ... IMAGE`) keeps its
spelling; only the words after it are options of vLLM. A start inside `bash -c '...'` is found there and put back in quotes.
"""

from __future__ import annotations

import os
import re
import shlex

import msgspec

from lifesign.facts.shell_words import Token, Unreadable, split
from lifesign.text import T

MAX_CHARS = 20_000
MAX_DEPTH = 4
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,100})=(.*)", re.DOTALL)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash", "ksh", "su"})
_TAKE_A_LINE = frozenset({"ssh", "eval", "tmux", "screen"})
"""Programs that hand a quoted word to a shell without `-c`."""
_ENGINES = frozenset({"docker", "podman", "nerdctl"})
_ELSEWHERE = frozenset({"sudo", "doas", "ssh", "su", "kubectl", "oc", "crictl", *_ENGINES})
"""Programs behind which a variable that stands before them isn't seen."""
_KEYWORDS = frozenset({"time", "if", "!", "then", "do", "while", "until", "else", "elif", "{"})
_BLOCKS = frozenset({"if", "for", "while", "until", "case", "function", "select", "{", "[["})
_IMAGE_FLAGS = frozenset(
    {
        "--detach", "--interactive", "--tty", "--rm", "--init", "--privileged", "--read-only", "--no-healthcheck", "--oom-kill-disable",
        "--publish-all", "--quiet", "--disable-content-trust", "--sig-proxy", "--replace", "--tls-verify", "--no-hosts", "--rmi", "--env-host",
    }
)  # fmt: skip
"""Options of `docker run` (podman, nerdctl) that take no word after them; every other one does."""
_ENGINE_VALUES = frozenset(
    {"-H", "--host", "-c", "--context", "--config", "-l", "--log-level", "-n", "--namespace", "--root"}
)
"""Options between `docker` and `run` that take a word."""
_SHORT_FLAGS = re.compile(r"-[ditqPh]{1,6}")
_PROGRAM = re.compile(r"(?:python[\d.]{0,5}|vllm|torchrun|accelerate|uvx?)")
_SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
}

_NOT_VLLM = T(
    "it starts no vLLM that lifesign recognises (`vllm serve ...`, `python -m vllm.entrypoints...`, `docker run ... VLLM_IMAGE ...`)",
    "其中没有可识别的 vLLM 启动（`vllm serve ...`、`python -m vllm.entrypoints...`、`docker run ... VLLM 镜像 ...`）",
)
_BLOCK = T("it is a script with branches or loops", "它是带分支或循环的脚本")
_MIXED = T(
    "its nested quotes mix `$` that expands with `\\$` that doesn't", "嵌套引号里混用了会展开的 `$` 和不展开的 `\\$`"
)


class Wrap(msgspec.Struct):
    """What stands round a line that is one quoted word of another: the tokens before and after that word."""

    before: list[Token]
    after: list[Token]
    live: bool


class CommandLine(msgspec.Struct):
    """One start of vLLM. before: earlier commands of the line. head: words up to the start. args: words and redirections
    after it. after: from the operator that ends it. wraps: what quotes it, outermost first. run: the place in `head`
    behind `docker run`, where options of the container go; None without a container started by this line."""

    before: list[Token] = msgspec.field(default_factory=list)
    head: list[Token] = msgspec.field(default_factory=list)
    args: list[Token] = msgspec.field(default_factory=list)
    after: list[Token] = msgspec.field(default_factory=list)
    wraps: list[Wrap] = msgspec.field(default_factory=list)
    run: int | None = None

    def text(self) -> str:
        """The whole line again, in one line."""
        text = _joined([*self.before, *self.head, *self.args, *self.after])
        for wrap in reversed(self.wraps):
            text = _joined([*wrap.before, word(text, _requoted(text, wrap.live)), *wrap.after])
        return text

    def leading(self) -> int:
        """How many variables stand in front of the program (`A=1 B=2 vllm serve`)."""
        texts = [token.text for token in self.head]
        return next((index for index, text in enumerate(texts) if not _ASSIGNMENT.fullmatch(text)), len(texts))

    def is_plain(self) -> bool:
        """Whether it is one program with its arguments, after variables at most: `vllm serve` or `python -m vllm...`."""
        program = self.head[self.leading() :][:1]
        direct = bool(program) and re.fullmatch(r"vllm|python[\d.]{0,5}", os.path.basename(program[0].text)) is not None
        redirected = any(token.kind != "word" for token in self.args)
        return direct and not (self.before or self.after or self.wraps or redirected)

    def variables(self) -> dict[str, str]:
        """The variables that the line gives to the engine, as far as they stand in it."""
        found = {name: value for _, name, value in self._exported() if "$" not in value}
        found.update({name: value for _, name, value in self._assigned() if "$" not in value})
        return found

    def settings(self) -> dict[str, object]:
        """The options as settings: keys with underscores, the last of several, values as text, True without one.

        What a shell would still expand is left out. Which options take a value isn't known here: a word that follows is one.
        """
        found: dict[str, object] = {}
        words = [token for token in self.args if token.kind == "word"]
        for index, token in enumerate(words):
            name, equals, text = token.text.partition("=")
            key = _SHORT.get(name) or (name[2:].replace("-", "_") if name.startswith("--") else "")
            if not re.fullmatch(r"[a-z][a-z0-9_]{1,60}", key):
                continue
            value = word(text) if equals else words[index + 1] if index + 1 < len(words) else None
            if value is None or (not equals and _is_option(value.text)):
                found[key] = True
            elif not (token.live if equals else value.live):
                found[key] = value.text
            else:
                found.pop(key, None)
        return found

    def model(self) -> str:
        """The model: the first argument when it is no option, else `--model`; empty when neither tells."""
        first = next((token for token in self.args if token.kind == "word"), None)
        if first is not None and not first.text.startswith("-"):
            return "" if first.live else first.text
        model = self.settings().get("model")
        return model if isinstance(model, str) else ""

    def set_variable(self, name: str, value: str) -> str | None:
        """Gives the engine a variable, in the place where it is set already or where it reaches the engine; its value before."""
        before = None
        for tokens, places in ((self.before, self._exported()), (self.head, self._assigned())):
            for index, known, held in places:
                if known == name:
                    before = held
                    lead = tokens[index].text[: -len(f"{name}={held}")]
                    tokens[index] = word(f"{lead}{name}={value}", f"{lead}{name}={shlex.quote(value)}")
        if before is None:
            self._insert_variable(word(f"{name}={value}", f"{name}={shlex.quote(value)}"))
        return before

    def _insert_variable(self, token: Token) -> None:
        if self.run is not None:
            self.head[self.run : self.run] = [word("-e"), token]
            return
        assigned = self._assigned()
        names = [os.path.basename(each.text) for each in self.head]
        free = [at for at, _, _ in assigned if at == 0 or not _takes_word(self.head[at - 1].text)]
        if free and not _ELSEWHERE & set(names):
            self.head.insert(free[-1] + 1, token)
        elif (_ELSEWHERE | {"env"}) & set(names):
            program = [index for index, name in enumerate(names) if _PROGRAM.fullmatch(name)]
            place = program[-1] if program else 0
            self.head[place:place] = [word("env"), token]
        else:
            place = next((index for index, name in enumerate(names) if name not in _KEYWORDS), 0)
            self.head.insert(place, token)

    def _assigned(self) -> list[tuple[int, str, str]]:
        """Variables in the head that reach the engine: (place, name, value)."""
        found = []
        for index, token in enumerate(self.head):
            text = token.text
            if self.run is not None:
                if index < self.run:
                    continue
                before = self.head[index - 1].text
                lead = next((each for each in ("--env=", "-e") if text.startswith(each) and len(text) > len(each)), "")
                if not lead and before not in ("-e", "--env"):
                    continue
                text = text[len(lead) :]
            match = _ASSIGNMENT.fullmatch(text)
            if match:
                found.append((index, match[1], match[2]))
        return found

    def _exported(self) -> list[tuple[int, str, str]]:
        """Variables that an earlier command of the line exports; none where a container doesn't see them."""
        found: list[tuple[int, str, str]] = []
        if self.run is not None:
            return found
        exporting = False
        for index, token in enumerate(self.before):
            starts = index == 0 or self.before[index - 1].kind == "end"
            exporting = token.text == "export" if starts else exporting
            match = _ASSIGNMENT.fullmatch(token.text) if exporting and token.kind == "word" else None
            if match:
                found.append((index, match[1], match[2]))
        return found


_AMOUNT = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([kKmMgG])")
_TIMES = {"k": 10**3, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}


def number(text: str) -> float | None:
    """A number as vLLM's options take it: `256`, `0.9`, `8k` (8,000), `8K` (8,192); None for other texts."""
    amount = _AMOUNT.fullmatch(text)
    if amount:
        return float(amount[1]) * _TIMES[amount[2]]
    try:
        return float(text) if len(text) <= 40 and text.isascii() and "_" not in text else None
    except ValueError:
        return None


def word(text: str, raw: str | None = None) -> Token:
    """A word as a shell takes it; quoted unless its spelling is given."""
    return Token("word", text, shlex.quote(text) if raw is None else raw)


def read(text: str) -> CommandLine:
    """The start of vLLM in a command. Raises Unreadable when there is none, or when it can't be taken apart safely."""
    found = _find(text[:MAX_CHARS], 0)
    if found is None:
        raise Unreadable(_NOT_VLLM)
    return found


def read_or_none(text: str) -> CommandLine | None:
    """As `read`, with None instead of an error."""
    try:
        return read(text)
    except Unreadable:
        return None


def _find(text: str, depth: int) -> CommandLine | None:
    tokens = split(text)
    _one_line(tokens)
    begin = 0
    for index in range(len(tokens) + 1):
        if index < len(tokens) and tokens[index].kind != "end":
            continue
        found = _in_command(tokens, begin, index, depth)
        if found is not None:
            return found
        begin = index + 1
    return None


def _one_line(tokens: list[Token]) -> None:
    """Makes new lines between commands semicolons, in place. Raises Unreadable where that would be another program."""
    if not any(token.raw == "\n" for token in tokens):
        return
    if any(
        token.text in _BLOCKS for index, token in enumerate(tokens) if index == 0 or tokens[index - 1].kind == "end"
    ):
        raise Unreadable(_BLOCK)
    for index, token in reversed(list(enumerate(tokens))):
        if token.raw != "\n":
            continue
        neighbours = [*tokens[max(0, index - 1) : index], *tokens[index + 1 : index + 2]]
        if len(neighbours) < 2 or any(each.kind == "end" for each in neighbours):
            del tokens[index]
        else:
            tokens[index] = Token("end", ";", ";")


def _in_command(tokens: list[Token], begin: int, end: int, depth: int) -> CommandLine | None:
    """The start in the simple command `tokens[begin:end]`; None when it has none."""
    places = [index for index in range(begin, end) if tokens[index].kind == "word"]
    texts = [tokens[index].text for index in places]
    inner = _quoted_line(tokens, places, texts, depth)
    if inner is not None:
        return inner
    image, run = _container(texts)
    start = _start(texts, image)
    if start is None:
        return None
    at = places[start - 1] + 1
    behind = places[run] - begin if run is not None and run < start else None
    return CommandLine(tokens[:begin], tokens[begin:at], tokens[at:end], tokens[end:], [], behind)


def _quoted_line(tokens: list[Token], places: list[int], texts: list[str], depth: int) -> CommandLine | None:
    """The start in a word that a shell gets as a line (`bash -c '...'`), with what stands round it."""
    names = [os.path.basename(text) for text in texts]
    for index in range(1, len(texts)):
        before = names[:index]
        after_c = re.fullmatch(r"-[a-z]{0,4}c", texts[index - 1]) is not None
        taken = (after_c and _SHELLS & set(before)) or _TAKE_A_LINE & set(before)
        if not taken or depth >= MAX_DEPTH or " " not in texts[index]:
            continue
        try:
            inner = _find(texts[index], depth + 1)
        except Unreadable:
            if "vllm" not in texts[index]:
                continue
            raise
        if inner is None:
            continue
        token = tokens[places[index]]
        if token.live and "\\" in token.raw:
            raise Unreadable(_MIXED)
        wrap = Wrap(tokens[: places[index]], tokens[places[index] + 1 :], token.live)
        inner.wraps.insert(0, wrap)
        return inner
    return None


def _container(texts: list[str]) -> tuple[int | None, int | None]:
    """Of `docker run [options] IMAGE ...`: the places of the image and of the first word behind `run`."""
    engine = next((index for index, text in enumerate(texts) if os.path.basename(text) in _ENGINES), None)
    if engine is None:
        return None, None
    run = engine + 1
    while run < len(texts) and (texts[run].startswith("-") or texts[run] == "container"):
        run += 2 if texts[run] in _ENGINE_VALUES else 1
    if run >= len(texts) or texts[run] not in ("run", "create"):
        return None, None
    index = run + 1
    while index < len(texts) and texts[index].startswith("-"):
        alone = "=" in texts[index] or texts[index] in _IMAGE_FLAGS or _SHORT_FLAGS.fullmatch(texts[index])
        index += 1 if alone or re.fullmatch(r"-[a-zA-Z].+", texts[index]) else 2
    return (index if index < len(texts) else None), run + 1


def _start(texts: list[str], image: int | None) -> int | None:
    """The place of the first argument of the server; None when the command starts none."""
    for index, text in enumerate(texts):
        following = texts[index + 1] if index + 1 < len(texts) else ""
        if os.path.basename(text) == "vllm" and following == "serve":
            return index + 2
        if text in ("-m", "--module") and following.startswith("vllm.entrypoints"):
            return index + 2 + (texts[index + 2 : index + 3] == ["serve"])
        if text.endswith("vllm/entrypoints/openai/api_server.py"):
            return index + 1
    if image is None:
        return None
    rest = texts[image + 1 :]
    entry = next(iter(_entry_points(texts[:image])), "")
    if os.path.basename(entry) == "vllm":
        return image + 2 if rest[:1] == ["serve"] else None
    first = os.path.basename(rest[0]) if rest else ""
    if entry or first in _SHELLS or _PROGRAM.fullmatch(first):
        return None
    vllm = "vllm" in texts[image].lower()
    return image + 1 if "--model" in (text.partition("=")[0] for text in rest) or (vllm and rest) else None


def _entry_points(texts: list[str]) -> list[str]:
    found = [texts[index + 1] for index, text in enumerate(texts[:-1]) if text == "--entrypoint"]
    return found + [text.partition("=")[2] for text in texts if text.startswith("--entrypoint=")]


def _takes_word(text: str) -> bool:
    """Whether the word after this one may be its value (`-x A=1` of mpirun)."""
    return text.startswith("-") and text not in ("-", "--", "-i", "--ignore-environment", "-E")


def _is_option(text: str) -> bool:
    return text.startswith("-") and re.fullmatch(r"-\d[\d.eE+\-]*", text) is None and text not in ("-", "--")


def _requoted(text: str, live: bool) -> str:
    """`text` as one word; in double quotes where the outer shell expands something in it."""
    if not live:
        return shlex.quote(text)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _joined(tokens: list[Token]) -> str:
    text = ""
    for before, token in zip([None, *tokens], tokens, strict=False):
        glued = before is None or (token.raw == ";" and before.kind != "end")
        text += token.raw if glued else f" {token.raw}"
    return text
