"""Takes secrets and prompts out of what goes into a bundle. When in doubt, out.

Names decide first (`HF_TOKEN`, `--api-key`), then shapes (`hf_...`, `sk-...`, passwords in addresses). Prompts stand in
lines that vLLM prints when request logging is on; their text is cut, their length kept.
"""

from __future__ import annotations

import re

_SECRET_WORDS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "APIKEY",
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIAL",
    "COOKIE",
    "AUTHORIZATION",
    "_PAT",
    "_PWD",
    "DSN",
    "CONNECTION_STRING",
)
_NOT_SECRET = ("TOKENS", "TOKENIZER", "TOKENIZERS")
_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{8,200}|sk-[A-Za-z0-9_-]{8,200}|AKIA[A-Z0-9]{12,20}|gh[pousr]_[A-Za-z0-9]{16,200}"
    r"|glpat-[A-Za-z0-9_-]{8,100}|xox[abprs]-[A-Za-z0-9-]{8,200}|eyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{4,4000}"
)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]{0,100}:)[^/\s@]{1,200}@")
_BEARER = re.compile(r"((?:[Bb]earer|[Bb]asic) )[A-Za-z0-9._~+/=-]{8,2000}")
_PROMPT_STARTS = ("prompt: '", 'prompt: "', "prompt='", 'prompt="', "prompt_token_ids: [", "prompt_token_ids=[")
MAX_LINE_CHARS = 16384


def is_secret_name(name: str) -> bool:
    """Whether a variable or option of this name holds a secret."""
    upper = name.upper().lstrip("-").replace("-", "_")
    for harmless in _NOT_SECRET:
        upper = upper.replace(harmless, "")
    return any(word in upper for word in _SECRET_WORDS) or upper.endswith(("_KEY", "_AUTH")) or upper == "KEY"


def hide(value: str) -> str:
    """What stands in the place of a secret: its length helps to find an empty or cut one."""
    return f"<redacted: {len(value)} characters>"


def scrub(text: str) -> str:
    """Text without anything that has the shape of a secret."""
    text = _SHAPES.sub("<redacted>", text)
    text = _URL_PASSWORD.sub(r"\1<redacted>@", text)
    return _BEARER.sub(r"\1<redacted>", text)


def redact_environment(environment: dict[str, str]) -> dict[str, str]:
    """Every variable, secrets hidden, values cut to 2,000 characters."""
    return {
        name: hide(value) if is_secret_name(name) else scrub(value[:2000])
        for name, value in sorted(environment.items())[:2000]
    }


def redact_command(command: list[str]) -> list[str]:
    """The words of a command line; the value of an option with a secret's name is hidden in both its forms."""
    kept: list[str] = []
    hide_next = False
    for word in command:
        name, sign, value = word.partition("=")
        if hide_next and not word.startswith("--"):
            kept.append(hide(word))
            continue  # `--api-key A B` takes several values
        hide_next = word.startswith("-") and not sign and is_secret_name(name)
        if sign and is_secret_name(name):
            kept.append(f"{name}={hide(value)}")
        else:
            kept.append(scrub(word))
    return kept


def redact_line(line: str, *, keep_prompts: bool = False) -> str:
    """One line of the log. Cut to `MAX_LINE_CHARS` first: no pattern ever sees an endless line."""
    cut = len(line) - MAX_LINE_CHARS
    if cut > 0:
        line = line[:MAX_LINE_CHARS] + f"... <{cut} characters left out>"
    line = scrub(line) if _may_hold_secret(line) else line
    return line if keep_prompts else _without_prompt(line)


def _may_hold_secret(line: str) -> bool:
    lowered = line
    return any(
        part in lowered
        for part in (
            "hf_",
            "sk-",
            "AKIA",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "glpat-",
            "xox",
            "eyJ",
            "://",
            "earer ",
            "asic ",
        )
    )


def _without_prompt(line: str) -> str:
    """Cut the value after `prompt: '` up to what vLLM prints next, or to the end of the line."""
    if "prompt" not in line:
        return line
    for start in _PROMPT_STARTS:
        at = line.find(start)
        if at < 0:
            continue
        begin = at + len(start)
        ends = [
            end
            for mark in ("', params: ", '", params: ', "', prompt_", '", prompt_', "], ", "])")
            if (end := line.find(mark, begin)) >= 0
        ]
        closing = line.rfind(", params: ", begin)
        end = closing if start.startswith("prompt:") and closing >= 0 else (min(ends) if ends else len(line))
        if end > begin and end < len(line) and line[end - 1] in "'\"" and line[end] not in "'\"":
            end -= 1
        line = f"{line[:begin]}<{end - begin} characters of a prompt>{line[end:]}"
    return line
