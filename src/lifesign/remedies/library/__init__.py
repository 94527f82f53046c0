"""The library of remedies: every intent that causes may name, as module-level constants, by subject.

`ALL` lists them for tests and documentation; a cause names the constant itself.
"""

from __future__ import annotations

from lifesign.remedies.library import collect, comm, graphs, host, loading, memory, timing
from lifesign.remedies.library.collect import *  # noqa: F403
from lifesign.remedies.library.comm import *  # noqa: F403
from lifesign.remedies.library.graphs import *  # noqa: F403
from lifesign.remedies.library.host import *  # noqa: F403
from lifesign.remedies.library.loading import *  # noqa: F403
from lifesign.remedies.library.memory import *  # noqa: F403
from lifesign.remedies.library.timing import *  # noqa: F403
from lifesign.remedies.model import Remedy

ALL: tuple[Remedy, ...] = tuple(
    {
        id(value): value
        for module in (memory, graphs, comm, timing, host, loading, collect)
        for value in vars(module).values()
        if isinstance(value, Remedy)
    }.values()
)
