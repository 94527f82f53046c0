"""How advice words its figures: a size that is never rounded to nothing, a current value that may be only a default."""

from __future__ import annotations

from lifesign.text import T


def size_text(value: float) -> str:
    """`value` GiB in words: `1.25 GiB`; below one in MiB, as logs print it, so that a little is never shown as nothing."""
    if value >= 1 or value <= 0:
        return f"{value:.2f} GiB"
    mib = value * 1024
    return f"{mib:.0f} MiB" if mib >= 100 else f"{mib:.3g} MiB"


def now(value: str, stated: bool, value_zh: str = "") -> T:
    """`now 0.8`, or `0.92 by default` for a value that nobody stated in the log: the environment isn't in it."""
    shown = value_zh or value
    return T(f"now {value}", f"现为 {shown}") if stated else T(f"{value} by default", f"默认 {shown}")
