"""Values as Python prints them: read, never run."""

from __future__ import annotations

import contextlib

import pytest

from lifesign.facts.reprs import LENGTH_MAX, read_repr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "{'model': '/m', 'tensor_parallel_size': 8, 'seed': None}",
            {"model": "/m", "tensor_parallel_size": 8, "seed": None},
        ),
        (
            "{'kv': KVTransferConfig(kv_connector='NixlConnector', engine_id='7bd0', kv_rank=None, kv_role='kv_both')}",
            {"kv": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
        ),
        ("{'mode': <CompilationMode.NONE: 0>, 'x': -1.5}", {"mode": 0, "x": -1.5}),
        ("{'dtype': torch.bfloat16, 'path': PosixPath('/a b')}", {"dtype": "torch.bfloat16", "path": "/a b"}),
        (
            "{'cls': <class 'vllm.X'>, 'o': <vllm.Y object at 0x7f00>, 'l': [1, (2,)]}",
            {"cls": None, "o": None, "l": [1, [2]]},
        ),
    ],
)
def test_reading(text: str, value: object) -> None:
    assert read_repr(text) == value


@pytest.mark.parametrize(
    "text", ["{'f': <function at>, 'a': 1}", "{'a': 1", "__import__('os').system('x')", "{'a': 1 + 1}", "f(1, b=2)"]
)
def test_what_is_no_plain_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_repr(text)


@pytest.mark.parametrize(
    "text", ["[" * 5000 + "]" * 5000, "(" * 9000, "-" * 9000 + "1", "'" * LENGTH_MAX + "'", "a." * 9000 + "b"]
)
def test_hostile_text_does_no_harm(text: str) -> None:
    with contextlib.suppress(ValueError):
        read_repr(text)
