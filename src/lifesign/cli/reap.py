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
    everything: bool = typer.Option(
        False, "--all", help="With --yes: also remove unused shared memory that may be another program's."
    ),
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
    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {lang!r} is neither en nor zh: choose one of them")
    if everything and not yes:
        raise UsageError("--all only adds to --yes: give both, or none to look first")
    for folder in [*state_dir, *([tmp] if tmp is not None else [])]:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; give one that exists")
    chosen: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    device_pids = pids_on_devices(Helpers())
    folders = state_dir or default_state_dirs()
    processes = leftovers.find_processes(folders, device_pids)
    recorded = leftovers.recorded_shm(folders)
    files = leftovers.find_files(time.time(), tmp=tmp, recorded=recorded)
    failed: list[Leftover] = []
    done: list[Leftover] = []
    kept: list[Leftover] = []
    if yes:
        if format == "terminal":
            for item in processes + files:
                typer.echo(_line(item, chosen))
        inodes = leftovers.shm_inodes(processes)
        failed = leftovers.end_processes(processes)
        done = [item for item in processes if item.kind == "process" and item not in failed]
        known = {item.path for item in files}
        # What the processes held is free only now.
        freed = leftovers.find_files(time.time(), tmp=tmp, recorded=recorded, ended=inodes)
        for item in freed + [one for one in files if one.path not in {later.path for later in freed}]:
            if item.certainty == "unseen users" or (item.certainty == "anybody's" and not everything):
                kept += [item] if item.path in known else []
                continue
            reason = leftovers.remove(item)
            if reason:
                item.why = T(reason, reason)
                failed.append(item)
            else:
                done.append(item)
    _show(processes + files, done, failed, kept, yes, format, chosen)
    zombies = [item for item in processes if item.kind == "zombie"]
    remaining = failed + zombies + kept if yes else processes + files
    raise typer.Exit(1 if remaining else 0)


def default_state_dirs() -> list[Path]:
    """Where guards keep their state unless told otherwise."""
    base = os.environ.get("LIFESIGN_STATE_DIR")
    if base:
        return [Path(base)]
    return [Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lifesign"]


def _show(
    found: list[Leftover],
    done: list[Leftover],
    failed: list[Leftover],
    kept: list[Leftover],
    yes: bool,
    format: str,
    lang: Lang,
) -> None:
    if format == "json":
        shown = {
            "schema": "lifesign.reap/1",
            "found": [item.as_json() for item in found],
            "ended": [item.as_json() for item in done],
            "failed": [item.as_json() for item in failed],
            "kept": [item.as_json() for item in kept],
        }
        typer.echo(json.dumps(shown, indent=1, ensure_ascii=False))
        return
    if not found:
        typer.echo(_NOTHING.pick(lang))
        return
    doubtful = kept
    if not yes:
        for item in found:
            typer.echo(_line(item, lang))
        typer.echo(_HINT.pick(lang), err=True)
        doubtful = found
    else:
        typer.echo(_DONE.fill(n=len(done)).pick(lang), err=True)
    for item in failed:
        typer.echo(_FAILED.fill(name=item.name, why=item.why.pick(lang)).pick(lang), err=True)
    for certainty, hint in _DOUBTS.items():
        number = sum(item.certainty == certainty for item in doubtful)
        if number:
            typer.echo(hint.fill(n=number).pick(lang), err=True)


def _line(item: Leftover, lang: Lang) -> str:
    what = _KINDS[item.kind].pick(lang)
    where = f"pid {item.proc.pid}" if item.proc else item.path
    size = f" ({size_words(item.size_bytes)})" if item.size_bytes else ""
    holds = f" · {_HOLDS.pick(lang)} {', '.join(item.holds)}" if item.holds else ""
    name = "".join(char if char.isprintable() else "?" for char in item.name)
    return f"{what:<8} {name}  {where}{size}  {item.why.pick(lang)}{holds}"


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
_HINT = T(
    "nothing was ended: add --yes to end what is certain of these", "尚未结束任何东西：加 --yes 只结束以上能确定的"
)
_DOUBTS = {
    "anybody's": T(
        "{n} unused segments may be another program's: they stay without --yes --all",
        "有 {n} 个没人用的共享内存段可能属于别的程序：不加 --yes --all 就保留",
    ),
    "unseen users": T(
        "{n} may have users that can't be seen from here and stay: run reap on the host, as root, to know",
        "有 {n} 项可能被这里看不到的进程使用，予以保留：到宿主机上以 root 执行 reap 才能确定",
    ),
}
_DONE = T("{n} left-overs ended or removed", "已结束或清除 {n} 项残留")
_FAILED = T("{name} is still there: {why}", "{name} 还在：{why}")


def size_words(size_bytes: int) -> str:
    """In MiB as `df` would show it, what is smaller in bytes."""
    return f"{size_bytes / 2**20:.1f} MiB" if size_bytes >= 2**19 else f"{size_bytes:,} bytes"
