"""How advice words its figures: a size that is never rounded to nothing, a current value that may be only a default."""

from __future__ import annotations

from lifesign.text import T


def size_text(value: float) -> str:
    """`value` GiB in words: `1.25 GiB`; below a tenth of one in MiB, so that a little is never shown as nothing."""
    return f"{value:.2f} GiB" if value >= 0.1 or value <= 0 else f"{value * 1024:.3g} MiB"


def now(value: str, stated: bool, value_zh: str = "") -> T:
    """`now 0.8`, or `0.92 by default` for a value that nobody stated in the log: the environment isn't in it."""
    shown = value_zh or value
    return T(f"now {value}", f"现为 {shown}") if stated else T(f"{value} by default", f"默认 {shown}")
