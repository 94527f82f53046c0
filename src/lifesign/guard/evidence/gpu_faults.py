"""Which of the driver's errors (Xid) may have ended this engine? A host has other GPUs, other users and a long memory.

An error counts in full when it came from a device of this engine, within the last minutes before the death. It may count
where one of the two can't be told; anything else is context: kept in the bundle, and no evidence. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lifesign.causes._xid import SOFT_XIDS
from lifesign.guard.evidence.kernel import Xid, pci_address
from lifesign.guard.restart import HARDWARE_XIDS

NEAR_S = 300.0
AFTER_S = 3.0
"""Messages are fetched every half second; what comes later than this is a consequence of the end."""
_NUMBER = re.compile(r"Xid \([^)]{1,40}\): (\d{1,4})")
_DEVICE = re.compile(r"\b((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-9A-Fa-f])?\b")


@dataclass(frozen=True)
class EngineGpus:
    """PCI addresses: `own`, on which processes of the engine were seen; `visible`, those of this container or host.

    complete: the engine served when it was looked at, so that it has no others than `own`.
    """

    own: frozenset[str] = frozenset()
    visible: frozenset[str] = frozenset()
    complete: bool = False

    def as_json(self) -> dict[str, Any]:
        """For the record of the life."""
        return {"own": sorted(self.own), "visible": sorted(self.visible), "complete": self.complete}

    @classmethod
    def load(cls, raw: object) -> EngineGpus:
        """From such a record; nothing is known where there is none."""
        seen = raw if isinstance(raw, dict) else {}
        return cls(frozenset(seen.get("own", ())), frozenset(seen.get("visible", ())), seen.get("complete") is True)


@dataclass(frozen=True)
class Faults:
    """Numbers of hardware errors. certain: ours, just before the death. unsure: ours at another time, or just before it
    on a device that may be ours. devices: those of `certain`. weights: every error with what it counts for, for a person.
    """

    certain: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    devices: frozenset[str] = frozenset()
    weights: tuple[tuple[Xid, str], ...] = ()


def weigh(xids: Iterable[Xid], gpus: EngineGpus, pids: set[int], died_s: float | None) -> Faults:
    """Sort errors by what they say of a death at `died_s`. `pids`: processes of the engine as the kernel numbers them,
    empty where it numbers them otherwise (in a container)."""
    errors = list(xids)
    named = {one.pci for one in errors if one.pid and one.pid in pids}
    only = gpus.visible if len(gpus.visible) == 1 else frozenset()
    certain: list[Xid] = []
    unsure: list[Xid] = []
    weights = []
    for one in errors:
        near = died_s is None or died_s - NEAR_S <= one.at_s <= died_s + AFTER_S
        own = one.pci in gpus.own or one.pci in named or one.pci in only
        strange = not own and (gpus.complete or bool(gpus.visible and one.pci not in gpus.visible))
        if one.number not in HARDWARE_XIDS:
            weight = "no hardware fault"
        elif strange:
            weight = "not a device of this engine"
        elif own and near:
            weight = "own device, just before the death"
            certain.append(one)
        elif own or near:
            weight = "own device, at another time" if own else "perhaps an own device, just before the death"
            unsure.append(one)
        else:
            weight = "perhaps an own device, at another time"
        weights.append((one, weight))
    return Faults(
        tuple(dict.fromkeys(one.number for one in certain)),
        tuple(dict.fromkeys(one.number for one in unsure)),
        frozenset(one.pci for one in certain),
        tuple(weights),
    )


def is_evidence(line: str, faults: Faults) -> bool:
    """Whether a line of the kernel may be diagnosed: all but the driver's words on a device whose errors are context."""
    at = line.find("NVRM:")
    if at < 0:
        return True
    number, device = _NUMBER.search(line, at), _DEVICE.search(line, at)
    if device is None or (number is not None and int(number.group(1)) in SOFT_XIDS):
        return True
    return pci_address(device.group(1)) in faults.devices
