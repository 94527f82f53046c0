"""The room that runs inside vLLM: patient waiting for workers, a progress beacon, and the door for injected faults.

vLLM loads `register` in each of its processes (entry-point group `vllm.general_plugins`). Unless it is switched on it
returns at once, after two look-ups in the environment and without importing anything: an engine that doesn't ask for
patience behaves as if lifesign weren't installed.
"""

from __future__ import annotations

import os

PATIENCE = "LIFESIGN_PATIENCE"
FAULT = "LIFESIGN_FAULT"
OFF = ("", "0", "false", "no", "off")


def register() -> None:
    """Entry point: LIFESIGN_PATIENCE=1 makes RPC waits patient, LIFESIGN_FAULT injects a fault (drills and tests).

    Never raises for the first: a plugin that breaks the engine it should protect would be worse than none. A fault
    that can't be injected does raise: a drill that silently does nothing would prove nothing.
    """
    if os.environ.get(PATIENCE, "").strip().lower() not in OFF:
        from lifesign.vllm_plugin.hooks import switch_on

        switch_on()
    if os.environ.get(FAULT):
        from lifesign.vllm_plugin import faults

        faults.install()
