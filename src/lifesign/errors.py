"""The errors that lifesign raises on purpose. Each message is one sentence plus what to do next.

Subclasses say whose fault it is, so that the command line can choose an exit code and nobody sees a traceback for bad
input.
"""


class LifesignError(Exception):
    """Base of every error that lifesign raises on purpose; its text is fit to be shown to a user as it stands."""


class UsageError(LifesignError):
    """The command line or an argument is unusable (exit code 2)."""


class SourceError(LifesignError):
    """A file or stream that was given as input can't be used.

    `path` names it; `line` is the 1-based line where reading stopped, if one is known.
    """

    def __init__(self, path: str, reason: str, line: int | None = None) -> None:
        self.path = path
        self.line = line
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")


class PluginError(LifesignError):
    """A third-party cause, dialect, probe or fault is broken; the run goes on without it."""
