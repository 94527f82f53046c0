"""Waiting for a worker's reply without a fixed limit, and without ever taking an old reply for a new one.

vLLM's executor sends a call to its workers through one shared-memory ring and reads each worker's replies from another.
Replies carry no number: the next one read is taken for the oldest call still open. Two things follow.

A wait may be cut into slices, because a wait that times out on the ring leaves the ring as it was. With one exception: a
reply too large for a ring slot leaves only a mark there, and its body comes over a socket. When the time runs out
between the two, the mark is spent, and reading the ring again would take the *next* reply for this one. `PatientQueue`
notices that the ring moved and waits for the body on the socket.

And a wait that is given up leaves a reply that nobody asked for any more. So the executor behind it is finished:
`Supervisor` refuses every later call, whatever vLLM's own recovery would like to try (a retry after a given-up step was
seen to hand an old reply to a new step, which then failed with a KeyError).

Nothing in here imports vLLM: queues and watchers are protocols, so that tests can put real rings or scripted ones in.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from lifesign.guard.detector.policy import StepSize

LOG = logging.getLogger("vllm.lifesign")
SLICE_S = 0.5
"""How long one slice of a wait takes; between slices the watcher looks at the workers."""
STEP_METHODS = frozenset({"execute_model", "sample_tokens", "execute_dummy_batch", "take_draft_token_ids"})
"""The calls that vLLM bounds by VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS; the only ones whose waits change."""


class StuckError(TimeoutError):
    """A worker is dead or stuck for good. A TimeoutError, because that is what vLLM's executor turns into its own."""


class RefusedError(RuntimeError):
    """A call was made on an executor that still owes a reply to an earlier one."""


class Wait(NamedTuple):
    """What is being waited for: the call, the rank whose reply is due, the step's size and age in seconds."""

    method: str
    rank: int
    size: StepSize
    age_s: float
    now_s: float


class Watcher(Protocol):
    """Judges and reports; `Supervisor` tells it what happens. `look` raises StuckError to give up.

    Anything else that it raises is a fault of ours: it is logged once, and vLLM's own limits are in force again.
    """

    def other_call_done(self) -> None:
        """A call that isn't part of a step came back (loading, profiling, a LoRA adapter)."""

    def step_sent(self, size: StepSize) -> None:
        """A step went to the workers."""

    def step_finished(self, size: StepSize, seconds: float, now_s: float) -> None:
        """Its result came, `seconds` after the workers could begin with it."""

    def step_failed(self) -> None:
        """It ended with an error, and no step in flight counts any more."""

    def look(self, wait: Wait) -> None:
        """A slice passed without a reply. Returns to wait on; raises StuckError to give up."""

    def off(self) -> None:
        """A fault of ours: nothing is told from now on, and nothing may go on saying that a step runs."""


class Ring(Protocol):
    """What is used of vLLM's MessageQueue."""

    current_idx: int
    local_socket: Any

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        """The next message, or TimeoutError."""

    def recv(self, socket: Any, timeout: float | None) -> Any:
        """A message's body from a socket, or TimeoutError."""


class Step:
    """One scheduled batch on its way through the workers: `execute_model`, then usually `sample_tokens`."""

    __slots__ = ("sent_s", "size")

    def __init__(self, size: StepSize, sent_s: float) -> None:
        self.size = size
        self.sent_s = sent_s


class Call:
    """One call whose reply is awaited, and the step it belongs to. Calling it gets the reply, patiently."""

    __slots__ = ("get_response", "method", "step", "supervisor")

    def __init__(self, method: str, step: Step, supervisor: Supervisor) -> None:
        self.method = method
        self.step = step
        self.supervisor = supervisor
        self.get_response: Callable[[], Any] = _nothing_yet

    def __call__(self) -> Any:
        """The reply, through vLLM's own `get_response`, with patient queues underneath."""
        return self.supervisor.wait(self)


def _nothing_yet() -> Any:
    raise RuntimeError("lifesign: the call has no way to get its reply")


class Supervisor:
    """Follows one executor's calls. Owned by the thread that runs the engine's step loop.

    What runs once per step is written to be short: every microsecond here is paid by every step.
    """

    __slots__ = ("_freed_s", "_newest", "clock", "current", "finished_reason", "watcher", "watching")

    def __init__(self, watcher: Watcher, clock: Callable[[], float] = time.monotonic) -> None:
        self.watcher = watcher
        self.clock = clock
        self.current: Call | None = None
        self.finished_reason = ""
        """Why no further call may be made; empty while the executor is usable."""
        self.watching = True
        """False once the watcher failed: calls are still followed (no stale reply is ever taken), limits are vLLM's."""
        self._newest: Step | None = None
        self._freed_s = 0.0
        """When the workers finished the step before: they take steps one after the other."""

    def refuse_if_finished(self, method: object) -> None:
        """Raise RefusedError when a reply is still owed to a call that was given up."""
        if self.finished_reason:
            raise RefusedError(
                f"lifesign: {method} refused: an earlier call was given up ({self.finished_reason}), and its late reply "
                "would be taken for this one's. The engine has to be restarted."
            )

    def finish(self, reason: str) -> None:
        """From now on every call is refused."""
        self.finished_reason = self.finished_reason or reason

    def fault(self) -> None:
        """Something of ours raised what it may not: log it once, and let vLLM's own limits decide from now on."""
        if not self.watching:
            return
        self.watching = False
        LOG.exception("lifesign: patience is off from now on, vLLM's own limits are in force; please report this")
        with contextlib.suppress(Exception):
            self.watcher.off()

    def sent(self, method: str, size: StepSize | None) -> Call:
        """A step call is about to go out. `size` is given with the calls that begin a step."""
        step = self._newest
        if size is not None or step is None:
            step = self._newest = Step(size or StepSize(0, 0), self.clock())
            if self.watching:
                try:
                    self.watcher.step_sent(step.size)
                except Exception:
                    self.fault()
        return Call(method, step, self)

    def failed(self, error: BaseException | None = None) -> None:
        """A call ended with an error. One that timed out leaves a reply that nobody may read."""
        if isinstance(error, TimeoutError):
            self.finish(str(error.__cause__ or "") or str(error) or "timed out")
        if self.watching:
            try:
                self.watcher.step_failed()
            except Exception:
                self.fault()

    def wait(self, call: Call) -> Any:
        """The reply to `call`."""
        if self.finished_reason:
            self.refuse_if_finished(call.method)
        outer, self.current = self.current, call
        try:
            response = call.get_response()
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            self.current = outer
        if ends_step(call.method, response):
            now_s = self.clock()
            step = call.step
            seconds = now_s - max(step.sent_s, self._freed_s)
            self._freed_s = now_s
            if self.watching:
                try:
                    self.watcher.step_finished(step.size, seconds, now_s)
                except Exception:
                    self.fault()
        return response

    def look(self, rank: int) -> None:
        """Ask the watcher whether to wait on for the current call's reply from `rank`; raises StuckError to give up."""
        call = self.current
        if call is None or not self.watching:
            return
        now_s = self.clock()
        age_s = now_s - max(call.step.sent_s, self._freed_s)
        try:
            self.watcher.look(Wait(call.method, rank, call.step.size, age_s, now_s))
        except StuckError:
            raise
        except Exception:
            self.fault()

    def other_call_done(self) -> None:
        """A call outside of steps came back."""
        if self.watching:
            try:
                self.watcher.other_call_done()
            except Exception:
                self.fault()


def ends_step(method: str, response: object) -> bool:
    """Whether this reply completes a step: the sampled tokens, or an execution that returns its output at once.

    `execute_model` answers None when `sample_tokens` will bring the result. With an aggregator the executor gets one
    response per rank, as a list.
    """
    if method == "sample_tokens":
        return True
    if method == "execute_model":
        return any(part is not None for part in response) if isinstance(response, list) else response is not None
    return method == "execute_dummy_batch"


class PatientQueue:
    """Stands in for one ring's `dequeue`: waits in slices while a step's reply is due, and looks in between."""

    __slots__ = ("dequeue_once", "rank", "ring", "supervisor")

    def __init__(self, ring: Ring, rank: int, supervisor: Supervisor) -> None:
        self.ring = ring
        self.rank = rank
        self.supervisor = supervisor
        self.dequeue_once = ring.dequeue

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        """vLLM's `dequeue`; its time limit is replaced while a step's reply is due, and kept for every other call."""
        if self.supervisor.current is None:
            return self.dequeue_once(timeout=timeout, indefinite=indefinite)
        place = self.ring.current_idx
        try:
            return self.dequeue_once(timeout=SLICE_S)
        except TimeoutError:
            began_s = self.supervisor.clock() - SLICE_S
        if self.ring.current_idx != place:
            return self._body(began_s, timeout)
        return self._more_slices(began_s, timeout)

    def _more_slices(self, began_s: float, timeout: float | None) -> Any:
        ring = self.ring
        while True:
            self._look(began_s, timeout)
            place = ring.current_idx
            try:
                return self.dequeue_once(timeout=SLICE_S)
            except TimeoutError:
                if ring.current_idx != place:
                    return self._body(began_s, timeout)

    def _body(self, began_s: float, timeout: float | None) -> Any:
        """The body of a reply whose mark was read: only the socket may be asked now, never the ring."""
        while True:
            self._look(began_s, timeout)
            try:
                return self.ring.recv(self.ring.local_socket, SLICE_S)
            except TimeoutError:
                continue

    def _look(self, began_s: float, timeout: float | None) -> None:
        """Let the watcher look; without a working one, vLLM's own limit decides."""
        self.supervisor.look(self.rank)
        if not self.supervisor.watching and timeout is not None and self.supervisor.clock() - began_s >= timeout:
            raise TimeoutError
