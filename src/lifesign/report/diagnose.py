"""From paths to a report: the one function that the command line, guard and drill call."""

from __future__ import annotations

from lifesign import __version__
from lifesign.causes import registry
from lifesign.causes.model import Cause, Finding, Subtype
from lifesign.facts.config import learn_command
from lifesign.facts.lives import build
from lifesign.facts.model import Event, Life
from lifesign.logs.reader import Reading, read
from lifesign.logs.scan import Ahead
from lifesign.remedies import known_issues
from lifesign.report.advice import advise
from lifesign.report.model import (
    SCHEMA,
    Coverage,
    EvidenceLine,
    FactsInfo,
    FindingInfo,
    KnownIssue,
    LifeInfo,
    ProcessInfo,
    Report,
    SourceInfo,
    Verdict,
)
from lifesign.report.rank import NO_ENGINE, Ranking, rank
from lifesign.report.timeline import timeline
from lifesign.text import Lang, T

MAX_TEXT_CHARS = 400
MAX_FINDINGS = 60


def diagnose_paths(
    paths: list[str],
    *,
    lang: Lang = "en",
    vllm_version: str | None = None,
    extra: list[str] | None = None,
    ahead: Ahead | None = None,
    command: str | None = None,
) -> Report:
    """Reads the logs at `paths` (and `extra` evidence: kernel log, pod description, ...) and reports.

    vllm_version overrides what the log says; command is the user's own command line, to be corrected. Raises SourceError or UsageError for unusable input.
    """
    reading = read(paths, ahead, extra or [])
    lives = build(reading.statements, complete=reading.complete)
    if vllm_version:
        for life in lives:
            life.version = vllm_version
    if command:
        for life in lives:
            learn_command(life, command, overrides=True)
    causes, notes = registry.load()
    reading.notes.extend(notes)
    rankings = [rank(life, causes, reading.notes) for life in lives]
    chosen = choose_life(lives, rankings)
    return _report(reading, lives, rankings, chosen, lang)


def choose_life(lives: list[Life], rankings: list[Ranking]) -> int:
    """The last life that died; if none did, the last that was stopped in order, else the last."""
    for index in range(len(lives) - 1, -1, -1):
        if rankings[index].verdict.cause not in ("not-a-crash", "insufficient-log"):
            return index
    for index in range(len(lives) - 1, -1, -1):
        if rankings[index].verdict.cause == "insufficient-log" and lives[index].died:
            return index
    for index in range(len(lives) - 1, -1, -1):
        if lives[index].orderly:
            return index
    return len(lives) - 1


def _report(reading: Reading, lives: list[Life], rankings: list[Ranking], chosen: int, lang: Lang) -> Report:
    life, ranking = lives[chosen], rankings[chosen]
    verdicts = [verdict_of(each.verdict, lives[index], each, lang) for index, each in enumerate(rankings)]
    return Report(
        schema=SCHEMA,
        lifesign_version=__version__,
        source=SourceInfo(reading.paths, reading.bytes_read, reading.lines),
        facts=FactsInfo(
            engine=life.engine,
            version=life.version,
            platform=life.platform,
            model=life.model,
            config=_plain(life.config),
            lives=len(lives),
            figures={name: value for name, (value, _) in life.figures.items()},
        ),
        verdict=verdicts[chosen],
        findings=[finding_info(finding, lang) for finding in [ranking.verdict, *ranking.others][:MAX_FINDINGS]],
        lives=[
            LifeInfo(each.started_line, each.ended_line, verdict) for each, verdict in zip(lives, verdicts, strict=True)
        ],
        timeline=timeline(life, ranking, lang),
        coverage=Coverage(reading.bytes_read, reading.lines_unparsed, reading.lines_cut, reading.notes),
    )


def subtype_of(finding: Finding) -> tuple[Cause | None, Subtype | None]:
    """The cause and subtype that describe a finding; None where no page exists."""
    cause = registry.by_slug(finding.cause)
    return cause, (cause.subtypes.get(finding.subtype) if cause else None)


def verdict_of(finding: Finding, life: Life, ranking: Ranking, lang: Lang) -> Verdict:
    """The verdict object of one finding."""
    cause, subtype = subtype_of(finding)
    title = subtype.title if subtype else (cause.title if cause else T(finding.cause, finding.cause))
    why = _why(finding, subtype)
    advice, command, changes = advise(finding, life, subtype, lang)
    return Verdict(
        cause=finding.cause,
        subtype=finding.subtype,
        # A log in which no engine speaks tells no phase of one.
        phase="" if (finding.cause, finding.subtype) == NO_ENGINE else finding.event.phase.value,
        certainty=finding.certainty,
        title=title.fill(**finding.values).pick(lang),
        why=why.pick(lang),
        process=_process(finding.event),
        evidence=_evidence(finding, ranking, lang),
        remedies=advice,
        command=command,
        changes=changes,
        known_issues=known_of(finding, life, subtype, lang),
        fingerprint=finding.values.get("fingerprint", ""),
    )


MAX_KNOWN = 4


_NEAR_BEFORE, _NEAR_AFTER = 12, 6
_NEAR_CHARS, _OWN_CHARS = 600, 16_000
_FRAMES = 60
_KERNEL_LINES = 8
_LIFE_CHARS = 300
_ARGS_CHARS = 4_000


def searched_text(finding: Finding, life: Life) -> str:
    """What a public report may be recognised by: the decisive text with its frames, what stands around it, and the set-up.

    The set-up is the model, the settings, the process that spoke. A verdict without a death has no decisive line: there the
    lines of the whole life are searched.
    """
    event = finding.event
    told = [other for other in life.events if other.weight not in ("quoted", "foreign")]
    parts = [event.text[:_OWN_CHARS]]
    if event.exc is not None:
        parts += [f"{frame.file}:{frame.func}" for frame in event.exc.frames[-_FRAMES:]]
    first, last = event.index - _NEAR_BEFORE, event.index + _NEAR_AFTER
    parts += [other.text[:_NEAR_CHARS] for other in told if first <= other.index < last]
    parts += [other.text[:_NEAR_CHARS] for other in told if other.kind == "kernel"][:_KERNEL_LINES]
    parts += [other.text[:_ARGS_CHARS] for other in told if other.name == "args"][-1:]
    parts += [f"model={life.model}", f"process={event.process.name}"]
    parts += [f"{name}={value}"[:_LIFE_CHARS] for name, value in life.config.items() if value not in (None, False, "")]
    if finding.cause in _SILENT:
        parts += [other.text[:_LIFE_CHARS] for other in told]
    return "\n".join(parts)


def known_of(finding: Finding, life: Life, subtype: Subtype | None, lang: Lang) -> list[KnownIssue]:
    """Public reports that this log fits: those of the data file that match its text, then the subtype's own references."""
    text = searched_text(finding, life)
    issues = known_issues.match(finding.cause, finding.subtype, text, life.version, life.platform, MAX_KNOWN)
    known = known_issues.by_ref(subtype.known) if subtype else []
    here = [issue for issue in known if issue.may_concern(life.version, life.platform)]
    if not issues:
        issues = here[:MAX_KNOWN]
    shown = [KnownIssue(each.ref, _span(each.since, each.until), each.fixed_in, each.why.pick(lang)) for each in issues]
    if life.engine == "sglang":
        # vLLM's reports tell little about another engine.
        shown = [each for each in shown if not each.ref.startswith("vllm")]
    names = {each.ref for each in shown}
    # Of another release or platform: no use to this reader.
    names |= {ref for issue in known if issue not in here for ref in (issue.ref, *issue.also)}
    more = subtype.known if subtype is not None and life.engine != "sglang" else ()
    extra = [KnownIssue(ref) for ref in more if ref not in names]
    return shown + extra[: max(0, MAX_KNOWN - len(shown))]


def _span(since: str, until: str) -> str:
    if since and until:
        return f"{since} - {until}"
    return f"{since}+" if since else (f"- {until}" if until else "")


def _why(finding: Finding, subtype: Subtype | None) -> T:
    """The subtype's explanation; the finding's own where that only adds the figures of this log to it."""
    general = (subtype.why if subtype else T("", "")).fill(**finding.values)
    if finding.why is not None and finding.values.get("why_is_whole"):
        return finding.why
    if finding.why is not None and general.en and finding.why.en.startswith(general.en[:60]):
        return finding.why
    return general


_SILENT = ("not-a-crash", "insufficient-log")


def _evidence(finding: Finding, ranking: Ranking, lang: Lang) -> list[EvidenceLine]:
    lines: list[EvidenceLine] = []
    if finding.cause not in _SILENT and finding.event.line:
        lines.append(_root_line(finding, lang))
    for evidence in finding.evidence[:10]:
        lines.append(_line(evidence.event, evidence.role, evidence.why.pick(lang)))
    for other in ranking.others:
        if len(lines) >= 12:
            break
        if other.role in ("confirmation", "cascade", "teardown") and all(
            line.line != other.event.line for line in lines
        ):
            lines.append(_line(other.event, other.role, ""))
    shown = 0
    for event in ranking.cascade:
        # A header ("EngineCore failed to start.") only introduces the traceback that is cited itself.
        if event.name in _HEADERS or shown >= 6 or any(line.line == event.line for line in lines):
            continue
        shown += 1
        why = _DEATH_WHY.get(event.name)
        lines.append(_line(event, "cascade", why.pick(lang) if why else ""))
    return lines


_HEADERS = ("core-fatal", "core-failed-to-start", "worker-exception", "worker-failed-to-start")
_ONLY_REPORTS = T("only reports the death", "只是转述死亡")
_DEATH_WHY = {
    "engine-dead": _ONLY_REPORTS,
    "init-failed": _ONLY_REPORTS,
    "worker-init-failed": _ONLY_REPORTS,
    "cancelled": T("waited for the dead process", "在等已死的进程"),
    "worker-died": T("the monitor saw it end", "监视器发现进程退出"),
    "core-died": T("the monitor saw it end", "监视器发现进程退出"),
    "core-exited": T("the monitor saw it end", "监视器发现进程退出"),
}


def _root_line(finding: Finding, lang: Lang) -> EvidenceLine:
    _, subtype = subtype_of(finding)
    own = finding.why if finding.why is not None and finding.why is not _why(finding, subtype) else None
    line = _line(finding.event, "root", own.pick(lang) if own else "")
    exc = finding.event.exc
    if finding.line and finding.line != finding.event.line and exc is not None:
        line.line = finding.line
        line.text = next((text.strip() for number, text in exc.more if number == finding.line), line.text)[
            :MAX_TEXT_CHARS
        ]
    return line


def _line(event: Event, role: str, why: str) -> EvidenceLine:
    text = event.text.split("\n")
    shown = text[0] if len(text[0]) > 40 or len(text) == 1 else " ".join(text[:3])
    return EvidenceLine(event.path, event.line, role, shown[:MAX_TEXT_CHARS], why)


def _process(event: Event) -> ProcessInfo:
    process = event.process
    return ProcessInfo(process.role, process.name, process.pid, process.rank)


def finding_info(finding: Finding, lang: Lang) -> FindingInfo:
    """One finding, in short."""
    cause, subtype = subtype_of(finding)
    title = subtype.title if subtype else (cause.title if cause else T(finding.cause, finding.cause))
    return FindingInfo(
        finding.cause,
        finding.subtype,
        finding.role,
        finding.certainty,
        title.fill(**finding.values).pick(lang),
        _process(finding.event),
        [_line(finding.event, finding.role, "")],
    )


def _plain(config: dict[str, object]) -> dict[str, object]:
    """Only what JSON can carry, and no secrets: keys and tokens are left out."""
    kept: dict[str, object] = {}
    for key, value in list(config.items())[:120]:
        lower = str(key).lower()
        if any(word in lower for word in ("key", "token", "secret", "password")) and not lower.endswith(
            ("tokens", "tokenizer")
        ):
            kept[key] = "<redacted>"
        else:
            kept[key] = value if isinstance(value, (int, float, str, bool, type(None))) else str(value)[:300]
    return kept
