"""Tracebacks come out whole: woven, chained, grouped, cut, nested, native."""

from __future__ import annotations

from lifesign.logs.lines import Line
from lifesign.logs.model import Traceback
from lifesign.logs.records import records
from lifesign.logs.tracebacks import Assembler, Statement
from lifesign.logs.wrappers import Unwrapper


def statements(text: str) -> list[Statement]:
    unwrapper = Unwrapper()
    lines = text.split("\n")
    unwrapper.learn(lines)
    assembler = Assembler()
    out: list[Statement] = []
    for order, record in enumerate(
        records("x.log", (Line(number, line) for number, line in enumerate(lines, 1)), unwrapper)
    ):
        record.order = order
        out += assembler.feed(record)
    out += assembler.finish()
    return sorted(out, key=lambda statement: statement.record.order)


def exceptions(text: str) -> list[Traceback]:
    return [statement.exc for statement in statements(text) if statement.exc is not None]


def prefixed(process: str, origin: str, body: list[str]) -> list[str]:
    return [f"({process}) ERROR 11-30 10:00:00 [{origin}] {line}" for line in body]


BODY = [
    "Traceback (most recent call last):",
    '  File "/x/vllm/v1/worker/gpu_worker.py", line 10, in execute_model',
    "    return run()",
    "           ^^^^^",
]


def test_two_workers_woven_line_by_line() -> None:
    first = prefixed("Worker_TP0 pid=1", "multiproc_executor.py:1", [*BODY, "RuntimeError: zero"])
    second = prefixed("Worker_TP1 pid=2", "multiproc_executor.py:1", [*BODY, "ValueError: one"])
    woven = [line for pair in zip(first, second, strict=True) for line in pair]
    found = exceptions("\n".join(woven))
    assert [(exc.type, exc.message, exc.line) for exc in found] == [
        ("RuntimeError", "zero", 9),
        ("ValueError", "one", 10),
    ]
    assert all(exc.frames[0].func == "execute_model" and exc.frames[0].code == "return run()" for exc in found)


def test_progress_bars_and_other_lines_between_frames() -> None:
    rows = prefixed("Worker_TP0 pid=1", "x.py:1", BODY[:2])
    rows += [
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 5.28it/s]",
        '(APIServer pid=9) INFO:     1.2.3.4:5 - "GET /health HTTP/1.1" 503',
    ]
    rows += prefixed("Worker_TP0 pid=1", "x.py:1", [BODY[2], "RuntimeError: late"])
    assert [(exc.type, exc.line, len(exc.frames)) for exc in exceptions("\n".join(rows))] == [("RuntimeError", 6, 1)]


def test_chain_is_innermost_first_and_linked() -> None:
    text = "\n".join(
        [
            *BODY,
            "KeyError: 'a'",
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *BODY,
            "RuntimeError: outer",
        ]
    )
    inner, outer = exceptions(text)
    assert (inner.type, inner.chain_index) == ("KeyError", 0)
    assert (outer.type, outer.chain_index) == ("RuntimeError", 1)
    assert outer.chained_to is inner


def test_two_separate_tracebacks_are_no_chain() -> None:
    text = "\n".join([*BODY, "KeyError: 'a'", "INFO:     Shutting down", *BODY, "RuntimeError: other"])
    assert [exc.chain_index for exc in exceptions(text)] == [0, 0]


def test_exception_group() -> None:
    text = "\n".join(
        [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/x/server.py", line 3, in main',
            "  |     raise group",
            "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
            "  +-+---------------- 1 ----------------",
            "    | Traceback (most recent call last):",
            '    |   File "/x/vllm/engine.py", line 4, in step',
            "    |     run()",
            "    | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
            "    +------------------------------------",
        ]
    )
    found = exceptions(text)
    assert "torch.OutOfMemoryError" in [exc.type for exc in found]
    oom = next(exc for exc in found if exc.short_type == "OutOfMemoryError")
    assert oom.line == 9
    assert oom.frames[-1].func == "step"


def test_paste_that_starts_in_mid_traceback() -> None:
    text = '  File "/x/vllm/a.py", line 4, in step\n    run()\nRuntimeError: cut above'
    (exc,) = exceptions(text)
    assert (exc.type, exc.message, exc.line) == ("RuntimeError", "cut above", 3)


def test_message_over_several_lines_keeps_their_numbers() -> None:
    text = "\n".join(
        [
            *BODY,
            "torch.distributed.DistBackendError: NCCL error, unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Last error:",
            "Cuda failure 2 'out of memory'",
        ]
    )
    (exc,) = exceptions(text)
    assert exc.message.endswith("Cuda failure 2 'out of memory'")
    assert exc.more[-1] == (8, "Cuda failure 2 'out of memory'")


def test_traceback_without_its_last_line_is_not_invented() -> None:
    assert exceptions("\n".join(BODY)) == []


def test_c_line_after_a_bare_exception_is_no_part_of_its_message() -> None:
    text = "\n".join(
        [*BODY, "RuntimeError: cancelled", "Failed: Cuda error /w/csrc/custom_all_reduce.cuh:455 'invalid argument'"]
    )
    (exc,) = exceptions(text)
    assert exc.message == "cancelled"
    assert statements(text)[-1].record.text.startswith("Failed: Cuda error")


def test_native_frames_stay_with_the_crash() -> None:
    text = "\n".join(
        [
            "!!!!!!! Segfault encountered !!!!!!!",
            '  File "<unknown>", line 0, in ncclMemoryPoolAlloc',
            '  File "src/proxy.cc", line 0, in ncclProxyService',
            "INFO:     after",
        ]
    )
    first = statements(text)[0]
    assert first.exc is None
    assert "ncclMemoryPoolAlloc" in first.record.text
    assert "ncclProxyService" in first.record.text


def test_ray_wrapper_and_the_stack_below_it() -> None:
    text = "\n".join(
        [
            *BODY,
            "ray.exceptions.RayTaskError(ValueError): ray::RayWorkerWrapper.execute_method() (pid=12, ip=10.0.0.2)",
            '  File "/x/vllm/worker.py", line 7, in init_device',
            "    raise ValueError(1)",
            "ValueError: real reason",
        ]
    )
    found = exceptions(text)
    assert [exc.short_type for exc in found] == ["RayTaskError", "ValueError"]
    assert found[0].wraps == "ValueError"
    assert found[1].message == "real reason"
