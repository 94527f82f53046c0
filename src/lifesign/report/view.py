"""A report arranged for people: the sections and words that terminal, Markdown and HTML share, in one language.

Order (see docs): what, proof, do now; then why, what it wasn't, the timeline.
"""

from __future__ import annotations

import os
import shlex

import msgspec

from lifesign.causes.not_a_crash import OPEN_END
from lifesign.report.model import Advice, EvidenceLine, Report, Verdict
from lifesign.text import Lang, T

CERTAINTY = {
    "established": T("established", "已确认"),
    "supported": T("supported", "较可信"),
    "possible": T("possible", "仅为可能"),
}
PHASE = {
    "startup-load": T("while loading", "加载阶段"),
    "profile-warmup": T("before serving (profiling)", "尚未开始服务（预热）"),
    "graph-capture": T("before serving (graph capture)", "尚未开始服务（捕获 CUDA graph）"),
    "serving": T("while serving", "服务中"),
    "shutdown": T("while stopping", "停止过程中"),
}
HEADINGS = {
    "death": T("CAUSE OF DEATH", "死因"),
    "no-verdict": T("NO VERDICT", "无法判定"),
    "alive": T("NOT A CRASH", "不是崩溃"),
    "no-death": T("NO DEATH SEEN", "没有看到死亡"),
    "proof": T("PROOF", "证据"),
    "do": T("DO NOW", "现在做"),
    "collect": T("COLLECT", "请收集"),
    "why": T("WHY", "原因"),
    "not": T("NOT THE CAUSE", "不是原因"),
    "time": T("TIMELINE", "时间线"),
    "lives": T("LIVES", "各次启动"),
    "known": T("KNOWN ISSUES", "已知问题"),
    "notes": T("NOTES", "说明"),
    "changed": T("changed", "改动"),
    "more": T("More", "详见"),
}
ROLE_WORDS = {
    "confirmation": T("the same again", "重复报告"),
    "cascade": T("followed from it", "只是后果"),
    "teardown": T("clean-up", "退出时的清理"),
    "context": T("earlier, survived", "更早出现，没有致命"),
    "advice": T("a hint, no evidence", "提示文字，不是证据"),
}
MAX_LIVES = 5
HIDDEN_LIVES = T("{count} earlier ones: --all-lives", "更早的 {count} 次：--all-lives")
NO_VERSION = T("vLLM version unknown", "vLLM 版本未知")
UNVERIFIED = T("no such option in this release", "该版本没有这个选项")


class Row(msgspec.Struct):
    """`where` (file:line), the text, and what it means."""

    where: str
    text: str
    note: str = ""


class View(msgspec.Struct):
    """Everything a renderer shows, in order."""

    heading: str
    title: str
    certainty: str
    identity: str
    setup: str
    why: str
    proof: list[Row] = msgspec.field(default_factory=list)
    do_heading: str = ""
    remedies: list[Advice] = msgspec.field(default_factory=list)
    command: str = ""
    changes: list[str] = msgspec.field(default_factory=list)
    not_cause: list[Row] = msgspec.field(default_factory=list)
    timeline: list[Row] = msgspec.field(default_factory=list)
    known: list[Row] = msgspec.field(default_factory=list)
    lives: list[Row] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    more: str = ""


def setting(item: Advice) -> str:
    """A remedy's setting as one types it, shell-quoted: `--max-num-seqs 64`, `export NCCL_P2P_DISABLE=1`."""
    if not item.knob:
        return ""
    several = item.knob in ("--cudagraph-capture-sizes", "--cuda-graph-sizes")
    value = item.value if several else shlex.quote(item.value) if item.value else ""
    if item.knob.startswith("-"):
        return f"{item.knob} {value}".rstrip()
    return f"export {item.knob}={value}" if item.value else item.knob


def view(report: Report, lang: Lang, *, all_lives: bool = False) -> View:
    """The view of a report."""
    verdict = report.verdict
    silent = verdict.cause in ("insufficient-log", "not-a-crash")
    heading = {"insufficient-log": "no-verdict", "not-a-crash": "alive"}.get(verdict.cause, "death")
    if heading == "alive" and verdict.subtype in OPEN_END:
        heading = "no-death"
    many = len(report.source.paths) > 1
    result = View(
        heading=HEADINGS[heading].pick(lang),
        title=verdict.title,
        certainty=CERTAINTY.get(verdict.certainty, T(verdict.certainty, verdict.certainty)).pick(lang)
        if not silent
        else verdict.cause,
        identity=_identity(verdict, lang),
        setup=_setup(report, lang),
        why=verdict.why,
        do_heading=HEADINGS["collect" if verdict.cause == "insufficient-log" else "do"].pick(lang),
        remedies=verdict.remedies,
        command=verdict.command,
        changes=verdict.changes,
        notes=report.coverage.notes,
    )
    result.proof = [
        Row(_where(line, many), line.text, line.why) for line in verdict.evidence if line.role in ("root", "proof")
    ]
    result.not_cause = _not_cause(verdict, many, lang)
    result.timeline = [Row(entry.time, entry.event, entry.process) for entry in report.timeline]
    result.known = [
        Row(issue.ref, issue.why, _affects(issue.affects, issue.fixed_in, lang)) for issue in verdict.known_issues
    ]
    if all_lives or len(report.lives) > 1:
        rows = [
            _life(index, life.started_line, life.ended_line, life.verdict) for index, life in enumerate(report.lives)
        ]
        hidden = 0 if all_lives else max(0, len(rows) - MAX_LIVES)
        more = [Row("...", HIDDEN_LIVES.fill(count=hidden).pick(lang))] if hidden else []
        result.lives = more + rows[hidden:]
    if verdict.cause not in ("unclassified",):
        result.more = f"lifesign explain {verdict.cause}" + (f"/{verdict.subtype}" if not silent else "")
    return result


def _identity(verdict: Verdict, lang: Lang) -> str:
    parts = [f"{verdict.cause} / {verdict.subtype}"]
    process = verdict.process
    if process.name and verdict.cause not in ("not-a-crash", "insufficient-log"):
        parts.append(process.name + (f" (pid {process.pid})" if process.pid else ""))
    if verdict.phase in PHASE:
        parts.append(PHASE[verdict.phase].pick(lang))
    return " · ".join(parts)


def _setup(report: Report, lang: Lang) -> str:
    facts = report.facts
    parts = [f"vLLM {facts.version}" if facts.version else NO_VERSION.pick(lang)]
    if facts.engine != "vllm":
        parts = [facts.engine]
    if facts.model:
        parts.append(os.path.basename(facts.model.rstrip("/")) or facts.model)
    for key, short in (("tensor_parallel_size", "TP"), ("pipeline_parallel_size", "PP"), ("data_parallel_size", "DP")):
        value = facts.config.get(key)
        if isinstance(value, int) and value > 1:
            parts.append(f"{short} {value}")
    total = facts.figures.get("total_gib") or facts.figures.get("total_start_gib")
    if total:
        parts.append(f"{total:g} GiB")
    if facts.platform != "cuda":
        parts.append(facts.platform)
    return " · ".join(parts)


def _where(line: EvidenceLine, many: bool) -> str:
    name = line.path if many and len(line.path) < 40 else os.path.basename(line.path) or line.path
    return f"{name}:{line.line}"


def _not_cause(verdict: Verdict, many: bool, lang: Lang) -> list[Row]:
    """One row per text: lines that say the same stand together (`:12 :40 ... (5x)`)."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for line in verdict.evidence:
        if line.role in ROLE_WORDS:
            note = line.why or ROLE_WORDS[line.role].pick(lang)
            groups.setdefault((line.path if many else "", line.text[:60], note), []).append(line.line)
    rows: list[Row] = []
    for (path, text, note), numbers in groups.items():
        where = " ".join(f":{number}" for number in numbers[:2]) + (f" ({len(numbers)}x)" if len(numbers) > 2 else "")
        rows.append(Row(f"{os.path.basename(path)}{where}", text, note))
    return rows[:8]


def _affects(affects: str, fixed_in: str, lang: Lang) -> str:
    if fixed_in:
        return T(f"fixed in {fixed_in}", f"{fixed_in} 已修复").pick(lang)
    return affects


def _life(index: int, started: int, ended: int, verdict: Verdict) -> Row:
    return Row(f"{started}-{ended}", f"{index + 1}. {verdict.cause}/{verdict.subtype}", verdict.title)
