"""The exit status of a process as those print it who saw it end: a shell, Docker, Kubernetes, systemd, a supervisor.

An engine that is killed from outside writes no line; its status stands beside the log (`--with status.txt`, or pasted below
it). Only a line that says nothing else counts, so that a sentence about "exit code 137" is no evidence.
"""

from __future__ import annotations

import re
import signal

_FORMS = (
    # `exit code -9`, `exited with code 137`, `vllm-1 exited with code 137 (SIGKILL)`, `Exit Code:    137`, `"ExitCode": 137,`
    re.compile(
        r"(?i)(?:[\w./-]{1,60} (?:\| )?)?(?:process )?\"?exit(?:ed)?[ _]?(?:with )?(?:exit )?(?:code|status)\"?[ :=]{1,12}(-?\d{1,3})(?: \(\w{3,20}\))?[,.]?"
    ),
    # `docker ps -a`: `Exited (137) 2 minutes ago`
    re.compile(r"(?:.{0,200} )?Exited \((\d{1,3})\) [\w ]{1,30} ago\b.{0,200}"),
    # docker inspect -f '{{.State.ExitCode}} {{.State.OOMKilled}}' and the form that lifesign itself asks for
    re.compile(r"(\d{1,3}) (?:oom=)?(?:true|false)"),
)
_BY_NUMBER = re.compile(r"\bcode=(?:killed|dumped), status=(\d{1,2})/[A-Z]{3,5}")
_WORDS = {
    "Killed": -9,
    "Aborted": -6,
    "Segmentation fault": -11,
    "Bus error": -7,
    "Illegal instruction": -4,
    "Floating point exception": -8,
    "Terminated": -15,
}
# bash says the bare word, or `script: line 3:  4711 Killed    vllm serve ...`; with a core file it says that too.
_SHELL = re.compile(
    r"(?:\S{1,80}: line \d{1,6}: +\d{1,9} |\[\d{1,3}\][+-]? +(?:\d{1,9} )?)?("
    + "|".join(_WORDS)
    + r")(?: *\(core dumped\)(?: .{0,400})?|(?:  .{0,400})?)"
)
_LINE_CHARS = 500


def outside_status(text: str) -> int | None:
    """The exit status that a line gives, as Python counts it (negative: ended by that signal); None for any other line."""
    line = text.strip()
    if len(line) > _LINE_CHARS:
        return None
    by_systemd = _BY_NUMBER.search(line)
    if by_systemd is not None:
        return -int(by_systemd[1])
    in_words = _SHELL.fullmatch(line)
    if in_words is not None:
        return _WORDS[in_words[1]]
    for form in _FORMS:
        found = form.fullmatch(line)
        if found is not None:
            code = int(found[1])
            return 128 - code if 128 < code <= 128 + 64 else code
    return None


def ended_by_signal(text: str) -> bool:
    """Whether a line gives the status of a process that a signal ended; Ctrl-C is a stop that was asked for, and no death."""
    status = outside_status(text)
    return status is not None and status < 0 and status != -signal.SIGINT


def in_words(status: int) -> str:
    """`exit code 137 = SIGKILL`: the figure as a container runtime shows it, and the signal's name."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"exit code {128 - status} = {signal.Signals(-status).name}"
    except ValueError:
        return f"exit code {128 - status} = signal {-status}"
