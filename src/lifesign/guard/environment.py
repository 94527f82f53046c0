"""The environment an engine gets from guard: everything it would have had, and a few things on top, each for a reason."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lifesign.guard import procs
from lifesign.guard.procs import MARKER
from lifesign.guard.settings import Settings, serves_vllm

OWNER_FILE = ".lifesign-owner"
"""In a life's temporary folder: the guard and the top process, so that `reap` can tell whether anybody uses it. The guard
holds a lock on it as well: seen from another container its pid means nothing, the lock does."""
OWN_RPC_TIMEOUT_S = 7200
"""vLLM's own limit kills a busy worker and tells nobody why; guard's detector judges sooner, and by evidence."""
LIFE_ID = re.compile(r"\d{6,12}-[0-9a-f]{8}")
"""How a life is called: the second of its start, and a random part."""
SOCKET_PATH_ROOM = 60
"""A Unix socket's path has at most 107 bytes, and vLLM's names need some 40 of them."""


def private_tmp_places(life_id: str, environment: Mapping[str, str]) -> list[Path]:
    """Where the life's own temporary folder may be: inside the engine's usual one, or in /tmp where that path is too long."""
    base = Path(environment.get("TMPDIR") or tempfile.gettempdir())
    folders = dict.fromkeys(parent / f"lifesign-{life_id}" for parent in (base, Path("/tmp")))
    return [folder for folder in folders if len(str(folder)) <= SOCKET_PATH_ROOM]


def private_tmp(life_id: str, environment: Mapping[str, str]) -> Path | None:
    """Create the life's own temporary folder; None when that can't be done."""
    for folder in private_tmp_places(life_id, environment):
        with suppress(OSError):
            folder.mkdir(mode=0o700)
            (folder / OWNER_FILE).write_text(json.dumps({"guard": procs.identify(os.getpid())}))
            _lock(folder / OWNER_FILE)
            return folder
    return None


_locked: list[int] = []


def _lock(path: Path) -> None:
    """Lock the file until the guard ends, or starts its next life."""
    while _locked:
        os.close(_locked.pop())
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _locked.append(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def engine_environment(
    settings: Settings, life_id: str, inherited: Mapping[str, str], tmp: Path | None
) -> dict[str, str]:
    """The environment of one life. What the user has set is never overridden."""
    environment = dict(inherited)
    environment[MARKER] = life_id
    # A process that dies by a signal, or that guard ends by SIGABRT because nothing else gets its stacks, prints them.
    environment.setdefault("PYTHONFAULTHANDLER", "1")
    if tmp is not None:
        usual = environment.get("TMPDIR") or tempfile.gettempdir()
        # torch keeps compiled kernels under TMPDIR: they must outlive the life.
        with suppress(KeyError, OSError):
            environment.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(usual, f"torchinductor_{getpass.getuser()}"))
        environment["TMPDIR"] = str(tmp)
    if settings.own_timeouts and settings.detector and serves_vllm(settings.command):
        environment.setdefault("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", str(OWN_RPC_TIMEOUT_S))
        environment.setdefault("VLLM_RINGBUFFER_WARNING_INTERVAL", "10")
    return environment
