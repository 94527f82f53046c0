"""Everything a drill can do to an engine, in the order of `lifesign drill list`."""

from __future__ import annotations

import difflib
from functools import lru_cache

from lifesign.drill.model import EngineName, Fault
from lifesign.errors import UsageError


@lru_cache(maxsize=1)
def all_faults() -> tuple[Fault, ...]:
    """Every fault, once. The groups are separate files only so that each stays readable."""
    from lifesign.drill.vocabulary import clean, devices, engine, parallel, requests, signals, slow, startup

    groups = (signals, slow, devices, engine, requests, startup, parallel, clean)
    return tuple(fault for group in groups for fault in group.FAULTS)


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
