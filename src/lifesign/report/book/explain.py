"""The page of a cause or a subtype, and the list of causes, as text for the terminal and as Markdown for docs/."""

from __future__ import annotations

import difflib
import re

from lifesign.causes import pages, registry
from lifesign.causes.model import Cause, Subtype
from lifesign.errors import UsageError
from lifesign.remedies import known_issues
from lifesign.remedies.model import Form, Remedy
from lifesign.text import Lang, T, capitalized

_SUBTYPES = T("Subtypes", "细分类型")
_REMEDIES = T("What to do, in order", "按顺序做什么")
_KNOWN = T("Public reports", "公开报告")
_CAUSES = T("Causes", "死因一览")
_HINT = T(
    "`lifesign explain CAUSE` or `CAUSE/SUBTYPE` shows a page.",
    "用 `lifesign explain CAUSE` 或 `CAUSE/SUBTYPE` 查看某一页。",
)


def list_causes(lang: Lang) -> str:
    """Every cause with its title and its subtypes."""
    rows = [_CAUSES.pick(lang), ""]
    for cause in registry.load()[0]:
        rows.append(f"{cause.slug}: {capitalized(cause.title.pick(lang))}")
        rows.append("    " + ", ".join(cause.subtypes))
    rows += ["", _HINT.pick(lang)]
    return "\n".join(rows) + "\n"


def find(what: str) -> tuple[Cause, Subtype | None, str]:
    """The cause and subtype that `what` (`CAUSE`, `CAUSE/SUBTYPE` or `SUBTYPE`) names. Raises UsageError with a near name."""
    slug, _, name = what.strip().strip("/").partition("/")
    cause = registry.by_slug(slug)
    if cause is not None and not name:
        return cause, None, ""
    if cause is not None and name in cause.subtypes:
        return cause, cause.subtypes[name], name
    if cause is None:
        for other in registry.load()[0]:
            if slug in other.subtypes:
                return other, other.subtypes[slug], slug
    known = [each.slug for each in registry.load()[0]] + [
        f"{each.slug}/{sub}" for each in registry.load()[0] for sub in each.subtypes
    ]
    near = difflib.get_close_matches(what, known, 1, 0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UsageError(f"no cause is called {what!r}.{hint} `lifesign explain` lists them.")


def explain_cause(what: str, lang: Lang) -> str:
    """The page for the terminal: Markdown that reads well as text."""
    cause, subtype, name = find(what)
    if subtype is not None:
        return subtype_page(cause, name, subtype, lang)
    return cause_page(cause, lang)


def subtype_page(cause: Cause, name: str, subtype: Subtype, lang: Lang) -> str:
    """One subtype: what it is, what to do, and where it was reported."""
    rows = [f"# {cause.slug} / {name}", "", f"**{plain(subtype.title, lang)}**", "", plain(subtype.why, lang), ""]
    rows += [f"## {_REMEDIES.pick(lang)}", "", *remedy_rows(subtype.remedies, lang), ""]
    rows += known_rows(cause.slug, name, subtype, lang)
    rows.append(f"`lifesign explain {cause.slug}`")
    return "\n".join(rows) + "\n"


def known_rows(slug: str, name: str, subtype: Subtype, lang: Lang) -> list[str]:
    """Public reports of a subtype: those with their facts first, then bare references."""
    told = known_issues.about(slug, name)
    rows = [
        f"- {issue.ref}: {issue.why.pick(lang)}" + (f" ({issue.fixed_in})" if issue.fixed_in else "") for issue in told
    ]
    bare = [ref for ref in subtype.known if ref not in {issue.ref for issue in told}]
    rows += [f"- {', '.join(bare)}"] if bare else []
    return [f"## {_KNOWN.pick(lang)}", "", *rows, ""] if rows else []


def cause_page(cause: Cause, lang: Lang) -> str:
    """The whole page of a cause: its sections, its subtypes with their first remedies."""
    rows = [f"# {cause.slug}: {capitalized(cause.title.pick(lang))}", "", cause.summary.pick(lang), ""]
    for section in pages.sections(cause):
        title, body = (section.title_zh, section.zh) if lang == "zh" else (section.title_en, section.en)
        rows += [f"## {title}", "", body, ""]
    rows += [f"## {_SUBTYPES.pick(lang)}", ""]
    for name, subtype in cause.subtypes.items():
        rows.append(f"- `{name}`: {plain(subtype.title, lang)}")
    return "\n".join(rows).rstrip() + "\n"


def remedy_rows(remedies: tuple[Remedy, ...], lang: Lang) -> list[str]:
    """A numbered list; each remedy with its newest form."""
    rows: list[str] = []
    for number, remedy in enumerate(remedies, 1):
        form = remedy.forms[0] if remedy.forms else None
        knob = f" `{spelled_form(form)}`" if form is not None else ""
        rows.append(f"{number}. **{plain(remedy.title, lang)}**{knob}")
        rows.append(f"   {plain(remedy.why, lang)}")
        if remedy.cost is not None:
            rows.append(f"   ({plain(remedy.cost, lang)})")
        if remedy.command and form is None:
            rows += ["   ```sh", *(f"   {line}" for line in remedy.command.split("\n")), "   ```"]
    return rows


def spelled_form(form: Form) -> str:
    """A form with `N` for its computed value: `--max-num-seqs N`, `NCCL_P2P_DISABLE=1`."""
    value = (form.value or "").replace("{value}", "N")
    if not form.knob.startswith("-"):
        return f"{form.knob}={value}"
    return f"{form.knob} {value}".rstrip()


def plain(text: T, lang: Lang) -> str:
    """The text with unfilled `{name}` fields shown as an ellipsis: a page has no log to take figures from."""
    return re.sub(r"\{[a-z_]+\}", "…", text.pick(lang))
