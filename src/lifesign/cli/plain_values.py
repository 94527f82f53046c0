"""Values that need no conversion don't wait for pydantic.

typer 0.29 converts every value of the command line with a pydantic adapter, also text into text, and also the values of
options that weren't given. Loading pydantic takes as long as all the rest of `lifesign explain`, and its text adapter refuses
file names that aren't UTF-8. Here text, lists of text and missing values are taken as they are; whatever else comes goes
through typer's own conversion. A typer without that conversion is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer.core

_CONVERSION = "get_runtime_param"


class PlainValue:
    """Stands for typer's conversion of one parameter (`RuntimeParam` of typer/_coercion.py) until that one is needed."""

    def __init__(self, real: Callable[[], Any]) -> None:
        self._real = real

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """`value` of `param` as the command gets it. Raises what typer raises for a value that doesn't fit."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        annotation = param.type_descriptor.annotation
        if annotation is str and isinstance(value, str) and not several:
            return value
        if (
            annotation == list[str]
            and isinstance(value, (list, tuple))
            and all(isinstance(part, str) for part in value)
        ):
            return list(value)
        return self._real().coerce(value, param=param, ctx=ctx)


def use_plain_values() -> None:
    """Lets every command of this process take text as it is."""
    parameter: Any = getattr(typer.core, "_TyperParameter", None)
    real = getattr(parameter, _CONVERSION, None)
    if real is None or getattr(real, "plain", False):
        return

    def conversion(self: Any) -> PlainValue:
        return PlainValue(lambda: real(self))

    conversion.plain = True  # type: ignore[attr-defined]
    setattr(parameter, _CONVERSION, conversion)
