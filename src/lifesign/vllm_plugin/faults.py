"""Faults inside a real vLLM process, for `lifesign drill`. Does nothing unless the variable LIFESIGN_FAULT is set.

vLLM loads general plugins in each of its processes (API server, EngineCore, every worker) before it starts work. `install`
reads LIFESIGN_FAULT (JSON, written by `lifesign.drill.inject`), and in the one process that it names replaces one function by
a stand-in. The stand-in calls the real function until the drill arms it; then it acts: stalls, exits, raises.

No file of vLLM is changed. What makes an injected exception look as it does in the field: the stand-in is compiled with the
file name, function name and line of the function that it stands for, and further frames can be laid below it, for code that
only runs on hardware that the machine lacks. So no diagnosis can recognise a drill by its stack.

The JSON: `process` (api, core, worker), `rank` (or null: any), `targets` (`module:Class.function`, all that exist), `at`
(text on the line to blame), `frames` ([path below site-packages, function, source line, line number]), `armed_by` (a file; null:
armed from the start), `fired` (a file that gets a line when the fault acts), `after` (act on the n-th armed call), `once`,
`actions` (lists, see `perform`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

VARIABLE = "LIFESIGN_FAULT"
Function = Callable[..., Any]


def install() -> None:
    """Place the fault that LIFESIGN_FAULT describes, if it is meant for this process. Says so on stderr, and raises, when it can't."""
    raw = os.environ.get(VARIABLE)
    if not raw:
        return
    try:
        spec = json.loads(raw)
        if not _is_mine(spec):
            return
        trigger = Trigger(spec)
        for owner, name, real in _locate(spec["targets"]):
            if not getattr(real, "__lifesign_fault__", False):  # vLLM may load plugins more than once in a process
                setattr(owner, name, _stand_in(real, spec, trigger))
    except Exception as error:
        # An engine that serves without the fault would make the drill wait for nothing; the drill looks for this line.
        print(f"lifesign: {VARIABLE} could not be placed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise


def _is_mine(spec: dict[str, Any]) -> bool:
    """Whether this process is the one that the fault is for. vLLM names its processes EngineCore... and VllmWorker-N."""
    import multiprocessing

    name = multiprocessing.current_process().name
    role = "worker" if name.startswith("VllmWorker") else "core" if name.startswith("EngineCore") else "api"
    if role != spec["process"]:
        return False
    rank = spec.get("rank")
    return rank is None or role != "worker" or name.rpartition("-")[2] == str(rank)


def _locate(targets: list[str]) -> list[tuple[Any, str, Function]]:
    """(owner, attribute, function) of each target that this build has: a GPU and a CPU worker differ, one of them runs."""
    import importlib

    found: list[tuple[Any, str, Function]] = []
    problems = []
    for target in targets:
        module_name, _, path = target.partition(":")
        try:
            owner: Any = importlib.import_module(module_name)
            *parents, name = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            found.append((owner, name, getattr(owner, name)))
        except Exception as error:  # a module for other hardware may fail in any way when it is imported
            problems.append(f"{target}: {type(error).__name__}: {error}")
    if not found:
        raise LookupError("; ".join(problems) or "no target given")
    return found


class Trigger:
    """Decides at each call whether it is time, does what the fault says, and gives back the exception to raise, if any."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._armed_calls = 0
        self._acted = False

    def __call__(self, arguments: tuple[Any, ...] = ()) -> BaseException | None:
        spec = self._spec
        if self._acted and spec.get("once", True):
            return None
        armed_by = spec.get("armed_by")
        if armed_by and not os.path.exists(armed_by):
            return None
        self._armed_calls += 1
        turn = self._armed_calls - spec.get("after", 1) + 1
        if turn < 1:
            return None
        if not self._acted:
            self._tell()
        self._acted = True
        for action in spec["actions"]:
            error = perform(action, turn, arguments)
            if error is not None:
                return error
        return None

    def _tell(self) -> None:
        """Tell the drill that the fault acts now (the monotonic clock is the same in all processes of a machine)."""
        import time

        fired = self._spec.get("fired")
        if fired:
            with open(fired, "a", encoding="ascii") as file:
                file.write(f"{os.getpid()} {time.monotonic():.3f}\n")


def perform(action: list[Any], turn: int, arguments: tuple[Any, ...] = ()) -> BaseException | None:
    """Do one action; an exception is returned, not raised, so that no frame of this file gets into its traceback.

    `arguments`: those of the call; `set` changes an attribute of the first, the object whose method it is.
    """
    kind, *rest = action
    if kind == "raise":
        return _make_exception(*rest)
    if kind == "say":
        os.write(2, rest[0].encode())
    elif kind == "stall":
        how, seconds, growing = rest
        _stall(how, seconds * (turn if growing else 1))
    elif kind == "leave":
        _leave(*rest)
    elif kind == "hog":
        _hog(rest[0])
    elif kind == "cut":
        _cut_connections()
    elif kind == "set":
        setattr(arguments[0], *rest)
    elif kind == "kill-parent":
        import signal

        os.kill(os.getppid(), signal.SIGKILL)
    else:
        raise ValueError(f"unknown action {kind!r}")
    return None


def _make_exception(type_name: str, text: str) -> BaseException:
    """The exception with its real type. A type whose package isn't installed is made up under the same name."""
    import importlib

    module_name, _, name = type_name.rpartition(":")
    kind: Any = None
    try:
        kind = getattr(importlib.import_module(module_name or "builtins"), name)
    except (ImportError, AttributeError):
        kind = type(name, (RuntimeError,), {"__module__": module_name})
    error = _bare(kind)
    # Some types (Triton's OutOfResources) build their text from other arguments; what counts is what gets printed.
    error.args = (text,) if text else ()
    if _shown(error) != text and not isinstance(error, KeyError):
        shown = type(name, (kind,), {"__module__": kind.__module__, "__str__": lambda self: text})
        error = _bare(shown)
        error.args = (text,)
    return error


def _shown(error: BaseException) -> str | None:
    """What the exception would print; None when it can't, for want of what its constructor would have set."""
    try:
        return str(error)
    except Exception:
        return None


def _bare(kind: Any) -> BaseException:
    """An exception made without its constructor, which may ask for arguments that only the original place has."""
    return kind.__new__(kind)  # type: ignore[no-any-return]


WALKED_BYTES = 64 << 20
"""What a slow step walks through, as a real one walks through its weights: a detector may tell work from a spin by that."""


def _stall(how: str, seconds: float) -> None:
    """Spend `seconds` at honest work in Python, at honest work in native code, or asleep; `forever` spins without end."""
    import time

    if how == "sleep":
        time.sleep(seconds)
        return
    if how == "forever":
        while True:
            pass
    end = time.monotonic() + seconds
    if how == "native":
        _compute_natively(end)
        return
    weights = memoryview(b"\1" * WALKED_BYTES)
    stride, page = 1 << 20, 1 << 12
    total = 0
    while True:
        for start in range(0, WALKED_BYTES, stride):
            total += sum(weights[start : start + stride : page])
            if time.monotonic() >= end:
                return


def _compute_natively(end: float) -> None:
    """Compute until `end` in native code that lets go of the interpreter: torch, or OpenSSL where torch isn't installed."""
    import time

    try:
        import torch
    except ImportError:
        import hashlib

        weights = b"\1" * WALKED_BYTES
        while time.monotonic() < end:
            hashlib.sha256(weights)
        return
    matrix = torch.rand(2000, 2000)
    while time.monotonic() < end:
        matrix = torch.mm(matrix, matrix)
        matrix = matrix / matrix.norm()


def _leave(how: str, code: int) -> None:
    """End this process: without clean-up, by a signal to itself, or by reading a null pointer."""
    sys.stdout.flush()
    sys.stderr.flush()
    if how == "exit":
        os._exit(code)
    if how == "signal":
        import signal

        signal.signal(code, signal.SIG_DFL)
        os.kill(os.getpid(), code)
    import ctypes

    ctypes.string_at(0)


def _hog(mib: int) -> None:
    """Hold `mib` MiB of touched memory for as long as the process lives."""
    held = []
    for _ in range(mib // 64):
        block = bytearray(64 << 20)
        block[:: os.sysconf("SC_PAGE_SIZE")] = b"\1" * len(block[:: os.sysconf("SC_PAGE_SIZE")])
        held.append(block)
    _hog.held = held  # type: ignore[attr-defined]


def _cut_connections() -> None:
    """Shut down every connected TCP socket of this process, without closing descriptors that native code still holds."""
    import socket

    for entry in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(entry))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # not a socket, not connected, or gone meanwhile


def _stand_in(real: Function, spec: dict[str, Any], trigger: Trigger) -> Function:
    """A function that behaves like `real` until the fault acts, and whose frames look like those of the code it stands for."""
    import functools
    import inspect

    code = inspect.unwrap(real).__code__
    line = _line_of(code.co_filename, spec.get("at", ""), code.co_firstlineno)
    deeper: Function | None = None
    for path, function, source, fallback in reversed(spec.get("frames", [])):
        filename = _installed(path)
        number = _line_of(filename, source, 0) or _remember(filename, fallback or 1, source)
        body = "raise error" if deeper is None else "return deeper(error)"
        deeper = _compile(filename, function, number, "error", body, {"deeper": deeper})
    last = "raise error" if deeper is None else "return deeper(error)"
    body = f"error = trigger(args)\nif error is not None: {last}\nreturn real(*args, **kwargs)"
    names = {"trigger": trigger, "real": real, "deeper": deeper}
    stand_in = _compile(code.co_filename, code.co_name, line or code.co_firstlineno, "*args, **kwargs", body, names)
    functools.update_wrapper(stand_in, real)
    stand_in.__lifesign_fault__ = True  # type: ignore[attr-defined]
    return stand_in


def _installed(path: str) -> str:
    """Where a file below site-packages lies: beside the installed top package, or where it would lie beside vLLM."""
    import importlib.util

    top = path.split("/", 1)[0]
    for name in (top, "vllm"):
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if found is not None and found.submodule_search_locations:
            root = os.path.dirname(next(iter(found.submodule_search_locations)))
            return os.path.join(root, *path.split("/"))
    return path


def _line_of(filename: str, text: str, start: int) -> int:
    """Number of the first line after `start` that holds `text`, 0 if there is none."""
    import linecache

    if not text:
        return 0
    lines = linecache.getlines(filename)
    return next((number for number, line in enumerate(lines, 1) if number > start and text in line), 0)


def _remember(filename: str, number: int, source: str) -> int:
    """Give linecache a source line for a place that isn't installed, so that tracebacks print it. Returns the number."""
    import linecache

    lines = ["\n"] * (number - 1) + [f"        {source}\n"]
    if not linecache.getlines(filename):
        linecache.cache[filename] = (len(source), None, lines, filename)  # no time: linecache keeps it without the file
    return number


def _compile(filename: str, name: str, line: int, parameters: str, body: str, names: dict[str, Any]) -> Function:
    """A function whose every statement claims to stand on `line` of `filename`, over the whole line (so no carets appear)."""
    import ast
    import linecache

    inside = "\n".join(f"    {part}" for part in body.split("\n"))
    tree = ast.parse(f"def {name}({parameters}):\n{inside}\n")
    text = linecache.getline(filename, line).rstrip()
    start, end = len(text) - len(text.lstrip()), len(text.encode())
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
            node.col_offset, node.end_col_offset = start, end  # type: ignore[attr-defined]
    space = dict(names)
    exec(compile(tree, filename, "exec"), space)
    return space[name]  # type: ignore[no-any-return]
