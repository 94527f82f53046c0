"""Reads what `print` makes of Python values: the arguments in a log, without ever running anything of it.

vLLM prints its arguments as a dict whose values may be dataclasses (`KVTransferConfig(kv_connector='NixlConnector', ...)`),
enums (`<Mode.NONE: 0>`) or dtypes (`torch.bfloat16`). Only the shape of the text is read, by Python's own parser.
"""

from __future__ import annotations

import ast
import re

LENGTH_MAX = 20_000
_ENUM = re.compile(r"<[\w.]{1,80}: ('[^'\n]{0,200}'|-?\d{1,12})>")
_OBJECT = re.compile(r"<(?:class '[\w.]{1,120}'|[\w.]{1,120} object at 0x[0-9a-f]{1,16})>")
_MADE_UP = ("engine_id",)
"""Values that the program invents for each run: of no use in another command."""


def read_repr(text: str) -> object:
    """The value that `text` shows: dicts, lists, strings, numbers; a dataclass as the dict of its fields that aren't None.

    Raises ValueError for what is too long, too deep or no such text.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError("too long")
    text = _OBJECT.sub("None", _ENUM.sub(r"\1", text))
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value):
            return value
        case ast.Dict(keys, values):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return [_value(item) for item in items]
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            return -number
        case ast.Call(ast.Name(), [argument], []):
            return _value(argument)  # PosixPath('x'), frozenset([...])
        case ast.Call(ast.Name(), [], keywords):
            fields = {word.arg: _value(word.value) for word in keywords if word.arg and word.arg not in _MADE_UP}
            return {name: value for name, value in fields.items() if value is not None}
        case ast.Name() | ast.Attribute():
            return ast.unparse(node)
    raise ValueError(f"not a plain value: {type(node).__name__}")
