"""Finds the starts of vLLM in commands: `vllm serve`, the server module, `docker run IMAGE`, and what wraps them.

A wrapper that takes its command as text (`bash -c`, `ssh`, `tmux`, `eval`) is opened, again and again as they nest. What
can't be known (a variable of the surroundings) is marked, not guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from lifesign.remedies.lint import shell
from lifesign.remedies.lint.model import Invocation, Setting, Word

MAX_NESTED = 6
Variables = dict[str, list[Word]]
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,100})\+?=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_VERSION = r"(\d+\.\d+(?:\.\d+)*(?:\.post\d+)?(?:rc\d+)?)"
_IMAGE = re.compile(rf"(?:^|/)vllm(?:-openai|-cpu|-cpu-release-repo|-rocm)?(?:-[a-z]{{1,12}}){{0,3}}:v?{_VERSION}")
_ANY_IMAGE = re.compile(r"(?:\S{1,200}/)?vllm-(?:openai|cpu|rocm)[\w-]{0,40}(?:[:@]\S{0,200})?")
_PACKAGE = re.compile(rf"vllm(?:-cpu)?(?:\[[\w,-]{{0,80}}\])?={{2,3}}{_VERSION}")
_REFERENCE = re.compile(r"\$\{?(\w+)(?:\[@\]|\[\*\])?\}?")
_WITH_DEFAULT = re.compile(r"\$\{(\w+)(?::?-([^{}]{0,200}))?\}|\$(\w+)")
_ENV_FLAGS = ("-e", "--env")
_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh", "fish"})
_TEXT_RUNNERS = frozenset(
    {"tmux", "byobu", "screen", "su", "runuser", "script", "watch", "pdsh", "clush", "sbatch", "flock", "parallel", "xargs",
     "wsl", "wsl.exe", "pwsh", "powershell", "powershell.exe", "cmd", "cmd.exe"}
)  # fmt: skip
"""Programs that run a word of theirs as a command."""
_NO_RUNNERS = frozenset(
    {"echo", "printf", "grep", "egrep", "rg", "pgrep", "pkill", "killall", "man", "which", "sed", "awk", "cat", "ps", "git",
     "curl", "logger", "read", "test", "[", "[["}
)  # fmt: skip
"""Programs that talk about a command and don't run it."""
_KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "!", "time", "sudo", "exec", "nohup", "command"}
)
_ELSEWHERE = frozenset({"docker", "podman", "nerdctl", "kubectl", "ssh"})
"""Programs that run their command where the exports of this shell don't reach."""
_NO_IMAGE_AFTER = frozenset(
    {"--name", "-v", "--volume", "--hostname", "-h", "--network", "--net", "-w", "--label", "-l", "--entrypoint", "-e", "--env"}
)  # fmt: skip
_SSH_VALUES = frozenset("-" + letter for letter in "bcDEeFIiJLlmOopQRSWw")


def command_line(words: list[str], path: str = "command line") -> list[Invocation]:
    """The invocations of one command as a list of words (already split by a shell), or as one word with all of it."""
    if len(words) == 1 and " " in words[0].strip() and not words[0].lstrip().startswith("-"):
        return _in_text(Word(words[0], 1), path, {}, [], 0)
    given = [Word(word, 1) for word in words]
    found = starts(given, path)
    if not found and words:
        # Options alone (`lifesign lint -- --max-num-seqs 64`) and variables alone are checked as they stand.
        settings = [setting for word in given if (setting := assignment(word)) is not None]
        rest = [word for word in given if assignment(word) is None]
        if not rest or rest[0].text.startswith(("-", *DASHES)):
            found = [Invocation(path, 1, rest, settings)]
    return found


DASHES = "‐‑‒–—―−"
"""Characters that look like a hyphen and aren't: word processors and web pages put them in its place."""


def script(text: str, path: str, first_line: int = 1, settings: list[Setting] | None = None) -> list[Invocation]:
    """Every start of vLLM in a shell text, with the variables exported before it; the exports alone if none starts."""
    exported = list(settings or [])
    found = _script(shell.split(text, first_line), path, {}, exported, 0)
    if not found and exported:
        found.append(Invocation(path, exported[0].line, [], exported, complete=False))
    return found


def _script(
    commands: Sequence[shell.Command], path: str, variables: Variables, exported: list[Setting], depth: int
) -> list[Invocation]:
    """The starts in the commands of a script. Adds what they export to `exported` and what they set to `variables`."""
    found: list[Invocation] = []
    version = ""
    for command in commands:
        if command.array:
            before = variables.get(command.array, []) if command.appends else []
            variables[command.array] = [*before, *command.words]
            continue
        assigned = _only_assignments(command)
        if assigned is not None:
            for word, setting in assigned:
                variables[setting.name] = _members(setting, word, variables)
            exported += [
                setting for _, setting in assigned if command.words[0].text != "declare" and _exports(command, setting)
            ]
            continue
        version = package_version(command.words, variables) or version
        begun = starts(command.words, path, variables, exported, depth)
        if not begun and command.document is not None and depth < MAX_NESTED and _reads_script(command.words):
            remote = any(os.path.basename(word.text) in _ELSEWHERE for word in command.words[:3])
            begun = _in_text(command.document, path, variables, [] if remote else exported, depth + 1)
        for invocation in begun:
            invocation.image_version = invocation.image_version or version
            found.append(invocation)
    return found


def _reads_script(words: list[Word]) -> bool:
    """Whether a command runs what it reads (`bash <<EOF`, `ssh host <<EOF`)."""
    names = {os.path.basename(word.text) for word in words}
    return bool(names & _SHELLS) or "ssh" in names


def _exports(command: shell.Command, setting: Setting) -> bool:
    return command.words[0].text in ("export", "setenv") or _fish_export(command.words) or is_ours(setting.name)


def _members(setting: Setting, word: Word, variables: Variables) -> list[Word]:
    """The words that an unquoted `$NAME` becomes; `NAME+=...` keeps those before."""
    before = variables.get(setting.name, []) if word.text.startswith(setting.name + "+=") else []
    inner = shell.split(setting.value, setting.line)
    words = [Word(item.text, setting.line, item.literal and word.literal) for part in inner for item in part.words]
    return [*before, *words]


def is_ours(name: str) -> bool:
    """Whether a variable is one that a start of vLLM is set up with."""
    return name.startswith(("VLLM_", "NCCL_", "TORCH_", "PYTORCH_"))


def _fish_export(words: list[Word]) -> bool:
    """`set -gx NAME VALUE` as the fish shell has it."""
    texts = [word.text for word in words]
    return (
        len(texts) > 3
        and texts[0] == "set"
        and texts[1].startswith("-")
        and "x" in texts[1]
        and texts[2].isidentifier()
    )


def _only_assignments(command: shell.Command) -> list[tuple[Word, Setting]] | None:
    """The variables that a command sets when it does nothing else, each with its word; None otherwise."""
    words = command.words
    if not words:
        return None
    if _fish_export(words) or (words[0].text == "setenv" and len(words) == 3):
        name, value = words[-2], words[-1]
        return [(value, Setting(name.text, value.text, name.line, value.literal))]
    if words[0].text in ("export", "declare", "set"):
        words = words[1:]
    found = [(word, setting) for word in words if (setting := assignment(word)) is not None]
    return found if found and len(found) == len([word for word in words if not word.text.startswith("-")]) else None


def assignment(word: Word) -> Setting | None:
    """`NAME=value` as a setting."""
    match = _ASSIGNMENT.fullmatch(word.text)
    return Setting(match.group(1), match.group(2), word.line, word.literal) if match else None


# -- one command -------------------------------------------------------------------------------------------------------


def starts(
    words: list[Word],
    path: str,
    variables: Variables | None = None,
    exported: Sequence[Setting] = (),
    depth: int = 0,
) -> list[Invocation]:
    """The starts of vLLM that one command is, or wraps as text."""
    known = variables if variables is not None else {}
    words = _with_entry_point(_expanded(words, known), known)
    texts = [word.text for word in words]
    if _talks(texts):
        return []
    start = serve_start(texts)
    image = _image(texts, known)
    docker = _runs_container(texts)
    elsewhere = any(os.path.basename(text) in _ELSEWHERE for text in texts[:3])
    own_entry = "--entrypoint" in texts or any(text.startswith("--entrypoint=") for text in texts)
    end = start if start is not None else image if docker and image is not None else len(words)
    # What the shell exports doesn't reach into a container; `-e` does.
    settings = ([] if elsewhere else list(exported)) + _given(words[:end], exported)
    version = image_version(texts[image], known) if image is not None else package_version(words, known)
    if start is None:
        found = _wrapped(words, path, known, settings, depth)
        if found or not docker or image is None or own_entry:
            for invocation in found:
                invocation.image_version = invocation.image_version or version
            return found
    begin = start if start is not None else (image or 0) + 1
    rest = _until_redirect(words[begin:])
    complete = all(word.literal for word in rest)
    by_serve = start is not None and texts[start - 1] == "serve"
    return [Invocation(path, words[0].line, rest, settings, [], version, complete, by_serve)]


def serve_start(texts: list[str]) -> int | None:
    """The index of the first argument of the server; None when the command doesn't start one."""
    for index, text in enumerate(texts):
        following = texts[index + 1 : index + 2]
        if os.path.basename(text) in ("vllm", "vllm.exe") and following == ["serve"]:
            return index + 2
        if text == "-m" and following and following[0].startswith("vllm.entrypoints"):
            return index + 2 + (texts[index + 2 : index + 3] == ["serve"])
        if text.endswith("vllm/entrypoints/openai/api_server.py"):
            return index + 1
    return None


def _talks(texts: list[str]) -> bool:
    first = next((text for text in texts if text not in _KEYWORDS), "")
    return os.path.basename(first) in _NO_RUNNERS


def _runs_container(texts: list[str]) -> bool:
    return "run" in texts[:8] and any(text.endswith(("docker", "podman", "nerdctl")) for text in texts[:3])


def _with_entry_point(words: list[Word], variables: Variables) -> list[Word]:
    """`docker run --entrypoint X IMAGE args` as it runs: X put before the arguments."""
    texts = [word.text for word in words]
    if not _runs_container(texts):
        return words
    entry: Word | None = None
    for index, word in enumerate(words):
        if word.text == "--entrypoint" and index + 1 < len(words):
            entry = words[index + 1]
        elif word.text.startswith("--entrypoint="):
            entry = Word(word.text.partition("=")[2], word.line, word.literal)
    image = _image(texts, variables)
    if entry is None or image is None:
        return words
    return [*words[: image + 1], entry, *words[image + 1 :]]


def _given(head: list[Word], exported: Sequence[Setting]) -> list[Setting]:
    """The variables that stand before the program (`A=1 vllm`, `env A=1`) or go into a container (`-e A=1`, `-e A`)."""
    found: list[Setting] = []
    for index, word in enumerate(head):
        name, equals, value = word.text.partition("=")
        if index and head[index - 1].text in _ENV_FLAGS:
            setting = assignment(word)
            if setting is None:
                found += [item for item in exported if item.name == word.text]
        elif name in _ENV_FLAGS and equals:
            setting = assignment(Word(value, word.line, word.literal))
        else:
            setting = None if word.text.startswith("-") else assignment(word)
        if setting is not None:
            found.append(setting)
    return found


def _expanded(words: list[Word], variables: Variables) -> list[Word]:
    """Words that are exactly one reference to a known variable or array become its members."""
    found: list[Word] = []
    for word in words[:2000]:
        match = None if word.literal else _REFERENCE.fullmatch(word.text)
        known = variables.get(match.group(1)) if match else None
        found += known if known is not None else [word]
    return found[:5000]


def _until_redirect(words: list[Word]) -> list[Word]:
    kept: list[Word] = []
    for word in words:
        if re.fullmatch(r"\d?>{1,2}(?:&\d|.*)?|<.*", word.text):
            break
        kept.append(word)
    return kept


# -- wrappers ----------------------------------------------------------------------------------------------------------


def _wrapped(
    words: list[Word], path: str, variables: Variables, settings: list[Setting], depth: int
) -> list[Invocation]:
    """The starts in the text that a wrapper among the words runs."""
    if depth >= MAX_NESTED:
        return []
    for index, word in enumerate(words[:60]):
        name = os.path.basename(word.text)
        rest = words[index + 1 :]
        texts: list[Word] = []
        if name in _SHELLS:
            text = _shell_text(rest)
            texts = [text] if text is not None else []
        elif name == "eval":
            texts = [_joined(rest)] if rest else []
        elif name == "ssh":
            remote = _after_host(rest)
            texts = [_joined(remote)] if remote else []
        elif name in _TEXT_RUNNERS:
            texts = [_option_text(item) for item in rest if "vllm" in item.text and len(item.text.split()) > 1]
        if texts:
            # What a wrapper runs is all that follows it: looking for another one would read the same text again.
            likely = [text for text in texts if "vllm" in text.text or "$" in text.text]
            return [start for text in likely for start in _in_text(text, path, variables, settings, depth + 1)]
    return []


def _in_text(word: Word, path: str, variables: Variables, settings: list[Setting], depth: int) -> list[Invocation]:
    """The starts in a word that a shell reads as text of its own."""
    commands = shell.split(word.text, word.line, word.breaks)
    if not word.literal:
        # The outer shell still fills in its variables, also between quotes of the inner one.
        for command in commands:
            command.words = [
                Word(item.text, item.line, item.literal and not any(char in item.text for char in "$`"), item.breaks)
                for item in command.words
            ]
    return _script(commands, path, dict(variables), list(settings), depth)


def _shell_text(words: list[Word]) -> Word | None:
    """The script of `bash -lc "..."`, given the words after the shell; None when it isn't given one."""
    given = False
    index = 0
    while index < len(words):
        text = words[index].text
        if text in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            index += 2
            continue
        if not text.startswith(("-", "+")):
            return words[index] if given else None
        given = given or text == "--command" or (text[1:2] != "-" and "c" in text)
        index += 1
    return None


def _after_host(words: list[Word]) -> list[Word]:
    """The remote command of `ssh`, given the words after it."""
    index = 0
    while index < len(words) and words[index].text.startswith("-"):
        index += 1 + (words[index].text in _SSH_VALUES)
    return words[index + 1 :]


def _joined(words: list[Word]) -> Word:
    """Words as `eval` and `ssh` read them: joined with blanks, then split anew."""
    if len(words) == 1:
        return words[0]
    return Word(" ".join(word.text for word in words), words[0].line, all(word.literal for word in words))


def _option_text(word: Word) -> Word:
    """`--wrap=TEXT` as TEXT."""
    name, equals, text = word.text.partition("=")
    if word.text.startswith("--") and equals and " " not in name:
        return Word(text, word.line, word.literal)
    return word


# -- releases ----------------------------------------------------------------------------------------------------------


def image_version(text: str, variables: Mapping[str, list[Word]] | None = None) -> str:
    """The vLLM release that a container image names; a default (`${TAG:-v0.9.2}`) counts. Empty when it names none."""
    match = _IMAGE.search(resolved(text, variables or {}))
    return match.group(1) if match else ""


def package_version(words: Sequence[Word], variables: Mapping[str, list[Word]] | None = None) -> str:
    """The vLLM release that a word asks a package manager for (`vllm==0.9.2`); empty when none does."""
    for word in words:
        match = _PACKAGE.match(resolved(word.text, variables or {}).removeprefix("--with=").removeprefix("--from="))
        if match:
            return match.group(1)
    return ""


def resolved(text: str, variables: Mapping[str, list[Word]]) -> str:
    """Text with the references that are known, or have a default, filled in."""

    def value(match: re.Match[str]) -> str:
        known = variables.get(match.group(1) or match.group(3))
        if known is not None and all(word.literal for word in known):
            return " ".join(word.text for word in known)
        return match.group(2) if match.group(2) is not None else match.group(0)

    return _WITH_DEFAULT.sub(value, text[:2000]) if "$" in text else text


def _image(texts: list[str], variables: Variables) -> int | None:
    """The index of the word that is a vLLM image: one that names its release, else any."""
    for index, text in enumerate(texts):
        if image_version(text, variables):
            return index
    for index, text in enumerate(texts):
        if _ANY_IMAGE.fullmatch(text) and (index == 0 or texts[index - 1] not in _NO_IMAGE_AFTER):
            return index
    return None
