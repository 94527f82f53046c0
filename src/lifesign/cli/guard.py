"""`lifesign guard -- vllm serve ...`: run an engine so that no death is silent and nothing about it is lost."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from lifesign.errors import UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


COMMAND = typer.Argument(..., metavar="-- COMMAND [ARGS]...", help="The engine, as you would start it.")
STATE_DIR = typer.Option(
    None,
    "--state-dir",
    help="Logs, incidents and memory [default: $LIFESIGN_STATE_DIR or ~/.local/state/lifesign].",
)
MAX_RESTARTS = typer.Option(None, "--max-restarts", min=0, help="At most this many restarts [default: by policy].")
GRACE = typer.Option(25.0, "--grace", min=0.5, help="Seconds from a stop request to the end of everything.")
HTTP = typer.Option("127.0.0.1:9477", "--http", help="HOST:PORT for /livez /readyz /metrics /state, or `off`.")
ENGINE_URL = typer.Option(None, "--engine-url", help="Where the engine answers [default: from the command].")
APPLY_REMEDIES = typer.Option(
    False, "--apply-remedies", help="Restart with one verified remedy at a time; undone if it doesn't help."
)
DETECTOR = typer.Option(True, "--detector/--no-detector", help="Watch for hangs, and end a hung engine.")
CANARY = typer.Option(
    True,
    "--canary/--no-canary",
    help="Ask an engine that was idle for 30 s for one token: only demand shows a hang.",
)
RESUME_STOPPED = typer.Option(
    False, "--resume-stopped", help="Send SIGCONT once to a process that somebody stopped, before calling it dead."
)
OWN_TIMEOUTS = typer.Option(
    True,
    "--own-timeouts/--no-own-timeouts",
    help="Raise vLLM's own RPC limit: the detector judges sooner and by evidence.",
)
PRIVATE_TMP = typer.Option(
    True, "--private-tmp/--shared-tmp", help="Give each life a TMPDIR of its own, removed after it."
)
OWN_CGROUP = typer.Option(
    True,
    "--own-cgroup/--shared-cgroup",
    help="Give each life a control group of its own, where the system allows it (cgroup v2).",
)
HOLD = typer.Option(False, "--hold", help="When no further start is allowed: stay (not ready) instead of ending.")
WEBHOOK = typer.Option([], "--webhook", help="POST suspicions, deaths and HELD to this address; repeatable.")
TERMINATION_MESSAGE = typer.Option(
    None, "--termination-message", help="File for the reason of a death [default: /dev/termination-log if there]."
)
KEEP_INCIDENTS = typer.Option(20, "--keep-incidents", min=1, help="Bundles to keep.")
LOG_KEEP_MIB = typer.Option(1024, "--log-keep-mib", min=1, help="Log to keep, in MiB (compressed).")
LOG_SEGMENT_MIB = typer.Option(64, "--log-segment-mib", min=1, help="Size at which the log is rotated, in MiB.")
KEEP_PROMPTS = typer.Option(False, "--keep-prompts", help="Leave prompts in the bundle's copy of the log.")
BACKOFF_SCALE = typer.Option(1.0, "--backoff-scale", min=0.0, max=1.0, help="Shorten the waits (for tests).")
LANG = typer.Option(None, "--lang", help="en or zh [default: from the locale].")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": False, "allow_interspersed_args": False}
)
def guard(
    command: list[str] = COMMAND,
    state_dir: Path = STATE_DIR,
    max_restarts: int = MAX_RESTARTS,
    grace: float = GRACE,
    http: str = HTTP,
    engine_url: str = ENGINE_URL,
    apply_remedies: bool = APPLY_REMEDIES,
    detector: bool = DETECTOR,
    canary: bool = CANARY,
    resume_stopped: bool = RESUME_STOPPED,
    own_timeouts: bool = OWN_TIMEOUTS,
    private_tmp: bool = PRIVATE_TMP,
    own_cgroup: bool = OWN_CGROUP,
    hold: bool = HOLD,
    webhook: list[str] = WEBHOOK,
    termination_message: Path = TERMINATION_MESSAGE,
    keep_incidents: int = KEEP_INCIDENTS,
    log_keep_mib: int = LOG_KEEP_MIB,
    log_segment_mib: int = LOG_SEGMENT_MIB,
    keep_prompts: bool = KEEP_PROMPTS,
    backoff_scale: float = BACKOFF_SCALE,
    lang: str = LANG,
) -> None:
    """Run an engine, watch it, keep the evidence, restart with sense.

    Exits with the engine's code, but never 0 after a death; 2 when the command can't be started.
    """
    from lifesign.cli.reap import default_state_dirs
    from lifesign.guard.context import Context
    from lifesign.guard.settings import Settings, parse_engine_url, parse_http
    from lifesign.guard.supervisor import Guard
    from lifesign.guard.watcher import EngineWatcher
    from lifesign.text import default_lang

    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {lang}: choose en or zh")
    if not command:
        raise UsageError("give the command to guard after --, for example: lifesign guard -- vllm serve MODEL")
    settings = Settings(
        command=tuple(command),
        state_dir=state_dir or default_state_dirs()[0],
        max_restarts=max_restarts,
        grace_s=grace,
        http=parse_http(http),
        engine_url=parse_engine_url(engine_url) if engine_url else None,
        apply_remedies=apply_remedies,
        own_timeouts=own_timeouts,
        private_tmp=private_tmp,
        own_cgroup=own_cgroup,
        hold=hold,
        detector=detector,
        backoff_scale=backoff_scale,
        webhooks=tuple(webhook),
        termination_message=termination_message,
        log_segment_bytes=log_segment_mib << 20,
        log_keep_bytes=log_keep_mib << 20,
        keep_incidents=keep_incidents,
        keep_prompts=keep_prompts,
        lang="zh" if lang == "zh" else "en" if lang == "en" else default_lang(),
    )
    _open_standard_files()
    watchers: list[EngineWatcher] = []

    def watcher(context: Context) -> EngineWatcher | None:
        """One for all lives: it remembers what a step and a start cost."""
        if not detector:
            return None
        if not watchers:
            watchers.append(EngineWatcher(context, canary=canary, may_resume=resume_stopped))
        return watchers[0]

    raise typer.Exit(Guard(settings, make_watcher=watcher).run())


def _open_standard_files() -> None:
    """Some supervisors start programs with a closed stdin, stdout or stderr; the next file opened would take its place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
