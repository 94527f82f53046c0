"""vLLM release numbers: how a version text of a log is read, and how two of them compare.

PEP 440 in the part that vLLM uses: `0.9.0.1`, `0.8.5.post1`, `0.11.1rc2.dev3+g12ab`, `v0.32.0+cpu`. Standard library
only, because a run that needs one comparison shouldn't import `packaging`.
"""

from __future__ import annotations

import re

from lifesign.errors import UsageError

_SHAPE = re.compile(r"v?(\d{1,4}(?:\.\d{1,6}){0,4})(?:(a|b|rc)(\d{1,4}))?(?:\.post(\d{1,6}))?(?:\.dev(\d{1,8}))?")
_WHOLE = re.compile(_SHAPE.pattern + r"(?:(?:\+[A-Za-z0-9]|\.[A-Za-z])[A-Za-z0-9.\-_]{0,80})?")
_BUILDS = frozenset({"nightly", "main"})
"""Names of builds that are newer than every release."""
_PRE = {"a": -3, "b": -2, "rc": -1}

Key = tuple[tuple[int, ...], int, int, int, int]


def key(version: str) -> Key | None:
    """A sort key for a vLLM version text; None when it isn't one. Local parts (`+cpu`, `+g1a2b3c`) don't count.

    A development build sorts before its release: `0.11.1.dev3` < `0.11.1rc1` < `0.11.1` < `0.11.1.post1`.
    """
    if version.strip() in _BUILDS:
        return (9999, 0), 0, 0, -1, 1 << 30
    match = _SHAPE.match(version.strip()[:64])
    if match is None:
        return None
    numbers = tuple(int(part) for part in match.group(1).split("."))
    if len(numbers) < 2:
        return None
    while len(numbers) > 2 and numbers[-1] == 0:
        numbers = numbers[:-1]
    pre, pre_number = match.group(2), int(match.group(3) or 0)
    post = int(match.group(4)) if match.group(4) is not None else -1
    dev = int(match.group(5)) if match.group(5) is not None else -1
    stage = _PRE[pre] if pre else (0 if dev < 0 or post >= 0 else -4)
    return numbers, stage, pre_number, post, dev if dev >= 0 else 1 << 30


def known_or_refuse(version: str) -> None:
    """Raises UsageError when a `--vllm-version` is no version: `0.11.2`, `v0.32.0`, `0.11.1rc2.dev3+g12ab`, `nightly`."""
    text = version.strip()
    if key(text) is None or not (text in _BUILDS or _WHOLE.fullmatch(text)):
        raise UsageError(
            f"{version!r} is no vLLM release: give one like 0.32.0 (or `nightly`), or leave --vllm-version out"
        )


def at_least(version: str, floor: str) -> bool | None:
    """Whether `version` >= `floor`; None when `version` is unknown."""
    mine, other = key(version), key(floor)
    if mine is None or other is None:
        return None
    return mine >= other


def within(version: str, since: str | None, until: str | None) -> bool | None:
    """Whether since <= version <= until (both inclusive, None = open); None when `version` is unknown."""
    mine = key(version)
    if mine is None:
        return None
    low = key(since) if since else None
    high = key(until) if until else None
    return (low is None or mine >= low) and (high is None or mine <= high)


def nearest_lower(version: str, releases: tuple[str, ...]) -> str | None:
    """The newest of `releases` (ascending) that isn't newer than `version`; None when all are newer or it is no version."""
    mine = key(version)
    if mine is None:
        return None
    found: str | None = None
    for release in releases:
        other = key(release)
        if other is not None and other <= mine:
            found = release
    return found
