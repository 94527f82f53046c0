"""The other way to switch patience on: name this class to vLLM.

    vllm serve MODEL --distributed-executor-backend lifesign.vllm_plugin.executor.PatientMultiprocExecutor

It is vLLM's multi-process executor with patient waits, and works without any environment variable. With
LIFESIGN_PATIENCE=1 set as well, nothing is wrapped twice.
"""

from __future__ import annotations

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from lifesign.vllm_plugin.hooks import UnknownShapeError, leave_alone, wrap_executor


class PatientMultiprocExecutor(MultiprocExecutor):  # type: ignore[misc]
    """vLLM's MultiprocExecutor, waiting for its workers with evidence instead of a fixed limit."""


try:
    wrap_executor(PatientMultiprocExecutor)
except (UnknownShapeError, AttributeError) as error:
    leave_alone(str(error))
