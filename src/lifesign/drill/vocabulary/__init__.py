"""Everything a drill can do to an engine, in the order of `lifesign drill list`.

Other packages add faults through the entry-point group `lifesign.faults`: each entry point names a `Fault` or a sequence of
them. One that can't be loaded, or whose name is taken, becomes a note; the rest works on.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import NamedTuple

from lifesign.drill.model import EngineName, Fault
from lifesign.errors import UsageError

GROUP = "lifesign.faults"


class Vocabulary(NamedTuple):
    """All faults, and what went wrong with faults of other packages."""

    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


@lru_cache(maxsize=1)
def load() -> Vocabulary:
    """Our own faults and those of other packages. The groups are separate files only so that each stays readable."""
    from lifesign.drill.vocabulary import clean, compilers, devices, engine, parallel, requests, signals, slow, startup

    groups = (signals, slow, devices, compilers, engine, requests, startup, parallel, clean)
    faults = [fault for group in groups for fault in group.FAULTS]
    notes: list[str] = []
    _add_foreign(faults, notes)
    return Vocabulary(tuple(faults), tuple(notes))


def _add_foreign(faults: list[Fault], notes: list[str]) -> None:
    from importlib.metadata import entry_points

    taken = {fault.name for fault in faults}
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
        except Exception as error:  # anything may happen in a stranger's module
            notes.append(f"faults of {entry.name} ({entry.value}) can't be loaded: {type(error).__name__}: {error}")
            continue
        for fault in (found,) if isinstance(found, Fault) else tuple(found):
            if not isinstance(fault, Fault):
                notes.append(f"{entry.name} ({entry.value}) gives something that is no Fault")
            elif fault.name in taken:
                notes.append(f"{entry.name} ({entry.value}) gives a second fault called {fault.name}; left out")
            else:
                taken.add(fault.name)
                faults.append(fault)


def all_faults() -> tuple[Fault, ...]:
    """Every fault, once."""
    return load().faults


def find(name: str) -> Fault:
    """The fault called `name`; UsageError with the nearest names when there is none."""
    by_name = {fault.name: fault for fault in all_faults()}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`lifesign drill list` names them all."
    raise UsageError(f"there is no fault called {name[:60]!r}; {hint}")


def for_engine(engine: EngineName) -> tuple[Fault, ...]:
    """The faults that `engine` can be given."""
    return tuple(fault for fault in all_faults() if engine in fault.engines)
