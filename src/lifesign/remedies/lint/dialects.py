"""Texts that are nearly shell, or hold shell: PowerShell, batch files, Markdown; and files of services: systemd, quadlet,
supervisord. Those of the first kind become shell text with the same lines.
"""

from __future__ import annotations

import re

from lifesign.remedies.lint import shell
from lifesign.remedies.lint.commands import assignment, image_version, script, starts
from lifesign.remedies.lint.model import Invocation, Setting

_FENCE = re.compile(r"\s{0,12}(`{3,}|~{3,})\s*\{?\.?(\w*)")
_SHELL_FENCES = frozenset({"", "bash", "sh", "shell", "console", "zsh", "text", "terminal", "shellsession", "fish"})
_PROMPT = re.compile(
    r"\s{0,20}(?:\([\w.-]{1,40}\)\s{0,4})?(?:[\w.@:~/-]{0,80}[$❯]|[\w.-]{1,40}@[\w.:~/-]{1,80}#)\s+(?=\S)"
)
"""`$ `, `(venv) user@host:~$ `, `root@host:/# `; a lone `#` begins a comment."""
_PS_SETTING = re.compile(r"(\s*)\$env:(\w+)\s*=\s*(.*)", re.IGNORECASE)
_BATCH_SETTING = re.compile(r"(\s*)set\s+\"?(\w+)=([^\"]*)\"?\s*$", re.IGNORECASE)
_SUPERVISED = re.compile(r"(\w{1,100})\s{0,9}=\s{0,9}(\"[^\"]*\"|'[^']*'|[^,]*),?")


def powershell(text: str) -> str:
    """PowerShell as shell text: a backtick ends a line that goes on, `$env:X = "1"` exports."""
    lines = []
    for line in text.splitlines():
        match = _PS_SETTING.match(line)
        if match:
            line = f"export {match.group(2)}={match.group(3).strip()}"
        lines.append(line.rstrip()[:-1] + "\\" if line.rstrip().endswith("`") else line)
    return "\n".join(lines) + "\n"


def batch(text: str) -> str:
    """A Windows batch file as shell text: `^` ends a line that goes on, `set X=1` exports, `rem` and `::` comment."""
    lines = []
    for line in text.splitlines():
        match = _BATCH_SETTING.match(line)
        if match:
            line = f"export {match.group(2)}='{match.group(3).strip()}'"
        elif line.lstrip().lower().startswith(("rem ", "::", "@rem ")):
            line = ""
        lines.append(line.rstrip()[:-1] + "\\" if line.rstrip().endswith("^") else line)
    return "\n".join(lines) + "\n"


def markdown(text: str) -> str:
    """The shell blocks of a Markdown text, prompts taken off, at their lines; everything else is blank."""
    lines: list[str] = []
    fence, keep = "", False
    for line in text.splitlines():
        match = _FENCE.match(line)
        if match and not fence:
            fence, keep = match.group(1), match.group(2).lower() in _SHELL_FENCES
            lines.append("")
        elif fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
            lines.append("")
        else:
            prompt = _PROMPT.match(line)
            lines.append(line[prompt.end() if prompt else 0 :] if fence and keep else "")
    return "\n".join(lines) + "\n"


# -- files of services -------------------------------------------------------------------------------------------------


def entries(text: str) -> list[tuple[int, str, str, str]]:
    """The entries of an ini-like file with continued lines joined: (line, section, name, value)."""
    found: list[tuple[int, str, str, str]] = []
    section = ""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        begin = number
        if line.lstrip().startswith(("#", ";")):
            continue
        if line.startswith("["):
            section = line.strip().strip("[]")
            continue
        name, equals, body = line.partition("=")
        if not equals:
            continue
        parts = [body.strip()]
        while number < len(lines) and parts[-1].rstrip().endswith("\\"):
            parts.append(lines[number] if not lines[number].lstrip().startswith(("#", ";")) else "\\")
            number += 1
        # supervisord goes on where a line is indented
        while number < len(lines) and section.startswith("program:") and re.match(r"[ \t]+[^\s;#]", lines[number]):
            parts[-1] += "" if parts[-1].endswith("\\") else " \\"
            parts.append(lines[number])
            number += 1
        found.append((begin, section, name.strip(), "\n".join(parts)))
    return found


def systemd(text: str, path: str) -> list[Invocation]:
    """A systemd unit or a quadlet's container: Environment=, ExecStart=, Image= with Exec=."""
    settings: list[Setting] = []
    found: list[Invocation] = []
    image, arguments, line = "", "", 1
    for number, section, name, body in entries(text):
        if name == "Environment":
            settings += [s for part in shell.split(body, number) for word in part.words if (s := assignment(word))]
        elif name == "ExecStart":
            found += [start for start in script(body.lstrip("-@:+!"), path, number) if start.words]
        elif section == "Container" and name == "Image":
            image, line = body, number
        elif section == "Container" and name == "Exec":
            arguments, line = body, number
    if image:
        words = [word for part in shell.split(arguments, line) for word in part.words]
        container = starts(words, path) if words else []
        if not container and "vllm" in image:
            container = [Invocation(path, line, words)]
        for invocation in container:
            invocation.image_version = image_version(image)
        found += container
    return _with_settings(found, settings, path)


def supervisord(text: str, path: str) -> list[Invocation]:
    """A supervisord file: `command=` and `environment=` of each program."""
    programs: dict[str, tuple[list[Invocation], list[Setting]]] = {}
    for number, section, name, body in entries(text):
        found, settings = programs.setdefault(section, ([], []))
        if name == "command":
            found += [start for start in script(body, path, number) if start.words]
        elif name == "environment":
            for match in _SUPERVISED.finditer(body):
                line = number + body.count("\n", 0, match.start())
                settings.append(Setting(match.group(1), match.group(2).strip().strip("\"'"), line))
    return [start for found, settings in programs.values() if found for start in _with_settings(found, settings, path)]


def _with_settings(found: list[Invocation], settings: list[Setting], path: str) -> list[Invocation]:
    for invocation in found:
        invocation.settings = settings + invocation.settings
    if found or not settings:
        return found
    return [Invocation(path, settings[0].line, [], settings, complete=False)]
