"""Finds the causes: every module of this package with a `CAUSE`, and entry points of the group `lifesign.causes`.

There is no list to keep: a new file is a new cause. A broken plug-in becomes a note, not a crash.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

import lifesign.causes as package
from lifesign.causes.model import Cause

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "lifesign.causes"
_INFRASTRUCTURE = {"model", "registry", "questions", "pages"}


@lru_cache(maxsize=1)
def load() -> tuple[tuple[Cause, ...], tuple[str, ...]]:
    """All causes in reading order, and notes about plug-ins that could not be loaded."""
    causes: list[Cause] = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_") or module.name in _INFRASTRUCTURE:
            continue
        cause = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "CAUSE", None)
        if isinstance(cause, Cause):
            causes.append(cause)
    notes: list[str] = []
    for entry in _plugins():
        try:
            cause = entry.load()
        except Exception as error:
            # Somebody else's code: whatever it raises, our run goes on and says so.
            notes.append(f"plug-in {entry.name} ({entry.value}) could not be loaded: {type(error).__name__}: {error}")
            continue
        if isinstance(cause, Cause):
            causes.append(cause)
        else:
            notes.append(f"plug-in {entry.name} ({entry.value}) is no Cause")
    causes.sort(key=lambda cause: (cause.order, cause.slug))
    return tuple(causes), tuple(notes)


def _plugins() -> list[EntryPoint]:
    """The entry points of our group. Without any, importlib.metadata (a tenth of a small run) isn't even imported."""
    if not any(_announces(folder) for folder in sys.path):
        return []
    from importlib import metadata

    return list(metadata.entry_points(group=GROUP))


def _announces(folder: str) -> bool:
    """Whether a distribution in `folder` of the import path names our group; an archive is always asked."""
    if os.path.isfile(folder):
        return True
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return False
    for name in names:
        if name.endswith((".dist-info", ".egg-info")):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if GROUP.encode() in file.read():
                        return True
            except OSError:
                continue
    return False


def by_slug(slug: str) -> Cause | None:
    """The cause called `slug`, or None."""
    return next((cause for cause in load()[0] if cause.slug == slug), None)
