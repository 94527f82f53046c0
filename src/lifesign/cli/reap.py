"""`lifesign reap`: shows what dead engines left behind, and ends it with --yes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lifesign.errors import UsageError
from lifesign.text import Lang, T, default_lang

if TYPE_CHECKING:
    from lifesign.guard.leftovers import Leftover

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def reap(
    yes: bool = typer.Option(False, "--yes", help="End the processes (TERM, then KILL) and remove the files shown."),
    state_dir: list[Path] = typer.Option(
        [], "--state-dir", help="State folder of a guard whose record names processes; repeatable [default: guard's]."
    ),
    tmp: Path = typer.Option(None, "--tmp", help="Temporary folder to look into [default: $TMPDIR or /tmp]."),
    format: str = typer.Option("terminal", "--format", help="terminal or json."),
    lang: str = typer.Option(None, "--lang", help="en or zh [default: from the locale]."),
) -> None:
    """Find engine processes without a living parent, and memory, sockets and files that nobody uses any more.

    Exit code: 0 nothing is left, 1 something is (or was only shown), 2 the command is unusable.
    """
    from lifesign.guard import leftovers
    from lifesign.guard.evidence.devices import pids_on_devices
    from lifesign.guard.helpers import Helpers

    if format not in ("terminal", "json"):
        raise UsageError(f"--format {format}: choose terminal or json")
    chosen: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    device_pids = pids_on_devices(Helpers())
    processes = leftovers.find_processes(state_dir or default_state_dirs(), device_pids)
    files = leftovers.find_files(time.time(), tmp=tmp)
    failed: list[Leftover] = []
    done: list[Leftover] = []
    if yes:
        if format == "terminal":
            for item in processes + files:
                typer.echo(_line(item, chosen))
        failed = leftovers.end_processes(processes)
        done = [item for item in processes if item.kind == "process" and item not in failed]
        known = {item.path for item in files}
        # What the processes held is free only now.
        for item in leftovers.find_files(time.time(), tmp=tmp) + [one for one in files if one.path not in known]:
            reason = leftovers.remove(item)
            if reason:
                item.why = reason
                failed.append(item)
            else:
                done.append(item)
    _show(processes + files, done, failed, yes, format, chosen)
    zombies = [item for item in processes if item.kind == "zombie"]
    remaining = failed + zombies if yes else processes + files
    raise typer.Exit(1 if remaining else 0)


def default_state_dirs() -> list[Path]:
    """Where guards keep their state unless told otherwise."""
    base = os.environ.get("LIFESIGN_STATE_DIR")
    if base:
        return [Path(base)]
    return [Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lifesign"]


def _show(
    found: list[Leftover], done: list[Leftover], failed: list[Leftover], yes: bool, format: str, lang: Lang
) -> None:
    if format == "json":
        shown = {
            "schema": "lifesign.reap/1",
            "found": [item.as_json() for item in found],
            "ended": [item.as_json() for item in done],
            "failed": [item.as_json() for item in failed],
        }
        typer.echo(json.dumps(shown, indent=1, ensure_ascii=False))
        return
    if not found:
        typer.echo(_NOTHING.pick(lang))
        return
    if not yes:
        for item in found:
            typer.echo(_line(item, lang))
        typer.echo(_HINT.pick(lang), err=True)
        return
    typer.echo(_DONE.fill(n=len(done)).pick(lang), err=True)
    for item in failed:
        typer.echo(_FAILED.fill(name=item.name, why=item.why).pick(lang), err=True)


def _line(item: Leftover, lang: Lang) -> str:
    what = _KINDS[item.kind].pick(lang)
    where = f"pid {item.proc.pid}" if item.proc else item.path
    size = f" ({item.size_bytes / 2**20:.1f} MiB)" if item.size_bytes else ""
    holds = f" · {_HOLDS.pick(lang)} {', '.join(item.holds)}" if item.holds else ""
    name = "".join(char if char.isprintable() else "?" for char in item.name)
    return f"{what:<8} {name}  {where}{size}  {item.why}{holds}"


_KINDS = {
    "process": T("process", "进程"),
    "zombie": T("zombie", "僵尸"),
    "shm": T("shm", "共享内存"),
    "socket": T("socket", "套接字"),
    "file": T("file", "文件"),
    "folder": T("folder", "目录"),
}
_HOLDS = T("holds", "占着")
_NOTHING = T("nothing is left of dead engines", "没有死掉的引擎留下的东西")
_HINT = T("nothing was ended: add --yes to end exactly these", "尚未结束任何东西：加 --yes 只结束以上这些")
_DONE = T("{n} left-overs ended or removed", "已结束或清除 {n} 项残留")
_FAILED = T("{name} is still there: {why}", "{name} 还在：{why}")
