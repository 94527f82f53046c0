"""Finds the starts of vLLM in what a user gives: a command line, shell script, Dockerfile, manifest, .env, Python file.

Each reader gives `Invocation`s with line numbers. What a file can't tell (variables of the shell, templates) is marked,
not guessed. Files are bounded in size and manifests in nodes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lifesign.errors import SourceError
from lifesign.remedies.lint import manifests, python_files, shell
from lifesign.remedies.lint.model import Invocation, Setting, Word

MAX_BYTES = 2 << 20
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,100})\+?=(.*)", re.DOTALL)
_ENV_LINE = re.compile(r"\s{0,20}(?:export\s+)?([A-Za-z_][A-Za-z0-9_]{0,100})\s{0,10}=\s{0,10}(.*)")
_IMAGE = re.compile(
    r"(?:^|/)vllm(?:-openai|-cpu|-cpu-release-repo|-rocm)?(?:-[a-z]{1,12}){0,3}:v?(\d+\.\d+(?:\.\d+)*(?:\.post\d+)?(?:rc\d+)?)"
)
_REFERENCE = re.compile(r"\$\{?(\w+)(?:\[@\]|\[\*\])?\}?")
_ENV_FLAGS = ("-e", "--env")


def read_path(path: str) -> list[Invocation]:
    """The invocations of a file, by its kind. Raises SourceError for what can't be read."""
    text = load(path)
    name = os.path.basename(path).lower()
    if name.endswith((".yml", ".yaml", ".json")):
        return manifests.read(text, path)
    if name.startswith(("dockerfile", "containerfile")) or name.endswith((".dockerfile", ".containerfile")):
        return dockerfile(text, path)
    if name.endswith(".py"):
        return python_files.read(text, path)
    if name == ".env" or name.endswith(".env") or name.startswith(".env."):
        return env_file(text, path)
    if name.endswith((".service", ".conf")) and "[Service]" in text:
        return systemd(text, path)
    if re.search(r"^FROM\s+\S", text, re.MULTILINE) and re.search(r"^(CMD|ENTRYPOINT|RUN|ENV)\s", text, re.MULTILINE):
        return dockerfile(text, path)
    return script(text, path)


def load(path: str) -> str:
    """The text of a file of at most MAX_BYTES. Raises SourceError with what to do."""
    try:
        target = Path(path)
        if target.is_dir():
            raise SourceError(path, "is a folder: name the files in it")
        with target.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(path, f"can't be read ({error.strerror or error}): check the path") from None
    if len(raw) > MAX_BYTES:
        raise SourceError(
            path, f"is larger than {MAX_BYTES >> 20} MiB, too large for a configuration file: name the right file"
        )
    if b"\0" in raw:
        raise SourceError(path, "is a binary file: give a script, manifest, Dockerfile or .env file")
    return raw.decode("utf-8", errors="replace")


# -- command lines and scripts -----------------------------------------------------------------------------------------


def command_line(words: list[str], path: str = "command line") -> list[Invocation]:
    """The invocation of one command as a list of words (already split by a shell)."""
    found = _from_command(shell.Command([Word(word, 1) for word in words]), path, {}, [])
    if found is None and words:
        # Options alone (`lifesign lint -- --max-num-seqs 64`) and variables alone are checked as they stand.
        settings = [setting for word in words if (setting := _assignment(Word(word, 1))) is not None]
        rest = [Word(word, 1) for word in words if _assignment(Word(word, 1)) is None]
        if not rest or rest[0].text.startswith("-"):
            found = Invocation(path, 1, rest, settings)
    return [found] if found is not None else []


def script(text: str, path: str, first_line: int = 1, settings: list[Setting] | None = None) -> list[Invocation]:
    """Every start of vLLM in a shell text, with the variables exported before it."""
    exported = list(settings or [])
    variables: dict[str, list[Word]] = {}
    found: list[Invocation] = []
    for command in shell.split(text, first_line):
        if command.array:
            variables[command.array] = command.words
            continue
        assigned = _only_assignments(command)
        if assigned is not None:
            for setting in assigned:
                inner = shell.split(setting.value, setting.line)
                variables[setting.name] = [
                    Word(word.text, setting.line, word.literal) for part in inner for word in part.words
                ]
            exported += [setting for setting in assigned if command.words[0].text == "export" or _is_ours(setting.name)]
            continue
        invocation = _from_command(command, path, variables, exported)
        if invocation is not None:
            found.append(invocation)
    if not found and exported:
        found.append(Invocation(path, exported[0].line, [], exported, complete=False))
    return found


def _is_ours(name: str) -> bool:
    return name.startswith(("VLLM_", "NCCL_", "TORCH_", "PYTORCH_"))


def _only_assignments(command: shell.Command) -> list[Setting] | None:
    words = (
        command.words[1:] if command.words and command.words[0].text in ("export", "declare", "set") else command.words
    )
    settings = [setting for word in words if (setting := _assignment(word)) is not None]
    return (
        settings
        if settings and len(settings) == len([word for word in words if not word.text.startswith("-")])
        else None
    )


def _assignment(word: Word) -> Setting | None:
    match = _ASSIGNMENT.fullmatch(word.text)
    return Setting(match.group(1), match.group(2), word.line, word.literal) if match else None


def _from_command(
    command: shell.Command, path: str, variables: dict[str, list[Word]], exported: list[Setting]
) -> Invocation | None:
    """The invocation that a command is (`vllm serve`, the API server module, `docker run IMAGE`), or None."""
    words = _expanded(command.words, variables)
    texts = [word.text for word in words]
    start = _serve_start(texts)
    image = next((index for index, text in enumerate(texts) if _IMAGE.search(text)), None)
    docker = "run" in texts[:8] and any(text.endswith(("docker", "podman", "nerdctl")) for text in texts[:3])
    if start is None and not (docker and image is not None):
        return None
    # What the shell exports doesn't reach into a container; `-e` does.
    settings = [] if docker else list(exported)
    head = words[: start if start is not None else image]
    for index, word in enumerate(head):
        name, equals, value = word.text.partition("=")
        if index and head[index - 1].text in _ENV_FLAGS:
            setting = _assignment(word)
        elif name in _ENV_FLAGS and equals:
            setting = _assignment(Word(value, word.line, word.literal))
        else:
            setting = None if word.text.startswith("-") else _assignment(word)
        if setting is not None:
            settings.append(setting)
    begin = start if start is not None else (image or 0) + 1
    version = _IMAGE.search(texts[image]) if image is not None else None
    rest = _until_redirect(words[begin:])
    return Invocation(
        path,
        command.line,
        rest,
        settings,
        image_version=version.group(1) if version else "",
        complete=all(word.literal for word in rest),
    )


def _serve_start(texts: list[str]) -> int | None:
    """The index of the first argument of the server; None when the command doesn't start one."""
    for index, text in enumerate(texts):
        if os.path.basename(text) == "vllm" and texts[index + 1 : index + 2] == ["serve"]:
            return index + 2
        if text == "-m" and texts[index + 1 : index + 2] and texts[index + 1].startswith("vllm.entrypoints"):
            return index + 2 + (texts[index + 2 : index + 3] == ["serve"])
        if text.endswith("vllm/entrypoints/openai/api_server.py"):
            return index + 1
    return None


def _expanded(words: list[Word], variables: dict[str, list[Word]]) -> list[Word]:
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


# -- other files -------------------------------------------------------------------------------------------------------


def env_file(text: str, path: str) -> list[Invocation]:
    """A `.env` file: one variable a line."""
    settings: list[Setting] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        match = _ENV_LINE.match(line[:4000])
        if match:
            value = match.group(2).strip()
            if value[:1] in "'\"" and value[-1:] == value[:1] and len(value) > 1:
                value = value[1:-1]
            settings.append(Setting(match.group(1), value, number, "$" not in value))
    return [Invocation(path, 1, [], settings, complete=False)] if settings else []


def dockerfile(text: str, path: str) -> list[Invocation]:
    """A Dockerfile: ENV, and what ENTRYPOINT with CMD starts, per stage; the last stage counts."""
    settings: list[Setting] = []
    version = ""
    entry: list[Word] = []
    command: list[Word] = []
    serves, entry_line = False, 1
    for number, name, body in _instructions(text):
        if name == "FROM":
            match = _IMAGE.search(body.split()[0] if body.split() else "")
            version, serves = (match.group(1) if match else version), match is not None
            entry, command = [], []
        elif name == "ENV":
            settings += _env_instruction(body, number)
        elif name in ("ENTRYPOINT", "CMD"):
            words = manifests.exec_form(body, number) or [
                word for part in shell.split(body, number) for word in part.words
            ]
            entry_line = number
            entry, command = (words, []) if name == "ENTRYPOINT" else (entry, words)
    whole = [*entry, *command]
    start = _serve_start([word.text for word in whole])
    words = whole[start:] if start is not None else whole if serves and not entry else []
    if not words and not settings:
        return []
    line = entry_line if words else settings[0].line
    complete = all(word.literal for word in words)
    return [Invocation(path, line, words, settings, image_version=version, complete=complete)]


def _instructions(text: str) -> list[tuple[int, str, str]]:
    """Instructions of a Dockerfile with continuation lines joined: (line, NAME, rest). Joined parts keep a newline each,
    so that line numbers stay right."""
    found: list[tuple[int, str, str]] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        start, line = index, lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [line]
        while parts[-1].rstrip().endswith("\\") and index < len(lines):
            parts.append(lines[index])
            index += 1
        name, _, body = "\n".join(parts).lstrip().partition(" ")
        found.append((start + 1, name.strip().upper(), body.strip()))
    return found


def _env_instruction(body: str, line: int) -> list[Setting]:
    words = [word for part in shell.split(body, line) for word in part.words]
    settings = [setting for word in words if (setting := _assignment(word)) is not None]
    if not settings and len(words) >= 2:
        settings = [Setting(words[0].text, " ".join(word.text for word in words[1:]), line)]
    return settings


def systemd(text: str, path: str) -> list[Invocation]:
    """A systemd unit: Environment= and ExecStart=."""
    settings: list[Setting] = []
    found: list[Invocation] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        name, equals, body = line.strip().partition("=")
        if not equals:
            continue
        following = number
        while body.endswith("\\") and following < len(lines):
            body += "\n" + lines[following]
            following += 1
        if name == "Environment":
            settings += [s for part in shell.split(body, number) for word in part.words if (s := _assignment(word))]
        elif name == "ExecStart":
            found += script(body.lstrip("-@:+!"), path, number)
    for invocation in found:
        invocation.settings = settings + invocation.settings
    return found or ([Invocation(path, settings[0].line, [], settings, complete=False)] if settings else [])
