"""No pattern of a cause may blow up on a hostile log: no repeat inside an unbounded repeat, no two unbounded wild cards."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest

try:
    from re import _constants as names  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as names  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

import lifesign.causes as package
from lifesign.causes import registry

MANY = 1000
"""A repeat of more than this counts as unbounded."""


def _patterns() -> dict[str, str]:
    found = {
        f"{cause.slug}/{sign.subtype}": sign.regex
        for cause in registry.load()[0]
        for sign in cause.signatures
        if sign.regex
    }
    for module in pkgutil.iter_modules(package.__path__):
        for name, value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).items():
            if isinstance(value, re.Pattern):
                found[f"{module.name}.{name}"] = value.pattern
    return found


def _children(item: tuple[Any, Any]) -> list[Any]:
    operator, argument = item
    if operator in (names.MAX_REPEAT, names.MIN_REPEAT):
        return [argument[2]]
    if operator is names.SUBPATTERN:
        return [argument[3]]
    if operator is names.BRANCH:
        return list(argument[1])
    if operator in (names.ASSERT, names.ASSERT_NOT):
        return [argument[1]]
    return []


def _faults(parsed: Any, inside: bool = False) -> list[str]:
    """`nested` for a repeat within an unbounded repeat; `wild` once for each unbounded `.`-repeat."""
    found: list[str] = []
    for item in parsed:
        operator, argument = item
        repeat = operator in (names.MAX_REPEAT, names.MIN_REPEAT)
        unbounded = repeat and (argument[1] is names.MAXREPEAT or argument[1] > MANY)
        if repeat and inside and argument[1] is not names.MAXREPEAT and argument[1] <= 1:
            pass
        elif repeat and inside:
            found.append("nested")
        if unbounded and len(argument[2]) == 1 and argument[2][0][0] is names.ANY:
            found.append("wild")
        for child in _children(item):
            found.extend(_faults(child, inside or unbounded))
    return found


PATTERNS = _patterns()


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_harmless(name: str) -> None:
    faults = _faults(parser.parse(PATTERNS[name]))
    assert "nested" not in faults, PATTERNS[name]
    assert faults.count("wild") <= 1, PATTERNS[name]


@pytest.mark.parametrize(
    ("pattern", "faults"), [(r"(a+)+b", ["nested"]), (r".*x.*y", ["wild", "wild"]), (r"a{1,9}b+", [])]
)
def test_the_check_sees_what_it_looks_for(pattern: str, faults: list[str]) -> None:
    assert _faults(parser.parse(pattern)) == faults


def test_there_are_patterns() -> None:
    assert len(PATTERNS) > 60
