"""Keeps a drill's log and its label: the project's own growing corpus, each file of which is a regression test.

What is kept is what the engine printed, line for line, followed by what a user would find beside it (the kernel's lines, the
exit status of a server that a signal killed), with this machine's paths replaced by neutral ones and host names and
secrets redacted; a replacement never adds or removes a line, so line numbers stay true. The label says what was injected and
what the log can carry of it, in the format of `corpus/public/README.md`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

from lifesign.drill.diagnosis import exit_line
from lifesign.drill.engines import Engine
from lifesign.drill.model import Expect, Fault, Raise, Say
from lifesign.drill.outcome import Outcome
from lifesign.drill.remedy_words import MUST_MENTION, MUST_NOT_MENTION
from lifesign.drill.vocabulary import find

SIZE_CAP_BYTES = 400_000
SILENT = ("not-a-crash", "insufficient-log")
REPEATS_KEPT = 20
PREFIX = re.compile(r"^(?:\x1b\[[0-9;]{1,8}m)?\((?P<name>[A-Za-z_]+[A-Za-z0-9_]{0,40})(?: rank=\d{1,4})? pid=\d{1,9}\)")
ADDRESS = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
# A wrapper that repeats the worker's text, and a warning of healthy starts that names an error which didn't happen.
NEVER_DECISIVE = ("Worker failed with error", "This can cause fd limit errors")


def recorded(folder: Path) -> set[str]:
    """Names of the faults that `folder` already holds."""
    path = folder / "labels.jsonl"
    if not path.exists():
        return set()
    return {json.loads(line)["drill"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()}


def keep(outcome: Outcome, engine: Engine, folder: Path) -> str | None:
    """Store log and label of a drill in `folder`. Returns why not, or None when it was stored.

    Kept is every drill whose fault acted and whose engine met the expected fate; a wrong diagnosis is no reason to leave
    it out (the label tells the truth, and the miss becomes a regression test).
    """
    if outcome.result == "SKIPPED":
        return outcome.reason
    if not outcome.log or (outcome.result == "FAIL" and not outcome.reason.startswith("expected ")):
        return outcome.reason or "no log"
    text = neutral(Path(outcome.log).read_bytes().decode("utf-8", "replace"), engine)
    if outcome.kernel_log:
        text = text.rstrip("\n") + "\n" + neutral(_kernel_of_ours(Path(outcome.kernel_log)), engine)
    text = with_exit(text, outcome.exit_code)
    if len(text) > SIZE_CAP_BYTES:
        return f"the log has {len(text)} bytes, more than {SIZE_CAP_BYTES}"
    label = make_label(outcome, engine, text)
    expect = outcome.fault.expect
    if expect.cause not in SILENT and not label["decisive_lines"]:
        return f"no line of the log holds any of {expect.decisive}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{outcome.fault.name}.log").write_text(text, encoding="utf-8", newline="\n")
    _store_label(folder / "labels.jsonl", label)
    return None


def with_exit(text: str, exit_code: int | None) -> str:
    """The log with the exit status below it, as far as the log can't tell it."""
    line = exit_line(exit_code)
    return text.rstrip("\n") + "\n" + line if line and not text.endswith(line) else text


def _store_label(path: Path, label: dict[str, object]) -> None:
    """Replace the label of the same fault, keep the order of names."""
    rows = []
    if path.exists():
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    rows = [row for row in rows if row["drill"] != label["drill"]] + [label]
    rows.sort(key=lambda row: row["drill"])
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def make_label(outcome: Outcome, engine: Engine, text: str) -> dict[str, object]:
    """The label of a log: the injected truth, the lines of this very log that carry it, and what was seen from outside."""
    return _label(outcome.fault, text) | {
        "vllm_version": outcome.release,
        "observed": {
            "exit_code": outcome.exit_code,
            "seconds_to_end": outcome.death_s,
            "client": outcome.client,
            "left": outcome.left,
        },
    }


def relabel(folder: Path) -> list[str]:
    """Make the labels of a recorded folder anew from the vocabulary, without running anything. Returns what is wrong.

    For when a fault's expectation is corrected: what was observed stays in the labels, the logs stay as they are (one that was
    recorded without the exit status gets that line).
    """
    problems = []
    path = folder / "labels.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    for index, row in enumerate(rows):
        fault = find(row["drill"])
        log = folder / row["file"]
        text = with_exit(log.read_bytes().decode("utf-8"), row["observed"]["exit_code"])
        log.write_text(text, encoding="utf-8", newline="\n")
        rows[index] = row | _label(fault, text)
        if fault.expect.cause not in SILENT and not rows[index]["decisive_lines"]:
            problems.append(f"{row['file']}: no line holds any of {fault.expect.decisive}")
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return problems


def _label(fault: Fault, text: str) -> dict[str, object]:
    expect = fault.expect
    lines = text.split("\n")
    first, others = decisive_lines(expect, lines)
    slug, cause = expect.slug, expect.cause
    return {
        "file": f"{fault.name}.log",
        "drill": fault.name,
        "fault": fault.title.en,
        "cause": cause,
        "subtype": expect.subtype,
        "phase": expect.phase,
        "decisive_lines": first,
        "repeat_lines": others,
        "emitter": _emitter(lines[first[0] - 1]) if first else "none",
        "platform": "cpu",
        "accept": list(expect.accept),
        "accept_subtype": list(expect.accept_subtypes),
        "fix_must_mention": list(MUST_MENTION.get(slug, MUST_MENTION.get(cause, ()))),
        "fix_must_not_mention": list(MUST_NOT_MENTION.get(cause, ())),
        "trap": _trap(fault),
    }


def decisive_lines(expect: Expect, lines: list[str]) -> tuple[list[int], list[int]]:
    """(the line that carries the cause, further lines that may be cited as well), 1-based; for silent causes nothing.

    The first line with the first of the expected texts that occurs is decisive. Later lines with it, and lines with the
    other texts (the second line of a two-line message, the assertion's source line), count as the same finding.
    """
    if expect.cause in SILENT:
        return [], []
    found = [_lines_with(literal, lines) for literal in expect.decisive]
    found = [numbers for numbers in found if numbers]
    if not found:
        return [], []
    first = found[0][0]
    others = {number for numbers in found for number in numbers} - {first}
    return [first], sorted(others)[:REPEATS_KEPT]


def _lines_with(literal: str, lines: list[str]) -> list[int]:
    return [
        number
        for number, line in enumerate(lines, 1)
        if literal in line
        and not line.lstrip().startswith("File ")
        and not any(word in line for word in NEVER_DECISIVE)
    ]


def _emitter(line: str) -> str:
    match = PREFIX.match(line)
    return match["name"] if match else "none"


def _trap(fault: Fault) -> str:
    if fault.hook and any(isinstance(action, Raise | Say) for action in fault.hook.actions):
        return "the text was injected into a real CPU process; all that vLLM prints around it is real"
    return ""


def _kernel_of_ours(path: Path) -> str:
    """The kernel's lines about memory and killed processes, without the rest of the machine's news."""
    words = ("oom", "Out of memory", "Killed process", "Memory cgroup", "memory:", "segfault", "VLLM", "vllm")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"{line}\n" for line in lines if any(word in line for word in words) and "tainted" not in line)


def neutral(text: str, engine: Engine) -> str:
    """Replace this machine's paths, names and addresses; the number of lines stays the same."""
    for old, new in _replacements(engine):
        text = text.replace(old, new)
    text = re.sub(r"/(?!/)[\w./-]{0,120}?/lifesign-drill-[\w]{1,16}/models/", "/srv/models/", text)
    text = re.sub(r"/(?!/)[\w./-]{0,120}?/lifesign-drill-[\w]{1,16}/tmp", "/tmp", text)
    text = re.sub(r"/(?!/)[\w./-]{0,120}?/lifesign-drill-[\w]{1,16}", "/srv/run", text)
    text = re.sub(r"lifesign-drill-\w{1,16}", "vllm", text)  # the name of the cgroup, in kernel lines
    return ADDRESS.sub("192.0.2.2", text)


def _replacements(engine: Engine) -> list[tuple[str, str]]:
    """(what this machine has, what the corpus shows), the longest first."""
    pairs: list[tuple[str, str]] = []
    if engine.python:
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(engine.python)))
        home = os.path.realpath(engine.python)
        pairs += [(prefix, "/opt/venv"), (os.path.dirname(os.path.dirname(home)), "/usr/local")]
    pairs.append((os.path.realpath(sys.prefix), "/opt/lifesign"))
    pairs.append((str(Path(__file__).resolve().parents[1]), "/opt/lifesign/lifesign"))
    host = socket.gethostname()
    if len(host) > 3:
        pairs.append((host, "gpu-node-1"))
    user_home = os.path.expanduser("~")
    if len(user_home) > 2:
        pairs.append((user_home, "/home/user"))
    pairs = [(old, new) for old, new in pairs if len(old) > 4]
    return sorted(pairs, key=lambda pair: -len(pair[0]))
