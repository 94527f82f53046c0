"""The words of a drill: a fault is data, so that the list, the documents, the runner and the benchmark can't disagree.

A `Fault` says how the engine is started (`Start`), what is done to it (`Signal`, `Hook` or `Ask`), when, what the log can
carry about it afterwards (`Expect`), and for how long anybody has to wait. Nothing in this file acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lifesign.text import T

Role = Literal["api", "core", "worker"]
EngineName = Literal["vllm", "fake"]
When = Literal["start-up", "serving"]
Fate = Literal["dies", "lives", "stopped"]

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Expect:
    """What a correct diagnosis says, given the log and what stands beside it (kernel lines, the exit status).

    accept: other causes that are as true of this log; never a death where none was injected, nor the reverse. Both fields of
    that kind stay empty wherever the cause can be told. accept_subtypes: other subtypes of `cause`.
    """

    cause: str
    subtype: str
    phase: str = "serving"
    accept: tuple[str, ...] = ()
    accept_subtypes: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()  # literals; the first line that holds one of them carries the cause

    @property
    def slug(self) -> str:
        """`cause/subtype`, the form of `drill list`; `cause` where no subtype is asked for."""
        return f"{self.cause}/{self.subtype}" if self.subtype else self.cause


@dataclass(frozen=True, slots=True)
class Start:
    """How the engine is started for a fault: only the differences from a plain start."""

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()  # None removes a variable
    model: str = "good"  # a name of `models.FOLDERS`
    model_id: str | None = None  # a hub id or a path that doesn't exist, instead of a folder
    max_model_len: int = 256
    ranks: int = 1
    warm_up: bool = False  # without --enforce-eager, so that vLLM profiles a forward pass
    open_files: int | None = None  # RLIMIT_NOFILE
    address_space_mib: int | None = None  # RLIMIT_AS
    cgroup_mib: int | None = None  # memory cgroup
    shm_kib: int | None = None  # size of a private /dev/shm
    shm_read_only: bool = False
    port_taken: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to one process of the engine (or to the whole group, as a terminal does for Ctrl-C)."""

    role: Role
    name: str  # "SIGKILL"
    rank: int = 0
    group: bool = False
    resume_after_s: float | None = None  # SIGCONT after so many seconds


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack as Python prints it. `path` is relative to site-packages."""

    path: str
    function: str
    code: str
    line: int = 0  # used where the installed file doesn't hold `code`


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise an exception with its real type. `type` is `module:Name`, or a bare name of the builtins."""

    type: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """Text that the process prints by itself, without a logger: C and C++ code does so."""

    text: str


@dataclass(frozen=True, slots=True)
class Stall:
    """Spend time inside the call: `busy` in Python, `native` in torch, `sleep`, or `forever` (busy, without end)."""

    kind: Literal["busy", "native", "sleep", "forever"]
    seconds: float = 0.0
    growing: bool = False  # the n-th call stalls n times as long


@dataclass(frozen=True, slots=True)
class Leave:
    """End the process from inside: `os._exit(code)`, a signal to itself, or a null pointer read (`code` is ignored)."""

    how: Literal["exit", "signal", "null"]
    code: int = 1


@dataclass(frozen=True, slots=True)
class Hog:
    """Allocate and touch host memory until `mib` MiB are held (or the kernel ends it)."""

    mib: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Shut down every established TCP connection of the process: what a network partition looks like from one rank."""


@dataclass(frozen=True, slots=True)
class KillParent:
    """Send SIGKILL to the parent: for a process that doesn't exist yet when the drill looks for it."""


@dataclass(frozen=True, slots=True)
class Change:
    """Set an attribute of the object whose method the point is: a setting that went wrong while the engine ran."""

    name: str
    value: int


Action = Raise | Say | Stall | Leave | Hog | Cut | KillParent | Change


@dataclass(frozen=True, slots=True)
class Hook:
    """Do something inside an engine process, at a point of its work (`points.POINTS`).

    `frames` are printed below the frame of the point, for code that only runs on hardware that this machine lacks.
    """

    point: str
    actions: tuple[Action, ...]
    frames: tuple[Frame, ...] = ()
    rank: int | None = None
    after: int = 1  # act on the n-th call
    once: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Send one particular request: `long-prompt`, `bad-json`, `no-model`, `grammar`."""

    kind: Literal["long-prompt", "bad-json", "no-model", "grammar"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to die (or to look dead)."""

    name: str
    title: T
    expect: Expect
    when: When = "serving"
    start: Start = field(default_factory=Start)
    signal: Signal | None = None
    hook: Hook | None = None
    ask: Ask | None = None
    fate: Fate = "dies"  # what the engine does by itself; "lives" is ended by the drill, "stopped" is a clean stop
    engines: tuple[EngineName, ...] = ("vllm", "fake")
    needs: tuple[str, ...] = ()  # names of `needs.CHECKS`
    rpc_limit_s: float | None = None  # VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
    patience: bool = False  # LIFESIGN_PATIENCE=1
    after_log: str = (
        ""  # start-up faults: inject when the log holds this text (how fast a start is depends on the machine)
    )
    bound_s: float = 60.0  # at most so long from the fault to its end
    kernel_log: bool = False  # hand the kernel's new lines to the diagnosis as well
    ci: bool = False  # part of the short selection for continuous integration

    @property
    def how(self) -> str:
        """The kind of injector, for lists."""
        if self.signal:
            return "signal"
        if self.hook:
            return "hook"
        if self.ask:
            return "request"
        return "start" if self.start != Start() else "none"
