"""Lint reports as text, JSON, SARIF 2.1.0 and GitHub workflow commands."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from lifesign.remedies.lint.model import CODES, SEVERITIES, Problem, Report, Severity
from lifesign.text import Lang, T

SCHEMA = "lifesign.lint/1"
_WORDS: dict[str, T] = {"error": T("error", "错误"), "warning": T("warning", "警告"), "note": T("note", "提示")}
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "note": "\x1b[36m"}
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
COMMAND_LINE = "command line"
"""The path that readers give to a command without a file."""
HELP_URI = "https://docs.vllm.ai/en/latest/configuration/"


def clean(text: str) -> str:
    """Text of a user's file without control characters, so that no terminal escape gets through."""
    return "".join(char if unicodedata.category(char)[0] != "C" else " " for char in text)


def terminal(report: Report, lang: Lang, colour: bool) -> str:
    """One block a problem (place, name, message, what to write instead), then a line of totals."""
    lines: list[str] = []
    for problem in report.problems:
        word = _WORDS[problem.severity].pick(lang)
        if colour:
            word = f"{_COLOURS[problem.severity]}{word}\x1b[0m"
        place = "" if problem.path == COMMAND_LINE else f"{clean(problem.path)}:{problem.line}: "
        lines.append(f"{place}{word}: {clean(problem.name)}: {clean(problem.message.pick(lang))}")
        if problem.rights:
            lines.append(f"    {T('instead: ', '改用：').pick(lang)}{clean(problem.instead_in(lang))}")
    basis = report.basis.pick(lang) if report.basis is not None else report.release
    counts = T(", ", "，").pick(lang).join(_counted(report.count(s), s).pick(lang) for s in SEVERITIES)
    if not report.problems:
        counts = T("no problems", "没有问题").pick(lang)
    if report.checked == 0:
        counts = T("nothing that starts vLLM was found", "没有找到启动 vLLM 的内容").pick(lang)
    lines.append(f"{counts} · {basis}")
    lines += [clean(note.pick(lang)) for note in report.notes]
    return "\n".join(lines) + "\n"


def _counted(count: int, severity: Severity) -> T:
    """`1 error`, `2 errors`."""
    word = _WORDS[severity]
    return T(f"{count} {word.en}{'' if count == 1 else 's'}", f"{count} 个{word.zh}")


def as_json(report: Report, lang: Lang) -> str:
    """The report as JSON, schema id `lifesign.lint/1`."""
    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "release": report.release,
        "basis": report.basis.pick(lang) if report.basis is not None else "",
        "checked": report.checked,
        "problems": [_as_dict(problem, lang) for problem in report.problems],
        "notes": [note.pick(lang) for note in report.notes],
    }
    return json.dumps(answer, ensure_ascii=False, indent=2) + "\n"


def _as_dict(problem: Problem, lang: Lang) -> dict[str, Any]:
    return {
        "severity": problem.severity,
        "code": problem.code,
        "path": problem.path,
        "line": problem.line,
        "name": problem.name,
        "message": problem.message.pick(lang),
        "instead": problem.instead_in(lang),
        "source": problem.source,
    }


def sarif(report: Report, lang: Lang, version: str) -> str:
    """The report as SARIF 2.1.0, for code-scanning services."""
    used = sorted({problem.code for problem in report.problems})
    rules = [
        {"id": code, "shortDescription": {"text": CODES[code].title.pick(lang)}, "helpUri": HELP_URI} for code in used
    ]
    results = [
        {
            "ruleId": problem.code,
            "ruleIndex": used.index(problem.code),
            "level": problem.severity,
            "message": {"text": _sentence(problem, lang)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": problem.path.replace("\\", "/").replace(" ", "%20")},
                        "region": {"startLine": max(1, problem.line)},
                    }
                }
            ],
        }
        for problem in report.problems
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "lifesign", "version": version, "rules": rules}}, "results": results}],
    }
    return json.dumps(log, ensure_ascii=False, indent=2) + "\n"


def github(report: Report, lang: Lang) -> str:
    """The report as workflow commands, which GitHub shows as annotations at the lines."""
    lines = []
    for problem in report.problems:
        title = CODES[problem.code].title.pick(lang)
        place = f"file={_property(problem.path)},line={max(1, problem.line)},title={_property(title)}"
        lines.append(f"::{_LEVELS[problem.severity]} {place}::{_data(_sentence(problem, lang))}")
    return "".join(line + "\n" for line in lines)


def _sentence(problem: Problem, lang: Lang) -> str:
    text = f"{clean(problem.name)}: {clean(problem.message.pick(lang))}"
    if problem.rights:
        right = clean(problem.instead_in(lang))
        text += T(f" (instead: {right})", f"（改用：{right}）").pick(lang)
    return text


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
