"""Run by test_plugin_rings.py with an engine's interpreter: patient waiting on vLLM's own message rings.

One ring, a writer in a thread, replies small and larger than a slot, some of whose bodies come late. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from lifesign.guard.detector.policy import StepSize
from lifesign.vllm_plugin.hooks import future_shape
from lifesign.vllm_plugin.waiting import SLICE_S, PatientQueue, StuckError, Supervisor, Wait

SLOT_BYTES = 4096
LATE_S = 1.7


class Watcher:
    """Waits for ever, or gives up at once."""

    def __init__(self) -> None:
        self.looks = 0
        self.give_up = False

    def other_call_done(self) -> None:
        return

    def step_sent(self, size: StepSize) -> None:
        return

    def step_finished(self, size: StepSize, seconds: float, now_s: float) -> None:
        return

    def step_failed(self) -> None:
        return

    def look(self, wait: Wait) -> None:
        self.looks += 1
        if self.give_up:
            raise StuckError("given up")


def make_ring() -> tuple[Any, Any]:
    """A writer and its one local reader."""
    writer = MessageQueue(1, 1, max_chunk_bytes=SLOT_BYTES, max_chunks=4)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=writer.wait_until_ready)
    ready.start()
    reader.wait_until_ready()
    ready.join()
    return writer, reader


def send_late(writer: Any, payload: Any) -> None:
    """Enqueue a reply that is too large for a slot, and send its body `LATE_S` after its mark."""
    socket = writer.local_socket

    class Slow:
        def send_multipart(self, *args: Any, **kwargs: Any) -> Any:
            time.sleep(LATE_S)
            return socket.send_multipart(*args, **kwargs)

    writer.local_socket = Slow()
    try:
        writer.enqueue(payload)
    finally:
        writer.local_socket = socket


def replies() -> list[tuple[float, Any, bool]]:
    """(pause before it, payload, late body)"""
    large = "x" * (2 * SLOT_BYTES)
    return [
        (0.0, [0, "small"], False),
        (1.2, [1, "small, late"], False),
        (0.0, [2, large], False),
        (0.0, [3, large], True),
        (0.0, [4, "small, right behind"], False),
        (0.7, [5, large], True),
        (0.0, [6, large], False),
        (0.0, [7, "last"], False),
    ]


def main() -> None:
    plan = replies()
    writer, reader = make_ring()
    watcher = Watcher()
    supervisor = Supervisor(watcher)
    queue = PatientQueue(reader, 0, supervisor)

    def reply() -> Any:
        call = supervisor.sent("execute_model", StepSize(1, 1))
        call.get_response = lambda: queue.dequeue(timeout=0.1)
        return call()

    def write() -> None:
        for pause_s, payload, late in plan:
            time.sleep(pause_s)
            (send_late if late else lambda w, p: w.enqueue(p))(writer, payload)

    thread = threading.Thread(target=write)
    thread.start()
    got = [reply() for _ in plan]
    thread.join()

    # The negative: what slicing without care would do.
    thread = threading.Thread(target=lambda: (send_late(writer, [8, "x" * 9000]), writer.enqueue([9, "next"])))
    thread.start()
    place = reader.current_idx
    try:
        queue.dequeue_once(timeout=SLICE_S)
        naive = "arrived"
    except TimeoutError:
        naive = "moved" if reader.current_idx != place else "still"
    thread.join()
    mixed_up = queue.dequeue_once(timeout=5.0)[0]

    watcher.give_up = True
    refused = ""
    try:
        reply()
    except TimeoutError:
        try:
            reply()
        except RuntimeError as error:
            refused = str(error)
    print(
        json.dumps(
            {
                "shape": future_shape(),
                "order": [payload[0] for payload in got],
                "whole": got == [payload for _, payload, _ in plan],
                "looks": watcher.looks,
                "naive": naive,
                "mixed_up": mixed_up,
                "refused": refused,
            }
        )
    )
    sys.stdout.flush()


main()
