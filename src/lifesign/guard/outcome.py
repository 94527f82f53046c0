"""What a session gives and needs: the outcome of a life, the detector's call, and the detector as a session sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from lifesign.guard import procs
from lifesign.guard.blackbox import Capture
from lifesign.guard.evidence.kernel import KernelReport
from lifesign.guard.life import Life, Member
from lifesign.text import T

if TYPE_CHECKING:
    from lifesign.guard.session import Session


@dataclass(frozen=True, slots=True)
class Call:
    """The detector's verdict that the engine is dead: what it found, and whom it points at."""

    finding: str
    who: tuple[str, ...] = ()
    stopped: bool = False
    words: T | None = None


class Watcher(Protocol):
    """The detector as the session needs it. Every method returns at once."""

    def begin(self, life: Life) -> None:
        """A life starts."""

    def ready(self) -> None:
        """It serves."""

    def milestone(self, phase: str) -> None:
        """Its start-up went on."""

    def exited(self, member: Member) -> None:
        """A process of it ended."""

    def tick(self, session: Session) -> Call | None:
        """Look, act through the session (captures, board), and give the verdict once it is dead."""

    def progressed(self) -> bool:
        """Whether it did real work (see `restart.Progressed`)."""

    def end(self) -> None:
        """Stop looking."""


@dataclass
class Outcome:
    """How a life went. Times: `started` and `ended` in seconds since the epoch, spans in seconds.

    suspected: the detector suspected a hang at the moment when guard was asked to stop, and a picture of it was taken.
    """

    kind: Literal["died", "stopped", "finished"]
    life: Life
    started: float
    ended: float
    start_s: float | None
    served_s: float
    status: int | None
    trigger: str
    call: Call | None
    captures: list[Capture]
    memory_before: dict[str, int | str]
    memory_after: dict[str, int | str]
    kernel: KernelReport
    keeper: dict[str, object]
    ours: set[procs.ProcId] = field(default_factory=set)
    suspected: bool = False

    @property
    def became_ready(self) -> bool:
        """Whether it ever served."""
        return self.start_s is not None

    @property
    def exit_code(self) -> int:
        """The engine's exit code as a shell would show it (128 + n for signal n)."""
        if self.status is None:
            return 1
        if os.WIFSIGNALED(self.status):
            return 128 + os.WTERMSIG(self.status)
        return os.waitstatus_to_exitcode(self.status)
