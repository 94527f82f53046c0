"""Lines of a report end where a reader can go on: never between a number and its unit, never before a full stop."""

from __future__ import annotations

import random
import re

import pytest
from rich.cells import cell_len

from lifesign.report.render.terminal import _Page
from lifesign.report.render.wrapping import spans


def lines(text: str, room: int) -> list[str]:
    return [text[start:end] for start, end in spans(text, room)]


@pytest.mark.parametrize(
    ("text", "room", "expected"),
    [
        ("only 1.21 GiB free", 12, ["only", "1.21 GiB", "free"]),
        ("at most 1800 s here", 13, ["at most", "1800 s here"]),
        ("at most 1800 ships", 13, ["at most 1800", "ships"]),  # the negative: no unit
        ("4 个序列要 2.00 GiB，只剩 1.21 GiB：按", 30, ["4 个序列要 2.00 GiB，只剩", "1.21 GiB：按"]),
        ("引擎只活了 28 秒。", 13, ["引擎只活了", "28 秒。"]),
        ("引擎只活了28秒。", 12, ["引擎只活了", "28秒。"]),
        ("份额 50 %，再", 8, ["份额", "50 %，再"]),
        ("这里没有空格所以会折行", 10, ["这里没有空", "格所以会折", "行"]),
        ("一二三四。五", 8, ["一二三", "四。五"]),  # no full stop at the start of a line
        ("一二三（四）", 8, ["一二三", "（四）"]),
        ("averylongwordwithoutblanks", 10, ["averylongw", "ordwithout", "blanks"]),
        ("1800 s", 4, ["1800", "s"]),  # no room for both
        ("", 10, []),
    ],
)
def test_where_lines_end(text: str, room: int, expected: list[str]) -> None:
    assert lines(text, room) == expected


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_and_everything_fits(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        text = "".join(draw.choices(["显存", "GiB", "1.21", " ", " ", "，", "（", "worker", "。", "秒"], k=40)).strip()
        room = draw.randint(8, 40)
        made = lines(text, room)
        assert re.sub(" ", "", "".join(made)) == re.sub(" ", "", text)
        assert all(0 < cell_len(line) <= room for line in made), (text, room, made)


def test_a_block_of_a_page_keeps_numbers_with_their_units() -> None:
    page = _Page(60, False)
    page.block("", "申请 2.00 GiB，只剩 1.21 GiB；上限 1800 秒；at most 1800 s; 50 % of 23.65 GiB. " * 6, 4)
    made = page.text().splitlines()
    assert len(made) > 5
    assert not [line for line in made if re.match(r"\s*(GiB|s\b|秒|%)", line)]
