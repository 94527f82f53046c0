"""Shows what came of drills: a table for people, JSON for programs, JUnit XML for CI, Markdown for documents."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from lifesign import __version__
from lifesign.drill.outcome import COMMA, Outcome, describe_client, describe_left
from lifesign.errors import UsageError
from lifesign.report.view import CERTAINTY
from lifesign.text import Lang, T

SCHEMA = "lifesign.drill/1"
LINE = T(" (line {number})", "（第 {number} 行）")
PATIENT = T(
    "LIFESIGN_PATIENCE=1: a worker that computes is waited for, whatever the limit",
    "LIFESIGN_PATIENCE=1：只要 worker 还在计算，就一直等，不管时限",
)
ANY_SUBTYPE = T(" (any subtype)", "（任何子类都算）")
OR_ELSE = T(" (the log may also show: {others})", "（日志也可能表现为：{others}）")
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


def tally(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many passed, failed and were skipped; the skipped count as nothing else."""
    results = [outcome.result for outcome in outcomes]
    return {"passed": results.count("PASS"), "failed": results.count("FAIL"), "skipped": results.count("SKIPPED")}


def strictness(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """(N, M): of M drills with a diagnosis, N name the injected cause itself and not one that is merely accepted."""
    judged = [outcome for outcome in outcomes if outcome.got is not None and not outcome.got.problem]
    return sum(outcome.strict for outcome in judged), len(judged)


def summary(outcomes: Sequence[Outcome]) -> str:
    """`98 passed, 0 failed, 32 skipped; strict 98 of 98` (strict: the injected cause itself)."""
    counts = tally(outcomes)
    strict, judged = strictness(outcomes)
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped; strict {strict} of {judged}"


def as_json(outcomes: Sequence[Outcome]) -> str:
    """All results as one JSON object, schema `lifesign.drill/1`."""
    body = {
        "schema": SCHEMA,
        "lifesign_version": __version__,
        **tally(outcomes),
        "strict": strictness(outcomes)[0],
        "judged": strictness(outcomes)[1],
        "results": [outcome.as_json() for outcome in outcomes],
    }
    return json.dumps(body, indent=2, ensure_ascii=False)


def as_junit(outcomes: Sequence[Outcome]) -> str:
    """All results as JUnit XML: one suite, one case a fault."""
    counts = tally(outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name="lifesign drill",
        tests=str(len(outcomes)),
        failures=str(counts["failed"]),
        skipped=str(counts["skipped"]),
        errors="0",
        time=f"{sum(outcome.wall_s for outcome in outcomes):.1f}",
    )
    for outcome in outcomes:
        suite_name = f"drill.{outcome.engine}.{outcome.release or 'command'}"
        case = ElementTree.SubElement(
            suite, "testcase", classname=suite_name, name=outcome.fault.name, time=f"{outcome.wall_s:.1f}"
        )
        reason = NOT_XML.sub("?", outcome.reason)
        if outcome.result == "FAIL":
            ElementTree.SubElement(case, "failure", message=reason).text = NOT_XML.sub("?", outcome.log)
        elif outcome.result == "SKIPPED":
            ElementTree.SubElement(case, "skipped", message=reason)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """All results as a Markdown table."""
    lines = [
        f"{summary(outcomes)}.",
        "",
        "| fault | result | injected | diagnosed | exit code | seconds to the end | client |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for outcome in outcomes:
        got = outcome.got.slug if outcome.got and outcome.got.cause else outcome.reason
        cells = (
            outcome.fault.name,
            outcome.result,
            outcome.fault.expect.slug,
            got,
            "-" if outcome.exit_code is None else outcome.exit_code,
            "-" if outcome.death_s is None else outcome.death_s,
            describe_client(outcome.client),
        )
        lines.append("| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


WRITERS = {".xml": as_junit, ".json": as_json, ".md": as_markdown}


def write_report(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a report in the form that the file's suffix names. UsageError for another suffix or an unwritable file."""
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise UsageError(f"{path} has no known suffix. Use .xml (JUnit), .json or .md.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(writer(outcomes), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}. Choose another file.") from error


def row(outcome: Outcome) -> tuple[str, ...]:
    """The cells of one line of the table."""
    if outcome.result == "SKIPPED":
        return (outcome.result, outcome.fault.name, outcome.fault.expect.slug, outcome.reason, "", "", "")
    got = outcome.got.slug if outcome.got and outcome.got.cause else "-"
    code = "lives" if outcome.exit_code is None else str(outcome.exit_code)
    death = "" if outcome.death_s is None else f"{outcome.death_s:.1f} s"
    return (
        outcome.result,
        outcome.fault.name,
        outcome.fault.expect.slug,
        got,
        code,
        death,
        describe_client(outcome.client),
    )


def story(outcome: Outcome, lang: Lang) -> list[tuple[str, str]]:
    """(label, text) lines that tell one drill: what was done, what was seen, what the diagnosis says."""
    zh = lang == "zh"
    lines = [
        ("演练" if zh else "DRILL", f"{outcome.fault.name}: {outcome.fault.title.pick(lang)}"),
        ("引擎" if zh else "ENGINE", f"{outcome.engine} {outcome.release}".strip()),
    ]
    if outcome.fault.patience:
        lines.append(("耐心等待" if zh else "PATIENCE", PATIENT.pick(lang)))
    if outcome.result == "SKIPPED":
        return [*lines, ("跳过" if zh else "SKIPPED", outcome.why.pick(lang) if outcome.why else "")]
    lines += [
        ("经过" if zh and not index else "SEEN" if not index else "", f"{time_s:+7.1f} s  {text.pick(lang)}")
        for index, (time_s, text) in enumerate(outcome.events)
    ]
    lines.append(("客户端" if zh else "CLIENT", describe_client(outcome.client, lang)))
    states = COMMA.pick(lang).join(f"{time_s:g} s {state}" for time_s, state in outcome.health)
    if states:
        lines.append(("健康检查" if zh else "HEALTH", states))
    code = ("仍在运行" if zh else "still runs") if outcome.exit_code is None else str(outcome.exit_code)
    lines.append(("退出码" if zh else "EXIT CODE", code))
    lines.append(("残留" if zh else "LEFT", describe_left(outcome.left, lang)))
    if outcome.got is not None and outcome.got.cause:
        certainty = CERTAINTY.get(outcome.got.certainty, T(outcome.got.certainty, outcome.got.certainty)).pick(lang)
        where = LINE.fill(number=outcome.got.line).pick(lang) if outcome.got.line else ""
        lines.append(("诊断" if zh else "DIAGNOSIS", f"{outcome.got.slug}{COMMA.pick(lang)}{certainty}{where}"))
        if outcome.got.text:
            lines.append(("", _plain(outcome.got.text)))
    lines.append(("预期" if zh else "EXPECTED", _expected(outcome, lang)))
    lines.append(
        ("结果" if zh else "RESULT", outcome.result + (f": {_plain(outcome.why.pick(lang))}" if outcome.why else ""))
    )
    return lines


def _expected(outcome: Outcome, lang: Lang) -> str:
    """What the fault expects, and what else counts as right."""
    expect = outcome.fault.expect
    if not expect.subtype:
        return expect.slug + ANY_SUBTYPE.pick(lang)
    others = [*expect.accept_subtypes, *(f"{cause}/..." for cause in expect.accept)]
    if not others:
        return expect.slug
    return expect.slug + OR_ELSE.fill(others=("、" if lang == "zh" else ", ").join(others)).pick(lang)


def _plain(text: str) -> str:
    """Text from a log without anything that a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)[:300]
