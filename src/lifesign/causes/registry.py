"""Finds the causes: every module of this package with a `CAUSE`, and entry points of the group `lifesign.causes`.

There is no list to keep: a new file is a new cause. A broken plug-in becomes a note, not a crash.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from importlib import metadata

import lifesign.causes as package
from lifesign.causes.model import Cause

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
    for entry in metadata.entry_points(group="lifesign.causes"):
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


def by_slug(slug: str) -> Cause | None:
    """The cause called `slug`, or None."""
    return next((cause for cause in load()[0] if cause.slug == slug), None)
