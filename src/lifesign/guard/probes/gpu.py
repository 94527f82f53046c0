"""Power and memory activity of the devices that an engine uses, through NVML if it can be imported (nvidia-ml-py).

Utilisation isn't read at all: a deadlocked kernel shows 95-100 %.
"""

from __future__ import annotations

import importlib
from typing import Any

from lifesign.guard.detector.evidence import GpuSignals

DEVICES_MAX = 64


class GpuProbe:
    """Reads NVML. `available` says whether there is anything to read; a call that fails gives nothing, never an error."""

    def __init__(self, module: Any = None) -> None:
        self._nvml = module
        self._handles: list[tuple[int, Any]] = []
        self.reason = ""
        self.chosen = False
        """Whether the devices were seen to be those of our processes."""
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = min(int(self._nvml.nvmlDeviceGetCount()), DEVICES_MAX)
            self._handles = [(at, self._nvml.nvmlDeviceGetHandleByIndex(at)) for at in range(count)]
        except ImportError:
            self.reason = "NVML isn't installed (nvidia-ml-py)"
        except Exception as error:  # NVML raises its own error classes, which exist only with the module
            self.reason = f"NVML can't be used: {str(error)[:100]}"
        if not self._handles and not self.reason:
            self.reason = "NVML knows no device"

    @property
    def available(self) -> bool:
        """Whether devices can be read."""
        return bool(self._handles)

    def choose(self, pids: set[int]) -> None:
        """Keep only the devices on which one of the processes runs; all of them if none is found (pid namespaces)."""
        used = [pair for pair in self._handles if self._runs_on(pair[1], pids)]
        if used:
            self._handles, self.chosen = used, True

    def keep_only(self, pids: set[int], visible: str, count: int) -> None:
        """Keep the devices of these processes, or none: those where they run; else those that `visible` names
        (CUDA_VISIBLE_DEVICES); else all, if there are just `count`. Somebody else's device must not vouch for ours."""
        used = [pair for pair in self._handles if self._runs_on(pair[1], pids)]
        named = {word.strip() for word in visible.split(",") if word.strip()}
        if not used and named:
            used = [pair for pair in self._handles if named & self._names_of(*pair)]
        if not used and len(self._handles) == count:
            used = self._handles
        self._handles = used
        if not used and not self.reason:
            self.reason = "nobody can tell which devices the workers use"

    def _names_of(self, index: int, handle: Any) -> set[str]:
        """What CUDA_VISIBLE_DEVICES may call the device."""
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except Exception:
            return {str(index)}
        return {str(index), uuid.decode() if isinstance(uuid, bytes) else str(uuid)}

    def _runs_on(self, handle: Any, pids: set[int]) -> bool:
        try:
            return any(one.pid in pids for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except Exception:
            return False

    def sample(self) -> tuple[GpuSignals, ...]:
        """One reading of every device; devices that don't answer are left out."""
        found = []
        for index, handle in self._handles:
            try:
                power_w = self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0
                memory_pct = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).memory)
            except Exception:
                continue
            found.append(GpuSignals(index, power_w, memory_pct))
        return tuple(found)
