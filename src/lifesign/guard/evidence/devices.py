"""State of the accelerators, from their own tools where they are installed. A tool that hangs is evidence as well."""

from __future__ import annotations

import shutil

from lifesign.guard.evidence.gpu_faults import EngineGpus
from lifesign.guard.evidence.kernel import pci_address
from lifesign.guard.helpers import Helpers
from lifesign.text import is_whole

_TOOLS: tuple[tuple[str, ...], ...] = (
    (
        "nvidia-smi",
        "--query-gpu=index,name,uuid,pci.bus_id,driver_version,memory.total,memory.used,utilization.gpu,utilization.memory,"
        "power.draw,temperature.gpu,ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active,pstate",
        "--format=csv",
    ),
    ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory,process_name", "--format=csv"),
    ("nvidia-smi", "-q", "-d", "ECC,PAGE_RETIREMENT,ROW_REMAPPER"),
    ("rocm-smi", "--showmeminfo", "vram", "--showuse", "--showpower"),
    ("npu-smi", "info"),
    ("xpu-smi", "discovery"),
)
TIMEOUT_S = 4.0


def device_state(helpers: Helpers) -> str:
    """What the tools say, each with its command line; a sentence when there is no tool."""
    parts = []
    hung: set[str] = set()
    for argv in _TOOLS:
        path = shutil.which(argv[0])
        if path is None or argv[0] in hung:
            continue
        result = helpers.run([path, *argv[1:]], TIMEOUT_S)
        if result.note:
            hung.add(argv[0])
        parts.append(f"$ {' '.join(argv)}\n{result.output[:65536]}{result.note}\n")
    return "\n".join(parts) or "no device tool is installed (nvidia-smi, rocm-smi, npu-smi, xpu-smi)\n"


def pids_on_devices(helpers: Helpers) -> set[int] | None:
    """Processes that hold device memory, from nvidia-smi; None when it can't be asked."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    result = helpers.run([path, "--query-compute-apps=pid", "--format=csv,noheader"], TIMEOUT_S)
    if result.code != 0:
        return None
    return {int(line) for line in result.output.split() if is_whole(line)}


def engine_gpus(helpers: Helpers, pids: set[int]) -> EngineGpus:
    """The GPUs that are to be seen, and those on which one of `pids` runs, from nvidia-smi; empty where it can't be asked."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return EngineGpus()
    seen = helpers.run([path, "--query-gpu=pci.bus_id", "--format=csv,noheader"], TIMEOUT_S)
    if seen.code != 0:
        return EngineGpus()
    visible = {pci_address(line.strip()) for line in seen.output.splitlines() if ":" in line}
    used = helpers.run([path, "--query-compute-apps=pid,gpu_bus_id", "--format=csv,noheader"], TIMEOUT_S)
    own = set()
    for line in used.output.splitlines() if used.code == 0 else ():
        pid, _, address = line.partition(",")
        if is_whole(pid.strip()) and int(pid) in pids and ":" in address:
            own.add(pci_address(address.strip()))
    return EngineGpus(frozenset(own), frozenset(visible))
