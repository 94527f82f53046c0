"""Xid numbers of the NVIDIA driver: what each says about the card, and how to read one from a kernel line.

Source: NVIDIA's table of Xid errors.
"""

from __future__ import annotations

import re

ECC_XIDS = frozenset({48, 64, 94, 95, 140, 160})
"""Memory errors: double-bit ECC, a page or row that could not be retired, contained/uncontained error."""
NOTED_XIDS = frozenset({63, 92})
"""Book-keeping of the card: a row or page was set aside, many errors were corrected. NVIDIA's table asks for no action."""
BOARD_XIDS = frozenset({74, 79, 109, 110, 119, 120, 136, 137, 143, 144, 145, 149, 150, 154})
"""Link, bus or firmware: NVLink error, fallen off the bus, GSP time-out, recovery needed."""
PROOF_XIDS = frozenset({48, 74, 79, 94, 95, 119, 120})
"""Faults of the card that explain any device error around them."""
SOFT_XIDS = frozenset({13, 31, 32, 43, 45, 68, 69})
"""Mostly raised by the program (exception in a kernel, page fault, channel reset) or by the driver's clean-up."""


def xid_of(text: str) -> int | None:
    """The number in `NVRM: Xid (PCI:0000:9b:00): 79, pid=...`, or None."""
    match = re.search(r"Xid \([^)]{1,60}\): (\d{1,3})", text[:4000])
    return int(match[1]) if match else None
