"""Finds the starts of vLLM in what a user gives: a command line, shell script, Dockerfile, manifest, .env, Python file.

Each reader gives `Invocation`s with line numbers. What a file can't tell (variables of the shell, templates) is marked,
not guessed. Files are bounded in size and manifests in nodes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
from msgspec.structs import replace

from lifesign.errors import SourceError
from lifesign.remedies.lint import dialects, manifests, python_files, shell
from lifesign.remedies.lint.commands import (
    assignment,
    command_line,
    image_version,
    package_version,
    resolved,
    script,
    starts,
)
from lifesign.remedies.lint.model import Invocation, Setting, Word

__all__ = ["command_line", "dockerfile", "env_file", "load", "read_path", "script"]
MAX_BYTES = 2 << 20
_ENV_LINE = re.compile(r"\s{0,20}(?:export\s+)?([A-Za-z_][A-Za-z0-9_]{0,100})\s{0,10}=\s{0,10}(.*)")


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
    if name.endswith((".service", ".conf", ".container")) and re.search(
        r"^\[(Service|Container)\]", text, re.MULTILINE
    ):
        return dialects.systemd(text, path)
    if name.endswith((".conf", ".ini")) and re.search(r"^\[program:", text, re.MULTILINE):
        return dialects.supervisord(text, path)
    if name.endswith((".md", ".markdown")):
        return script(dialects.markdown(text), path)
    if name.endswith((".ps1", ".bat", ".cmd")):
        return script((dialects.powershell if name.endswith(".ps1") else dialects.batch)(text), path)
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


# -- other files -------------------------------------------------------------------------------------------------------


def env_file(text: str, path: str) -> list[Invocation]:
    """A `.env` file: one variable a line."""
    settings: list[Setting] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        match = _ENV_LINE.match(line[:4000])
        if match:
            value = _unquoted(match.group(2).strip())
            settings.append(Setting(match.group(1), value, number, "$" not in value))
    return [Invocation(path, 1, [], settings, complete=False)] if settings else []


def _unquoted(value: str) -> str:
    """A value of a `.env` file without its quotes, or without the comment behind it."""
    if value[:1] in ("'", '"') and value.find(value[0], 1) > 0:
        return value[1 : value.find(value[0], 1)]
    return re.split(r"\s#", " " + value, maxsplit=1)[0].strip()


class _Stage(msgspec.Struct):
    """One build stage of a Dockerfile. entry: None while the entry point of the base image holds."""

    version: str = ""
    serves: bool = False
    settings: list[Setting] = msgspec.field(default_factory=list)
    entry: list[Word] | None = None
    command: list[Word] = msgspec.field(default_factory=list)
    line: int = 1


def dockerfile(text: str, path: str) -> list[Invocation]:
    """A Dockerfile: ENV, and what ENTRYPOINT with CMD starts, per stage; the last stage counts."""
    stages: dict[str, _Stage] = {}
    stage = _Stage()
    variables: dict[str, list[Word]] = {}
    for number, name, body in _instructions(text):
        if name == "FROM":
            words = [word for word in body.split() if not word.startswith("--")] or [""]
            stage = _based_on(resolved(words[0], variables), stages)
            if len(words) > 2:
                stages[words[2].lower()] = stage
        elif name in ("ENV", "ARG"):
            found = _env_instruction(body, number)
            variables.update({item.name: [Word(item.value, number, item.literal)] for item in found})
            stage.settings += found if name == "ENV" else []
        elif name == "RUN":
            words_of = [word for part in shell.split(body, number) for word in part.words]
            stage.version = package_version(words_of, variables) or stage.version
        elif name == "ENTRYPOINT":
            stage.entry, stage.command, stage.line = _exec_or_shell(body, number), [], number
        elif name == "CMD":
            stage.command, stage.line = _exec_or_shell(body, number), number
    return _of_stage(stage, path)


def _based_on(image: str, stages: dict[str, _Stage]) -> _Stage:
    """A new stage on an image or on an earlier stage, which it inherits from."""
    base = stages.get(image.lower())
    if base is not None:
        return replace(base, settings=list(base.settings))
    version = image_version(image)
    return _Stage(version, bool(version) or "vllm-openai" in image)


def _exec_or_shell(body: str, line: int) -> list[Word]:
    """The words of ENTRYPOINT or CMD; the shell form as the `sh -c` that Docker makes of it."""
    words = manifests.exec_form(body, line)
    return words if words is not None else [Word("/bin/sh", line), Word("-c", line), Word(body, line)]


def _of_stage(stage: _Stage, path: str) -> list[Invocation]:
    whole = [*(stage.entry or []), *stage.command]
    found = starts(whole, path, exported=stage.settings) if whole else []
    if not found and len(whole) > 3 and [word.text for word in whole[-3:-1]] == ["/bin/sh", "-c"]:
        # `CMD --model m` in shell form under an entry point: its words are what was meant.
        body = [word for part in shell.split(whole[-1].text, whole[-1].line) for word in part.words]
        whole = [*whole[:-3], *body]
        found = starts(whole, path, exported=stage.settings)
    if not found and stage.serves and stage.entry is None and stage.command:
        words = stage.command
        if words[0].text == "/bin/sh":
            words = [word for part in shell.split(words[-1].text, words[-1].line) for word in part.words]
        complete = all(word.literal for word in words)
        found = [Invocation(path, stage.line, words, list(stage.settings), complete=complete)]
    if not found and stage.settings:
        found = [Invocation(path, stage.settings[0].line, [], stage.settings)]
    for invocation in found:
        invocation.image_version = invocation.image_version or stage.version
    return found


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
        name, body = (*"\n".join(parts).split(None, 1), "")[:2]
        found.append((start + 1, name.upper(), body.strip()))
    return found


def _env_instruction(body: str, line: int) -> list[Setting]:
    words = [word for part in shell.split(body, line) for word in part.words]
    settings = [setting for word in words if (setting := assignment(word)) is not None]
    if not settings and len(words) >= 2:
        settings = [Setting(words[0].text, " ".join(word.text for word in words[1:]), line)]
    return settings
