"""Remedies of a finding, rendered for this life: the right form for the release, values, the corrected command."""

from __future__ import annotations

from lifesign.causes.model import Finding, Subtype
from lifesign.facts.model import Life
from lifesign.report.model import Advice
from lifesign.text import Lang

MAX_REMEDIES = 8


def advise(finding: Finding, life: Life, subtype: Subtype | None, lang: Lang) -> tuple[list[Advice], str]:
    """The remedies in order, and the user's command with the first change applied (empty if it can't be built)."""
    remedies = finding.remedies if finding.remedies is not None else (subtype.remedies if subtype else ())
    advice: list[Advice] = []
    for remedy in remedies:
        if len(advice) >= MAX_REMEDIES:
            break
        if remedy.unless is not None and remedy.unless(life):
            continue
        knob, value = "", ""
        if remedy.forms:
            form = remedy.forms[0]
            knob, value = form.knob, form.value or ""
        advice.append(
            Advice(
                rank=len(advice) + 1,
                kind=remedy.kind,
                title=remedy.title.fill(**finding.values).pick(lang),
                knob=knob,
                value=value,
                command=remedy.command or "",
                why=remedy.why.fill(**finding.values).pick(lang),
                cost=remedy.cost.pick(lang) if remedy.cost else "",
                source=remedy.source,
            )
        )
    return advice, ""
