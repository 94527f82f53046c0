"""`lifesign check`: what would stop an engine on this machine, in one table with the fix beside each finding."""

from __future__ import annotations

import json
import os
import sys

import typer

from lifesign.errors import UsageError
from lifesign.text import Lang, T, default_lang

app = typer.Typer(add_completion=False, rich_markup_mode=None)


COMMAND = typer.Argument(None, metavar="[-- COMMAND ARGS...]", help="The engine, as you would start it.")
MODEL = typer.Option(None, "--model", help="Model folder or repository [default: from the command].")
PORT = typer.Option(None, "--port", min=1, max=65535, help="Port of the engine [default: from the command].")
RANKS = typer.Option(1, "--ranks", min=1, max=1024, help="Ranks over all nodes [default: from the command].")
ALL_REDUCE = typer.Option(
    None, "--all-reduce/--no-all-reduce", help="Try an all-reduce between ranks [default: with more than one rank]."
)
NNODES = typer.Option(1, "--nnodes", min=1, max=256, help="Nodes; run the same command on each of them.")
NODE_RANK = typer.Option(0, "--node-rank", min=0, help="Number of this node, from 0.")
MASTER_ADDR = typer.Option("127.0.0.1", "--master-addr", help="Address of node 0.")
MASTER_PORT = typer.Option(29577, "--master-port", min=1, max=65000, help="A free port on node 0 (and some above).")
TIMEOUT = typer.Option(30.0, "--timeout", min=1.0, max=600.0, help="Longest wait of a slow check, in seconds.")
OFFLINE = typer.Option(False, "--offline", help="Don't ask the hub.")
FORMAT = typer.Option("terminal", "--format", help="terminal or json.")
LANG = typer.Option(None, "--lang", help="en or zh [default: from the locale].")


@app.command(context_settings={"allow_interspersed_args": False})
def check(
    command: list[str] = COMMAND,
    model: str = MODEL,
    port: int = PORT,
    ranks: int = RANKS,
    all_reduce: bool = ALL_REDUCE,
    nnodes: int = NNODES,
    node_rank: int = NODE_RANK,
    master_addr: str = MASTER_ADDR,
    master_port: int = MASTER_PORT,
    timeout: float = TIMEOUT,
    offline: bool = OFFLINE,
    format: str = FORMAT,
    lang: str = LANG,
) -> None:
    """Check this machine (and this command) before starting an engine.

    Exit code: 0 nothing would stop an engine, 1 something would, 2 the command line of check is unusable.
    """
    from pathlib import Path

    from lifesign.cli.reap import default_state_dirs
    from lifesign.guard.preflight.model import Plan, from_command
    from lifesign.guard.preflight.plan import run, would_stop

    if format not in ("terminal", "json"):
        raise UsageError(f"--format {format}: choose terminal or json")
    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {lang!r} is neither en nor zh: choose one of them")
    chosen: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    if node_rank >= nnodes:
        raise UsageError(f"--node-rank {node_rank}: nodes are numbered from 0 to {nnodes - 1}")
    if nnodes > 1 and master_addr in ("127.0.0.1", "localhost") and "LIFESIGN_CHECK_LOOPBACK" not in os.environ:
        typer.echo(_LOOPBACK.pick(chosen), err=True)
    plan = from_command(
        Plan(
            command=tuple(command or ()),
            environment=dict(os.environ),
            model=model,
            port=port,
            ranks=ranks,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            all_reduce=all_reduce,
            timeout_s=timeout,
            offline=offline,
            state_dirs=tuple(Path(folder) for folder in default_state_dirs()),
        )
    )
    if plan.nnodes > 1:
        plan.ranks = max(plan.ranks, plan.nnodes)
    show_progress = sys.stderr.isatty()
    found = run(
        plan, (lambda name: typer.echo(f"\r{name:<40}", nl=False, err=True)) if show_progress else lambda name: None
    )
    if show_progress:
        typer.echo("\r" + " " * 40 + "\r", nl=False, err=True)
    if format == "json":
        stops = would_stop(found)
        value = {"schema": "lifesign.check/1", "would_stop": stops, "findings": [one.as_json(chosen) for one in found]}
        typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
    else:
        _table(found, chosen)
    raise typer.Exit(1 if would_stop(found) else 0)


def _table(found: list, lang: Lang) -> None:  # type: ignore[type-arg]
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lifesign.guard.preflight.plan import LEVELS

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in (_LEVEL, _CHECK, _FOUND, _FIX):
        table.add_column(column.pick(lang), overflow="fold")
    styles = {"stop": "bold red", "warn": "yellow", "note": "cyan", "ok": "green"}
    for finding in sorted(found, key=lambda one: LEVELS.index(one.level)):
        table.add_row(
            Text(_LEVELS[finding.level].pick(lang), style=styles[finding.level]),
            Text(finding.check),
            Text(_clean(finding.what.pick(lang))),
            Text(_clean(finding.fix.pick(lang))),
        )
    # Text objects: nothing that a model name or a process title contains is taken for markup.
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


_LEVEL, _CHECK = T("LEVEL", "级别"), T("CHECK", "检查项")
_FOUND, _FIX = T("FOUND", "发现"), T("FIX", "怎么办")
_LEVELS = {"stop": T("STOP", "会失败"), "warn": T("warn", "警告"), "note": T("note", "提示"), "ok": T("ok", "正常")}
_LOOPBACK = T(
    "--master-addr is loopback: other machines can't reach it; give the address of node 0",
    "--master-addr 是回环地址，别的机器连不上；请给节点 0 的地址",
)
