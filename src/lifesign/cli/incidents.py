"""`lifesign incidents`: lists the bundles that guard kept, shows one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

from lifesign.errors import SourceError, UsageError
from lifesign.text import Lang, T, default_lang

app = typer.Typer(add_completion=False, rich_markup_mode=None)
MAX_TEXT_BYTES = 1 << 20


@app.command()
def incidents(
    incident: str = typer.Argument(
        None, metavar="[ID]", help="Show this one; `last` for the newest; a prefix is enough."
    ),
    state_dir: Path = typer.Option(None, "--state-dir", help="State folder of the guard [default: guard's]."),
    format: str = typer.Option("terminal", "--format", help="terminal or json."),
    lang: str = typer.Option(None, "--lang", help="en or zh [default: from the locale]."),
) -> None:
    """List the incident bundles that guard kept, or show one: report, processes, decision, what is missing.

    Exit code: 0 no incident (or one was shown), 2 no such incident or folder.
    """
    from lifesign.cli.reap import default_state_dirs

    if format not in ("terminal", "json"):
        raise UsageError(f"--format {format}: choose terminal or json")
    chosen: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    root = (state_dir or default_state_dirs()[0]) / "incidents"
    if not root.is_dir():
        if state_dir is not None:
            raise UsageError(f"{state_dir}: no guard kept its state there; give guard's --state-dir")
        found: list[Path] = []
    else:
        found = sorted(path for path in root.iterdir() if path.is_dir())
    if incident is None:
        _list(found, format, chosen)
        return
    _show(_choose(found, incident), format, chosen)


def _choose(found: list[Path], wanted: str) -> Path:
    matching = found[-1:] if wanted == "last" else [path for path in found if path.name.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise UsageError(f"no incident {wanted!r}; `lifesign incidents` lists them")
    raise UsageError(f"{wanted!r} could be {', '.join(path.name for path in matching[:5])}; give more of the id")


def _read(folder: Path) -> dict[str, Any]:
    from lifesign.guard.statedir import read_json

    return read_json(folder / "incident.json") or {}


def _list(found: list[Path], format: str, lang: Lang) -> None:
    rows = []
    for folder in found:
        value = _read(folder)
        cause, decision = _part(value, "cause"), _part(value, "decision")
        rows.append(
            {
                "id": folder.name,
                "path": str(folder),
                "complete": bool(value.get("complete")),
                "ended": _part(value, "life").get("ended"),
                "cause": cause.get("cause", ""),
                "subtype": cause.get("subtype", ""),
                "title": cause.get("title", ""),
                "action": decision.get("action", ""),
            }
        )
    if format == "json":
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if not rows:
        typer.echo(_NONE.pick(lang))
        return
    for row in rows:
        name = f"{row['cause']}/{row['subtype']}" if row["subtype"] else row["cause"] or _OPEN.pick(lang)
        typer.echo(_clean(f"{row['id']}  {_when(row['ended'])}  {row['action']:<8} {name}  {row['title']}"))


def _show(folder: Path, format: str, lang: Lang) -> None:
    value = _read(folder)
    if not value:
        raise SourceError(str(folder / "incident.json"), "missing or unreadable; the files beside it are all there is")
    if format == "json":
        typer.echo(json.dumps({**value, "path": str(folder)}, indent=1, ensure_ascii=False))
        return
    text = ""
    try:
        with (folder / "report.txt").open("rb") as file:
            text = file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        text = str(_part(value, "cause").get("title", ""))
    typer.echo("\n".join(_clean(line) for line in text.split("\n")))
    typer.echo(_PROCESSES.pick(lang))
    for process in value.get("processes", []):
        if process.get("role") in ("api", "core", "worker", "coordinator"):
            how = process.get("signal") or (
                _CODE.fill(code=process.get("exit_code")).pick(lang) if process.get("exit_code") is not None else "?"
            )
            by = f" {_BY_GUARD.pick(lang)}" if process.get("ended_by_guard") else ""
            typer.echo(_clean(f"  {process.get('name')} (pid {process.get('pid')})  {how}{by}"))
    decision = _part(value, "decision")
    typer.echo(_clean(f"{_DECISION.pick(lang)} {decision.get('action', '?')}: {decision.get('why', '')}"))
    for line in value.get("left_out", [])[:20]:
        typer.echo(_clean(f"{_LEFT_OUT.pick(lang)} {line}"))
    typer.echo(f"{_FILES.pick(lang)} {folder}")


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    return part if isinstance(part, dict) else {}


def _when(at: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if isinstance(at, int | float) else "-" * 19


def _clean(text: str) -> str:
    """Nothing from a log may move the cursor or change colours."""
    return "".join(char if char.isprintable() else "?" for char in text)


_NONE = T("no incident: no engine died under this guard", "没有事故：这个 guard 手下没有引擎死过")
_OPEN = T("(unfinished)", "（未完成）")
_PROCESSES = T("PROCESSES", "进程")
_CODE = T("exit code {code}", "退出码 {code}")
_BY_GUARD = T("(ended by guard)", "（由 guard 结束）")
_DECISION = T("DECISION", "处置")
_LEFT_OUT = T("NOT IN THE BUNDLE", "事故包里没有")
_FILES = T("FILES", "文件")
