"""The report as Markdown, for issues and chats. Everything from the log stands in code spans that can't be broken."""

from __future__ import annotations

import re

from lifesign.report.model import Advice, Report
from lifesign.report.view import HEADINGS, UNVERIFIED, setting, view
from lifesign.text import Lang


def render_markdown(report: Report, lang: Lang, *, all_lives: bool = False) -> str:
    """Markdown with a final newline."""
    shown = view(report, lang, all_lives=all_lives)
    rows = [
        f"## {_plain(shown.heading)}: {_plain(shown.title)}",
        "",
        f"{_code(shown.certainty)} · {_plain(shown.identity)}  ",
        _plain(shown.setup),
        "",
    ]
    if shown.why:
        rows += [_plain(shown.why), ""]
    if shown.proof:
        rows.append(f"### {HEADINGS['proof'].pick(lang)}")
        for row in shown.proof:
            rows += [f"- {_code(row.where)} {_code(row.text)}"] + ([f"  {_plain(row.note)}"] if row.note else [])
        rows.append("")
    if shown.remedies:
        rows.append(f"### {shown.do_heading}")
        for item in shown.remedies:
            rows += _remedy(item, lang)
        rows.append("")
    if shown.command:
        rows += ["```sh", shown.command.replace("```", "'''"), "```", ""]
        if shown.changes:
            rows += [f"{HEADINGS['changed'].pick(lang)}: {', '.join(_code(change) for change in shown.changes)}", ""]
    if shown.not_cause:
        rows.append(f"### {HEADINGS['not'].pick(lang)}")
        rows += [f"- {_code(row.where)} {_code(row.text[:160])}: {_plain(row.note)}" for row in shown.not_cause]
        rows.append("")
    if shown.timeline:
        rows.append(f"### {HEADINGS['time'].pick(lang)}")
        rows += [
            f"- {_code(row.where or '-')} {_plain(row.text)}" + (f" ({_plain(row.note)})" if row.note else "")
            for row in shown.timeline
        ]
        rows.append("")
    if shown.known:
        rows.append(f"### {HEADINGS['known'].pick(lang)}")
        rows += [f"- {_plain(row.where)}: {_plain(row.text)} {_plain(row.note)}".rstrip() for row in shown.known]
        rows.append("")
    if shown.lives:
        rows.append(f"### {HEADINGS['lives'].pick(lang)}")
        rows += [f"- {_code(row.where)} {_plain(row.text)}: {_plain(row.note)}" for row in shown.lives]
        rows.append("")
    rows += [f"> {_plain(note)}" for note in shown.notes]
    rows.append(
        f"lifesign {report.lifesign_version} · {_code(shown.more)}"
        if shown.more
        else f"lifesign {report.lifesign_version}"
    )
    return "\n".join(rows).rstrip() + "\n"


def _remedy(item: Advice, lang: Lang) -> list[str]:
    rows = [f"{item.rank}. **{_plain(item.title)}**"]
    if item.knob:
        rows[0] += f" {_code(setting(item))}"
    if item.valid_in_version is False:
        rows[0] += f" ({UNVERIFIED.pick(lang)})"
    rows += [f"   {_plain(text)}" for text in (item.why, item.cost, item.note) if text]
    if item.command and item.kind not in ("flag", "env"):
        rows += ["   ```sh", *(f"   {part}" for part in item.command.replace("```", "'''").split("\n")), "   ```"]
    return rows


def _plain(text: str) -> str:
    """Text in which Markdown and HTML have no power."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text.replace("\n", " "))


def _code(text: str) -> str:
    """A code span that holds `text` whatever back-ticks it has."""
    text = text.replace("\n", " ").strip() or " "
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{text}{pad}{fence}"
