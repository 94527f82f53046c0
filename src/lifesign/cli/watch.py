"""`lifesign watch URL|PID`: the failure detector beside an engine that somebody else runs.

It reads what it may (processes, beacon, metrics page, devices), says what it can't, and reports states. It decides nothing
and touches nothing: no signal is ever sent, and no request but the canary, which has to be asked for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from lifesign.errors import SourceError, UsageError
from lifesign.text import Lang, T, default_lang, is_whole

if TYPE_CHECKING:
    from lifesign.cli.watch_view import Reporter
    from lifesign.guard.detector.core import Detector
    from lifesign.guard.detector.events import Event
    from lifesign.guard.detector.replay import RecordingDetector
    from lifesign.guard.probes.metrics import Endpoint
    from lifesign.guard.probes.observer import Look, Observer
    from lifesign.guard.probes.tree import EngineTree

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

LOOK_S = 1.0
PAGE_EVERY_S = 10.0


@app.command()
def watch(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A pid of the engine, its server's URL, or a recording (--replay).")],
    metrics: Annotated[str | None, typer.Option(help="URL of the metrics page, if it can't be found.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON event per line.")] = False,
    seconds: Annotated[float | None, typer.Option("--for", help="Stop after so many seconds.", metavar="S")] = None,
    every: Annotated[float, typer.Option(help="Seconds between status lines.", metavar="S")] = 10.0,
    ask: Annotated[bool, typer.Option("--canary", help="Ask an idle engine for one token now and then.")] = False,
    restart_cost: Annotated[float, typer.Option(help="What a restart costs, in seconds.", metavar="S")] = 60.0,
    patience: Annotated[float, typer.Option(help="Part of that cost that a stuck engine is given.")] = 0.3,
    record: Annotated[Path | None, typer.Option(help="Write every event to this file, for --replay.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep /proc and stacks there when something is suspect.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="TARGET is a file that --record wrote.")] = False,
    lang: Annotated[str | None, typer.Option("--lang", help="en or zh; default: the locale.")] = None,
) -> None:
    """Watch an engine that somebody else runs: is it healthy, slow, stuck or dead, and who is to blame?

    Exit code 1 when a death was seen, else 0.
    """
    from lifesign.cli.watch_view import make_reporter

    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {lang!r} is neither en nor zh: choose one of them")
    language: Lang = "zh" if lang == "zh" else "en" if lang == "en" else default_lang()
    for value, name in (
        (every, "--every"),
        (restart_cost, "--restart-cost"),
        (patience, "--patience"),
        (seconds, "--for"),
    ):
        if value is not None and not 0 < value <= 1e7:
            raise UsageError(f"{name} must be a number above 0; {value:g} is not")
    reporter = make_reporter(json_output, language, every)
    if replay:
        source = context.get_parameter_source("patience")
        given = source is not None and source.name != "DEFAULT"  # else that of the recording
        raise typer.Exit(_replay(Path(target), patience if given else None, reporter))
    tree, endpoint = _find(target, metrics)
    session = Session(tree, endpoint, reporter, ask, restart_cost, patience, save)
    with contextlib.ExitStack() as stack:
        if record is not None:
            session.record_to(stack.enter_context(_writable(record)))
        raise typer.Exit(session.run(seconds))


def _writable(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SourceError(
            str(path), f"can't be written ({error.strerror}); choose another place for --record"
        ) from None


def _find(target: str, metrics: str | None) -> tuple[EngineTree | None, Endpoint | None]:
    """The processes and the metrics page behind what the user gave. Raises UsageError."""
    from lifesign.guard.probes.metrics import parse_url
    from lifesign.guard.probes.tree import find_engine, listener_of, ports_of

    endpoint = parse_url(metrics) if metrics is not None else None
    if endpoint is not None:
        _check(endpoint)
    if is_whole(target):
        tree = find_engine(int(target))
        return tree, endpoint or _page_among(ports_of(tree))
    endpoint = endpoint or _check(parse_url(target))
    tree_of_url: EngineTree | None = None
    pid = listener_of(endpoint.port) if endpoint.local else None
    if pid is not None:
        with contextlib.suppress(UsageError):
            tree_of_url = find_engine(pid)
    return tree_of_url, endpoint


def _check(endpoint: Endpoint) -> Endpoint:
    """The endpoint, if a vLLM server answers there. Raises UsageError with what answers instead."""
    import http.client

    from lifesign.guard.probes.metrics import fetch, parse_metrics

    try:
        status, text = fetch(endpoint)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = "".join(char if char.isprintable() else "?" for char in reason[:200])
        raise UsageError(
            f"nothing answers at {endpoint.url} ({reason}); give the engine's pid instead, or the URL that `vllm serve` printed"
        ) from None
    if status != 200:
        raise UsageError(
            f"{endpoint.url}{endpoint.path} answers HTTP {status}, so there is no metrics page; "
            "give the URL of a vLLM server, or the engine's pid"
        )
    if not parse_metrics(text, 0.0).is_vllm:
        raise UsageError(
            f"{endpoint.url} answers, but its metrics page isn't vLLM's (no series begins with vllm:); give the URL of a vLLM "
            "server, or the engine's pid if it was started with --disable-log-stats"
        )
    return endpoint


def _page_among(ports: list[int]) -> Endpoint | None:
    from lifesign.guard.probes.metrics import parse_url

    for port in ports[:8]:
        with contextlib.suppress(UsageError):
            return _check(parse_url(f"http://127.0.0.1:{port}"))
    return None


class Session:
    """One run of `watch`: looks once a second until the engine ends, the time is up, or the user has seen enough."""

    def __init__(
        self,
        tree: EngineTree | None,
        endpoint: Endpoint | None,
        reporter: Reporter,
        ask: bool,
        restart_cost_s: float,
        patience: float,
        save: Path | None,
    ) -> None:
        from lifesign.guard.detector.core import Detector, Settings
        from lifesign.guard.probes.gpu import GpuProbe
        from lifesign.guard.probes.observer import Observer

        self.tree, self.endpoint, self.reporter, self.save = tree, endpoint, reporter, save
        self.restart_cost_s = restart_cost_s
        self.detector: Detector = Detector(Settings(patience=patience, canary=ask and endpoint is not None))
        self.observer: Observer = Observer(tree, endpoint, gpu=GpuProbe() if tree is not None else None)
        self._recorder: RecordingDetector | None = None
        self.died = False
        self._page_at_s = time.monotonic() + PAGE_EVERY_S
        self._captures: list[threading.Thread] = []

    def record_to(self, out: TextIO) -> None:
        """Write every event to `out`."""
        from lifesign.guard.detector.replay import RecordingDetector

        self._recorder = RecordingDetector(self.detector, out)

    def run(self, seconds: float | None) -> int:
        """Watch; gives the exit code."""
        end_s = time.monotonic() + seconds if seconds is not None else float("inf")
        try:
            self.observer.start()
            now_s = time.monotonic()
            self._tell(self.observer.begin(self.restart_cost_s), now_s, None)
            self.reporter.begin(self)
            while now_s < end_s:
                self._look_for_page(now_s)
                look = self.observer.look(now_s, self.detector)
                if not self.observer.can_ask and self.detector.settings.canary:
                    self.detector.settings.canary = False
                    self.reporter.cannot_ask()
                for event in look.events:
                    self._tell(event, now_s, look)
                self.reporter.status(self, look)
                if look.ended:
                    break
                time.sleep(max(0.0, min(now_s + LOOK_S, end_s) - time.monotonic()))
                now_s = time.monotonic()
        except KeyboardInterrupt:
            pass
        finally:
            self.observer.close()
            for thread in self._captures:
                thread.join(30.0)
            self.reporter.end(self)
        return 1 if self.died else 0

    def _look_for_page(self, now_s: float) -> None:
        """An engine that is starting has no page yet: ask again now and then."""
        from lifesign.guard.probes.tree import ports_of

        if self.endpoint is not None or self.tree is None or now_s < self._page_at_s:
            return
        self._page_at_s = now_s + PAGE_EVERY_S
        self.endpoint = _page_among(ports_of(self.tree))
        if self.endpoint is not None:
            self.observer.attach(self.endpoint)
            self.reporter.found_page(self.endpoint.url)

    def _tell(self, event: Event, now_s: float, look: Look | None) -> None:
        from lifesign.guard.detector.events import Begin, Canary, Capture, Changed, Kill, Poll
        from lifesign.guard.detector.states import State

        judge = self._recorder or self.detector
        if isinstance(event, Poll) and event.steps and self.detector.state is State.DEAD:
            # It came back: the verdict was wrong, and says so.
            self.reporter.came_back(self)
            judge.handle(self.observer.begin(self.restart_cost_s), now_s)
        for command in judge.handle(event, now_s):
            if isinstance(command, Changed):
                blind = command.new is State.IDLE and not self.observer.sees_progress
                if not isinstance(event, Begin) and not blind:
                    self.reporter.changed(self, command, look)
            elif isinstance(command, Kill):
                self.died = True
            elif isinstance(command, Canary):
                self.observer.send_canary(command.timeout_s)
            elif isinstance(command, Capture) and self.save is not None and self.tree is not None:
                self._capture(self.tree, self.save)
            else:
                self.reporter.other(self, command)

    def _capture(self, tree: EngineTree, folder: Path) -> None:
        """Keep the evidence in the background: stacks take seconds, and the engine must be looked at meanwhile."""
        from lifesign.guard.probes.capture import capture

        why = self.detector.state.value

        def keep() -> None:
            try:
                self.reporter.saved(capture(tree, folder, why))
            except SourceError as error:
                typer.echo(f"lifesign: {error}", err=True)

        thread = threading.Thread(target=keep, name="capture", daemon=True)
        thread.start()
        self._captures.append(thread)


def _replay(path: Path, patience: float | None, reporter: Reporter) -> int:
    from lifesign.guard.detector.replay import replay

    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            different = died = 0
            for told in replay(lines, name=str(path), patience=patience):
                different += not told.same
                died += reporter.replayed(told)
    except OSError as error:
        raise SourceError(str(path), f"can't be read ({error.strerror}); give the file that --record wrote") from None
    if different:
        text = T(
            "{n} lines gave other commands than recorded: another release or another --patience wrote them",
            "有 {n} 行的结果与录制时不同：录制时用的是另一个版本或另一个 --patience",
        )
        typer.echo(text.fill(n=different).pick(reporter.lang), err=True)
    return 1 if died else 0
