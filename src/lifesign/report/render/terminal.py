"""The terminal report: what a tired person needs first, within the width of the terminal, plain when piped."""

from __future__ import annotations

import io
import os
import shutil
import sys

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lifesign.report.model import Advice, Report
from lifesign.report.render.pasteable import pieces
from lifesign.report.render.wrapping import spans
from lifesign.report.view import HEADINGS, UNVERIFIED, Row, View, setting, view
from lifesign.text import Lang, T

MIN_WIDTH, MAX_WIDTH = 60, 110
_PROOF_LINES = 4
MAX_SHOWN = 5
"""Remedies on one screen; the others are a command away."""
MORE = T("{count} more: {command}", "还有 {count} 条：{command}")


def render_terminal(report: Report, lang: Lang, *, all_lives: bool = False, to_file: bool = False) -> str:
    """The report as text with a final newline; with colours only when standard output is a terminal that wants them."""
    color = not to_file and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size((80, 24)).columns))
    page = _Page(width, color)
    shown = view(report, lang, all_lives=all_lives)
    _head(page, shown)
    _proof(page, shown, lang)
    _remedies(page, shown, lang)
    _rest(page, shown, lang)
    return page.text()


class _Page:
    """Lines with a heading column; text wraps by cells, so that wide characters count as two."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = width
        self._buffer = io.StringIO()
        self._console = Console(
            file=self._buffer,
            width=width,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def text(self) -> str:
        return self._buffer.getvalue().rstrip("\n") + "\n"

    def blank(self) -> None:
        self._buffer.write("\n")

    def block(
        self, first: str, body: str | Text, indent: int, *, style: str = "", first_style: str = "bold", limit: int = 0
    ) -> None:
        """Writes `first` in the left column and `body` beside it, wrapped and indented."""
        room = max(20, self.width - indent - 1)
        text = body if isinstance(body, Text) else Text(body, style=style)
        lines = [
            paragraph[start:end]
            for paragraph in text.split("\n", allow_blank=True)
            for start, end in spans(paragraph.plain, room) or [(0, 0)]
        ]
        cut = limit and len(lines) > limit
        for number, line in enumerate(lines[:limit] if limit else lines):
            left = first if number == 0 else ""
            row = Text(" ")
            row.append(left, style=first_style if left else "")
            row.append(" " * max(1 if left else 0, indent - 1 - cell_len(left)))
            line.rstrip()
            if cut and number == limit - 1:
                line.truncate(max(1, room - 4))
                line.append(" ...")
            row.append_text(line)
            row.rstrip()
            self._console.print(row, soft_wrap=True)

    def command(self, command: Text, indent: int) -> None:
        """Writes a shell command of one line so that it can be pasted as it stands: see `pasteable`."""
        for piece in pieces(command.plain, max(20, self.width - indent - 1)):
            row = Text(" " * indent + piece.before)
            row.append_text(command[piece.start : piece.end])
            row.append(piece.after, style=command.style)
            self._console.print(row, soft_wrap=True)


def _head(page: _Page, shown: View) -> None:
    indent = cell_len(shown.heading) + 4
    room = page.width - indent - 1
    gap = room - cell_len(shown.title) - cell_len(shown.certainty)
    title = Text(shown.title, style="bold")
    if gap >= 2:
        title.append(" " * gap)
        title.append(shown.certainty, style="cyan")
        page.block(shown.heading, title, indent, first_style="bold red")
    else:
        page.block(shown.heading, title, indent, first_style="bold red")
        page.block("", Text(shown.certainty, style="cyan"), indent)
    page.block("", shown.identity, indent)
    page.block("", shown.setup, indent, style="dim")
    page.blank()


def _proof(page: _Page, shown: View, lang: Lang) -> None:
    if not shown.proof:
        if shown.why:
            page.block("", shown.why, cell_len(shown.heading) + 4)
            page.blank()
        return
    heading = HEADINGS["proof"].pick(lang)
    indent = cell_len(heading) + 4
    for row in shown.proof:
        left = f"{row.where}   "
        column = indent + min(cell_len(left), 28)
        _two_columns(page, heading, left, row, indent, column)
        heading = ""
    page.blank()


def _two_columns(page: _Page, heading: str, left: str, row: Row, indent: int, column: int) -> None:
    first = heading + " " * max(1, indent - 1 - cell_len(heading)) + left
    if cell_len(left) > 24:
        page.block(heading, Text(left.strip(), style="bold"), indent)
        column, first = indent, ""
    page.block(first, row.text, column, limit=_PROOF_LINES)
    if row.note:
        page.block("", row.note, column, style="dim")


def _remedies(page: _Page, shown: View, lang: Lang) -> None:
    indent = cell_len(shown.do_heading) + 4
    heading = shown.do_heading
    listed = shown.remedies[:MAX_SHOWN]
    ranks: dict[str, list[int]] = {}
    for item in listed:
        ranks.setdefault(item.note, []).append(item.rank)
    for item in listed:
        alone = len(ranks[item.note]) == 1
        _remedy(page, heading, item, indent, lang, item.note if alone else "")
        heading = ""
    # What holds for several remedies (that their release isn't known) is said once.
    for note, several in ranks.items():
        if note and len(several) > 1:
            page.block("", f"{', '.join(map(str, several))}: {note}", indent, style="dim")
    rest = len(shown.remedies) - MAX_SHOWN
    if rest > 0:
        page.block("", MORE.fill(count=rest, command=shown.more).pick(lang), indent + 3, style="dim")
    if shown.command:
        page.blank()
        command = Text(shown.command, style="green")
        for change in shown.changes:
            # `+ --flag value` or `--flag: old -> new`: the flag in its new form stands in the command.
            command.highlight_words([change.removeprefix("+ ").partition(":")[0]], "bold reverse")
        page.command(command, indent)
        if shown.changes:
            page.block("", f"{HEADINGS['changed'].pick(lang)}: {'; '.join(shown.changes)}", indent, style="dim")
    if shown.remedies:
        page.blank()


def _remedy(page: _Page, heading: str, item: Advice, indent: int, lang: Lang, note: str) -> None:
    first = heading + " " * max(1, indent - 1 - cell_len(heading)) + str(item.rank)
    knob = setting(item)
    room = page.width - indent - 4
    line = Text(item.title, style="bold")
    gap = max(3, 26 - cell_len(item.title))
    if knob and cell_len(item.title) + gap + cell_len(knob) <= room:
        line.append(" " * gap)
        line.append(knob, style="green")
        knob = ""
    page.block(first, line, indent + 3)
    if knob:
        page.block("", Text(knob, style="green"), indent + 3)
    if item.command and item.kind not in ("flag", "env"):
        for part in item.command.split("\n"):
            page.command(Text(part, style="green"), indent + 3)
    if item.valid_in_version is False:
        page.block("", UNVERIFIED.pick(lang), indent + 3, style="yellow")
    for text in (item.why, item.cost, note):
        if text:
            page.block("", text, indent + 3, style="dim")


def _rest(page: _Page, shown: View, lang: Lang) -> None:
    if shown.why and shown.proof:
        heading = HEADINGS["why"].pick(lang)
        page.block(heading, shown.why, cell_len(heading) + 4)
        page.blank()
    if shown.known:
        heading = HEADINGS["known"].pick(lang)
        indent = cell_len(heading) + 4
        told = [row for row in shown.known if row.text or row.note]
        bare = [row.where for row in shown.known if not row.text and not row.note]
        for row in told:
            page.block(heading, " · ".join(part for part in (row.where, row.text, row.note) if part), indent)
            heading = ""
        if bare:
            page.block(heading, " · ".join(bare), indent)
    if shown.not_cause:
        if shown.known:
            page.blank()
        heading = HEADINGS["not"].pick(lang)
        indent = cell_len(heading) + 4
        for row in shown.not_cause:
            body = Text(f"{row.where}  ", style="dim")
            room = page.width - indent - 3 - cell_len(row.where) - cell_len(row.note) - 4
            body.append(_shorten(row.text, max(16, room)))
            body.append(f"  {row.note}", style="dim")
            page.block(heading, body, indent)
            heading = ""
    if shown.timeline:
        heading = HEADINGS["time"].pick(lang)
        entries = [
            f"{_clock(row.where)} {row.text}".strip() + (f" ({row.note})" if row.note else "") for row in shown.timeline
        ]
        page.block(heading, " · ".join(entries), cell_len(heading) + 4, style="dim")
    if shown.lives:
        heading = HEADINGS["lives"].pick(lang)
        indent = cell_len(heading) + 4
        for row in shown.lives:
            page.block(heading, f"{row.where}  {row.text}  {row.note}", indent)
            heading = ""
    for note in shown.notes:
        page.block(HEADINGS["notes"].pick(lang), note, cell_len(HEADINGS["notes"].pick(lang)) + 4, style="yellow")
    if shown.more:
        page.block(
            f"{HEADINGS['more'].pick(lang)}:", shown.more, cell_len(HEADINGS["more"].pick(lang)) + 3, first_style=""
        )


def _shorten(text: str, room: int) -> str:
    """`text` cut to `room` cells."""
    if cell_len(text) <= room:
        return text
    kept = ""
    for character in text:
        if cell_len(kept) + cell_len(character) > room - 3:
            break
        kept += character
    return kept + "..."


def _clock(stamp: str) -> str:
    """The time of day of a stamp."""
    for separator in ("T", " "):
        if separator in stamp:
            stamp = stamp.split(separator)[-1]
    return stamp[:8]
