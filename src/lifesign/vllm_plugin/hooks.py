"""Where patience meets vLLM's internals: looks before it touches, and keeps its hands off what it doesn't know.

Two functions of the multi-process executor are wrapped: `_init_executor` (its rings exist afterwards, and get a
`PatientQueue` each) and `collective_rpc` (which call is awaited, and how large is its step). Nothing of vLLM is copied:
the call goes out through vLLM's own code, the reply comes in through vLLM's own code, only the ring's `dequeue` between
them waits differently.

Two shapes of the executor are known: futures that carry their `get_response` (0.27 to 0.32), and a queue of pairs
(future, get_response) (seen in 0.19). The shape is found by looking at signatures, not by version numbers. Anything else
gets one warning and vLLM as it was.
"""

from __future__ import annotations

import functools
import inspect
import logging
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from lifesign.guard.detector.policy import StepSize
from lifesign.vllm_plugin.waiting import STEP_METHODS, Call, PatientQueue, Supervisor

LOG = logging.getLogger("vllm.lifesign")
"""A child of vLLM's logger: its lines look like vLLM's own and obey VLLM_LOGGING_LEVEL."""
ATTACHED = "_lifesign_supervisor"
RPC_PARAMETERS = ("self", "method", "timeout", "args", "kwargs", "non_block")


class UnknownShapeError(Exception):
    """This vLLM doesn't look like any that is known; the text says what differs."""


def process_role() -> str:
    """worker, engine or server: which of vLLM's processes this is, by the name it gave it."""
    name = multiprocessing.current_process().name
    if name.startswith("VllmWorker"):
        return "worker"
    if name.startswith("EngineCore"):
        return "engine"
    return "server"


def switch_on() -> None:
    """Do what patience needs in this process. Never raises: vLLM goes on untouched, after one warning."""
    role = process_role()
    try:
        if role == "worker":
            from lifesign.vllm_plugin.stacks import answer_dump_requests

            answer_dump_requests()
            return
        if role == "server":
            from lifesign.vllm_plugin.metrics import publish

            publish()
        if role == "engine" or os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
            from lifesign.vllm_plugin import uniproc

            install_multiproc()
            uniproc.install()
    except Exception as error:
        leave_alone(f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=32)
def leave_alone(why: str) -> None:
    """The one warning (per reason and process): patience is off here, vLLM behaves as without lifesign."""
    LOG.warning("lifesign: patience is off in this process, vLLM is left as it is: %s", why[:500])


def install_multiproc() -> None:
    """Wrap vLLM's own executor class, once. Raises UnknownShapeError, or ImportError where there is none."""
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    wrap_executor(MultiprocExecutor)


def future_shape() -> str:
    """`carries` or `pairs`: how this vLLM keeps a future and the function that gets its response together.

    Raises UnknownShapeError when it is neither, or when the ring can't be waited on in slices.
    """
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.v1.executor.multiproc_executor import FutureWrapper, MultiprocExecutor

    rpc = tuple(inspect.signature(MultiprocExecutor.collective_rpc).parameters)
    if rpc[: len(RPC_PARAMETERS)] != RPC_PARAMETERS:
        raise UnknownShapeError(f"collective_rpc takes {', '.join(rpc)}")
    ring = tuple(inspect.signature(MessageQueue.dequeue).parameters)
    if ring[1:3] != ("timeout", "indefinite"):
        raise UnknownShapeError(f"MessageQueue.dequeue takes {', '.join(ring)}")
    if tuple(inspect.signature(MessageQueue.recv).parameters) != ("socket", "timeout"):
        raise UnknownShapeError("MessageQueue.recv has changed")
    made_of = tuple(inspect.signature(FutureWrapper.__init__).parameters)
    if made_of[:3] == ("self", "futures_queue", "get_response"):
        return "carries"
    if made_of[:2] == ("self", "futures_queue") and "get_response" not in made_of:
        return "pairs"
    raise UnknownShapeError(f"FutureWrapper takes {', '.join(made_of)}")


def wrap_executor(cls: Any) -> None:
    """Make executors of this class patient. Harmless when the class or one that it inherits from is patient already."""
    if not getattr(cls.collective_rpc, "lifesign", False):
        wrap_as(cls, future_shape())


def wrap_as(cls: Any, shape: str) -> None:
    """Wrap a class whose futures have the given shape (see `future_shape`)."""
    carries = shape == "carries"
    init, rpc = cls._init_executor, cls.collective_rpc

    @functools.wraps(init)
    def patient_init(executor: Any) -> None:
        beacon = guarded(begin_beacon)
        init(executor)
        if not guarded(lambda: _attach_keeper(executor, beacon, shape)) and beacon is not None:
            beacon.withdraw()

    @functools.wraps(rpc)
    def patient_rpc(
        executor: Any,
        method: Any,
        timeout: float | None = None,
        args: Any = (),
        kwargs: Any = None,
        non_block: bool = False,
        **more: Any,
    ) -> Any:
        supervisor: Supervisor | None = executor.__dict__.get(ATTACHED)
        if supervisor is None:
            return rpc(executor, method, timeout, args, kwargs, non_block, **more)
        if supervisor.finished_reason:
            supervisor.refuse_if_finished(method)
        if timeout is None or not isinstance(method, str) or method not in STEP_METHODS:
            return other_call(
                supervisor, functools.partial(rpc, executor, method, timeout, args, kwargs, non_block, **more)
            )
        call = supervisor.sent(method, size_or_fault(supervisor, method, args))
        try:
            future = rpc(executor, method, timeout, args, kwargs, True, **more)
        except BaseException as error:
            supervisor.failed(error)
            raise
        try:
            make_patient(executor, call, future, carries)
        except Exception:
            supervisor.fault()
        return future if non_block else future.result()

    patient_rpc.lifesign = True  # type: ignore[attr-defined]
    cls._init_executor = patient_init
    cls.collective_rpc = patient_rpc


def guarded(ours: Callable[[], Any]) -> Any:
    """What `ours` gives; None, after the one warning, when it fails: nothing of ours may keep an engine from starting."""
    try:
        return ours()
    except Exception as error:
        leave_alone(f"{type(error).__name__}: {error}")
        return None


def begin_beacon() -> Any:
    """The beacon of this process, or None where it can't be written."""
    from lifesign.vllm_plugin import assembly

    return assembly.begin_beacon()


def _attach_keeper(executor: Any, beacon: Any, shape: str) -> bool:
    from lifesign.vllm_plugin import assembly

    return attach(executor, assembly.keeper_for(executor, beacon), shape)


def other_call(supervisor: Supervisor, call: Callable[[], Any]) -> Any:
    """A call that keeps vLLM's own waiting. When it times out, a reply is owed, and the executor is finished."""
    try:
        result = call()
    except TimeoutError as error:
        supervisor.finish(str(error) or "timed out")
        raise
    supervisor.other_call_done()
    return result


def step_size(method: str, args: Any) -> StepSize | None:
    """The size of the step that a call begins; None for a call that belongs to the step before it."""
    if method != "execute_model":
        return StepSize(1, 1) if method == "execute_dummy_batch" else None
    scheduled = args[0] if args else None
    per_request = getattr(scheduled, "num_scheduled_tokens", None)
    total = getattr(scheduled, "total_num_scheduled_tokens", None)
    sequences = len(per_request) if isinstance(per_request, dict) else 0
    return StepSize(sequences, total if isinstance(total, int) else sequences)


def size_or_fault(supervisor: Supervisor, method: str, args: Any) -> StepSize | None:
    """The size of the step; without one, and with patience off, where the call's arguments can't be read."""
    try:
        return step_size(method, args)
    except Exception:
        supervisor.fault()
        return None


def make_patient(executor: Any, call: Call, future: Any, carries: bool) -> None:
    """Let the reply to this call be awaited through the supervisor. The future is new: nobody waits on it yet."""
    if carries:
        call.get_response = future.get_response
        future.get_response = call
        return
    queued, get_response = executor.futures_queue[0]
    if queued is future:
        call.get_response = get_response
        executor.futures_queue[0] = (future, call)


def attach(executor: Any, watcher: Any, shape: str) -> bool:
    """Put a PatientQueue before each ring that carries replies; False when an unknown ring leaves all as they are."""
    rings = list(getattr(executor, "response_mqs", None) or [])
    for ring in rings:
        missing = [name for name in ("current_idx", "local_socket", "recv", "buffer") if not hasattr(ring, name)]
        if getattr(ring, "_is_local_reader", True) and (missing or getattr(ring.buffer, "max_chunks", 0) < 2):
            leave_alone(f"a reply ring lacks {', '.join(missing) or 'a second slot'}")
            return False
    if not rings or not hasattr(executor, "futures_queue"):
        leave_alone("this executor has no reply rings or no queue of futures")
        return False
    supervisor = Supervisor(watcher)
    for rank, ring in enumerate(rings):
        ring.dequeue = PatientQueue(ring, rank, supervisor).dequeue
    setattr(executor, ATTACHED, supervisor)
    LOG.info("lifesign: waits for %d worker(s) are patient (%s futures)", len(rings), shape)
    return True
