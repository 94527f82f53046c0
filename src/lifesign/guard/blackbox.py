"""Takes the picture: stacks, /proc, memory, devices, the engine's metrics page, into a folder, within seconds.

Called at suspicion, while everything is still there to be seen, and again before anything is killed. Every step may fail
for its own reason (no permission, no tool, no disk); each failure becomes a line in `left_out`, none stops the others.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lifesign.guard.evidence import devices, memory, stacks
from lifesign.guard.helpers import Helpers
from lifesign.guard.life import Life, Member
from lifesign.guard.pages import EnginePages
from lifesign.guard.procs import ProcId
from lifesign.guard.sockets import listeners

CAPTURE_S = 5.0
_WORTH = {"worker": 0, "core": 1, "api": 2, "coordinator": 3}


@dataclass
class Capture:
    """What one capture did: `left_out` says what is missing and why, `no_stack` whose Python stack could not be had."""

    folder: Path
    why: str
    started_s: float
    seconds: float = 0.0
    left_out: list[str] = field(default_factory=list)
    no_stack: list[ProcId] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


def capture_in_background(
    helpers: Helpers, life: Life, folder: Path, why: str, *, engine_url: str | None, clock: Callable[[], float]
) -> Capture:
    """Start a capture of all living engine processes; `done` is set when it is complete or its time is up."""
    capture = Capture(folder, why, clock())
    targets = [member for member in life.alive() if member.role not in ("tracker",)]
    url = _own_page(life, engine_url, capture)

    def work() -> None:
        try:
            _capture(helpers, targets, capture, url)
        except Exception as error:  # the black box must never take the guard down
            capture.left_out.append(f"capture broke off: {type(error).__name__}: {error}")
        finally:
            capture.seconds = clock() - capture.started_s
            capture.done.set()

    threading.Thread(target=work, name="lifesign-capture", daemon=True).start()
    return capture


def _own_page(life: Life, engine_url: str | None, capture: Capture) -> str | None:
    """Where this engine's pages are. At the address that its command line names another engine may answer."""
    known = life.details.get("page")
    if isinstance(known, str):
        return known
    pages = EnginePages.at(engine_url)
    if pages is None:
        return None
    if not listeners(pages.endpoint.port, [member.id.pid for member in life.alive()]):
        capture.left_out.append(f"metrics.txt: no process of this engine listens on port {pages.endpoint.port}")
        return None
    return engine_url


def _capture(helpers: Helpers, targets: list[Member], capture: Capture, engine_url: str | None) -> None:
    # The kernel's view first: it costs nothing and needs no permission.
    for member in targets:
        _put(capture, f"proc/{_name(member)}.txt", stacks.kernel_view(member.id))
    group = memory.memory_folder(targets[0].id.pid) if targets else None
    _put(
        capture,
        "memory.json",
        json.dumps({"cgroup": memory.read_memory(group), "host": memory.host_memory()}, indent=1),
    )
    side = [threading.Thread(target=lambda: _put(capture, "devices.txt", devices.device_state(helpers)), daemon=True)]
    if engine_url:
        side.append(threading.Thread(target=_metrics, args=(capture, engine_url), daemon=True))
    for thread in side:
        thread.start()
    deadline_s = time.monotonic() + CAPTURE_S
    ordered = sorted(targets, key=lambda member: _WORTH.get(member.role, len(_WORTH)))
    for proc, text in stacks.python_stacks(helpers, [member.id for member in ordered]):
        member = next(member for member in ordered if member.id == proc)
        _put(capture, f"stacks/{_name(member)}.txt", text)
        if text.startswith("no Python stack"):
            capture.no_stack.append(proc)
            capture.left_out.append(f"stacks/{_name(member)}.txt: {text.strip()}")
    for member in ordered[stacks.MAX_PROCESSES :]:
        capture.no_stack.append(member.id)
        capture.left_out.append(f"stacks/{_name(member)}.txt: more than {stacks.MAX_PROCESSES} processes")
    for thread in side:
        thread.join(max(0.1, deadline_s - time.monotonic()))
        if thread.is_alive():
            capture.left_out.append("devices.txt or metrics.txt: no answer in time")


def _name(member: Member) -> str:
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in member.name)[:60]
    return f"{safe or member.role}-{member.id.pid}"


def _metrics(capture: Capture, url: str) -> None:
    pages = EnginePages.at(url)
    text = pages.metrics_text() if pages is not None else ""
    if text:
        _put(capture, "metrics.txt", text)
    else:
        capture.left_out.append("metrics.txt: the engine's page doesn't answer")


def _put(capture: Capture, name: str, text: str) -> None:
    path = capture.folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        capture.left_out.append(f"{name}: {error.strerror or error}")
        with suppress(OSError):
            path.unlink()
