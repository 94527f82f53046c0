"""A detector whose errors stay its own: the first one switches it off for the life, and guard goes on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from lifesign.guard.life import Life, Member
from lifesign.guard.outcome import Call, Watcher

if TYPE_CHECKING:
    from lifesign.guard.session import Session

Answer = TypeVar("Answer")


class Careful:
    """Implements `outcome.Watcher` around another one. `broke` gets its first error; afterwards nothing is asked of it."""

    def __init__(self, watcher: Watcher, broke: Callable[[Exception], None]) -> None:
        self._watcher = watcher
        self._broke = broke
        self._off = False

    def begin(self, life: Life) -> None:
        """A life starts."""
        self._ask(lambda: self._watcher.begin(life), None)

    def ready(self) -> None:
        """It serves."""
        self._ask(self._watcher.ready, None)

    def milestone(self, phase: str) -> None:
        """Its start-up went on."""
        self._ask(lambda: self._watcher.milestone(phase), None)

    def exited(self, member: Member) -> None:
        """A process of it ended."""
        self._ask(lambda: self._watcher.exited(member), None)

    def tick(self, session: Session) -> Call | None:
        """Its verdict, or None."""
        return self._ask(lambda: self._watcher.tick(session), None)

    def progressed(self) -> bool:
        """Whether real work was done, as far as it knows."""
        return self._ask(self._watcher.progressed, False)

    def end(self) -> None:
        """Stop looking."""
        self._ask(self._watcher.end, None)

    def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        if self._off:
            return otherwise
        try:
            return question()
        except Exception as error:
            self._off = True
            self._broke(error)
        try:
            self._watcher.end()
        except Exception:
            return otherwise
        return otherwise
