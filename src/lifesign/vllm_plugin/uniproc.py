"""The in-process executor: no RPC, so nothing to wait for patiently, but its steps belong into the beacon too.

With one rank EngineCore may run the model itself. A hang there can't be noticed from inside; an outside guard can, when
the beacon tells it that a step began and how large it is. That is all that happens here: step started, step done.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lifesign.guard.detector.beacon import BeaconState, BeaconWriter, Worker
from lifesign.guard.detector.policy import StepCost, StepSize
from lifesign.vllm_plugin.hooks import LOG, begin_beacon, guarded, step_size
from lifesign.vllm_plugin.waiting import ends_step

ATTACHED = "_lifesign_beacon"


def install() -> None:
    """Wrap vLLM's in-process executor, once; does nothing where this vLLM has none of the known shape."""
    try:
        from vllm.v1.executor.uniproc_executor import UniProcExecutor
    except ImportError:
        return
    wrap_uniproc(UniProcExecutor)


def wrap_uniproc(cls: Any) -> None:
    """Let executors of this class write a beacon. Harmless when done already."""
    if getattr(cls.collective_rpc, "lifesign", False):
        return
    names = tuple(inspect.signature(cls.collective_rpc).parameters)
    if names[:3] != ("self", "method", "timeout") or "args" not in names:
        LOG.warning("lifesign: no beacon for the in-process executor: collective_rpc takes %s", ", ".join(names)[:200])
        return
    init, rpc = cls._init_executor, cls.collective_rpc

    @functools.wraps(init)
    def noted_init(executor: Any) -> None:
        beacon = guarded(begin_beacon)
        init(executor)
        if beacon is not None and not guarded(lambda: _attach_steps(executor, beacon)):
            beacon.withdraw()

    @functools.wraps(rpc)
    def noted_rpc(
        executor: Any, method: Any, timeout: float | None = None, args: Any = (), *rest: Any, **more: Any
    ) -> Any:
        steps: Steps | None = executor.__dict__.get(ATTACHED)
        call = functools.partial(rpc, executor, method, timeout, args, *rest, **more)
        if (
            steps is None
            or not isinstance(method, str)
            or method not in ("execute_model", "sample_tokens", "execute_dummy_batch")
        ):
            return call()
        return steps.follow(method, args, call)

    noted_rpc.lifesign = True  # type: ignore[attr-defined]
    cls._init_executor = noted_init
    cls.collective_rpc = noted_rpc


def _attach_steps(executor: Any, beacon: BeaconWriter) -> bool:
    from lifesign.vllm_plugin import assembly

    beacon.set_workers([Worker(0, beacon.pid)])
    beacon.set_state(BeaconState.IDLE)
    setattr(executor, ATTACHED, Steps(beacon, StepCost(assembly.backend_of_vllm())))
    return True


class Steps:
    """Writes one in-process executor's steps into the beacon. A fault of ours takes the beacon back, and vLLM works on."""

    def __init__(self, beacon: BeaconWriter, cost: StepCost) -> None:
        self.beacon = beacon
        self.cost = cost
        self.noting = True

    def follow(self, method: str, args: Any, call: Callable[[], Any]) -> Any:
        """Make the call, and note when its step begins and ends (for a future: when its result is asked for)."""
        self._note(lambda: self._begun(method, args))
        try:
            result = call()
        except BaseException:
            self._note(self.beacon.abandon)
            raise
        self._note(lambda: self._answered(method, result))
        return result

    def _note(self, ours: Callable[[], None]) -> None:
        if not self.noting:
            return
        try:
            ours()
        except Exception:
            self.noting = False
            LOG.exception("lifesign: no progress beacon from now on; please report this")
            self.beacon.withdraw()

    def _begun(self, method: str, args: Any) -> None:
        size = step_size(method, args)
        if size is not None:
            self.beacon.step_started(
                size.sequences, size.tokens, self.cost.suspect_limit_s(size), self.cost.predicted_s(size)
            )

    def _answered(self, method: str, result: Any) -> None:
        if not isinstance(result, Future):
            self._ended(method, result)
        elif not result.done():
            self._later(method, result)
        elif result.cancelled() or result.exception() is not None:
            self.beacon.abandon()
        else:
            self._ended(method, result.result())

    def _ended(self, method: str, response: Any) -> None:
        if ends_step(method, response):
            seconds = self.beacon.step_done(idle=self.beacon.steps_started - self.beacon.steps_done <= 1)
            self.cost.observe(StepSize(self.beacon.last_sequences, self.beacon.last_tokens), seconds)

    def _later(self, method: str, future: Any) -> None:
        """The result is computed when somebody asks for it; that is when the step ends."""
        inner = future.result
        ended = False

        def result(timeout: float | None = None) -> Any:
            nonlocal ended
            try:
                value = inner(timeout)
            except BaseException:
                if future.done() and not ended:  # after a mere time-out it may be asked for again
                    ended = True
                    self._note(self.beacon.abandon)
                raise
            if not ended:
                ended = True
                self._note(lambda: self._ended(method, value))
            return value

        future.result = result
