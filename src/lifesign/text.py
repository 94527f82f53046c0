"""Bilingual text. Everything that a reader sees is written once as `T(english, chinese)`; the report picks one.

Chinese is written for Chinese readers, not translated word for word.
"""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple

Lang = Literal["en", "zh"]


class T(NamedTuple):
    """One text in two languages. `{name}` fields are filled by `fill`."""

    en: str
    zh: str

    def pick(self, lang: Lang) -> str:
        """The text in `lang`."""
        return self.zh if lang == "zh" else self.en

    def fill(self, **values: object) -> T:
        """A copy with `{name}` replaced in both languages. Values are inserted as they are: braces in a value are safe."""
        en, zh = self.en, self.zh
        for name, value in values.items():
            en = en.replace("{" + name + "}", str(value))
            zh = zh.replace("{" + name + "}", str(value))
        return T(en, zh)


def default_lang() -> Lang:
    """`zh` when the locale (LC_ALL, LC_MESSAGES, LANG, in the order of POSIX) is Chinese, else `en`."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


_PLAIN_WORD = re.compile(r"[a-z]+(?=$|[\s,.:;!?'’])")
# Names that are written small wherever they stand.
_SMALL_NAMES = frozenset(("docker", "kubectl", "lifesign", "nvcc", "ptxas", "systemd", "torch", "uvicorn"))


def capitalized(text: str) -> str:
    """`text` with a large first letter, unless its first word is a name (vLLM, nvcc, torch.compile, --flag) and must stay."""
    first = _PLAIN_WORD.match(text)
    return text if first is None or first[0] in _SMALL_NAMES else text[0].upper() + text[1:]


def is_whole(text: str) -> bool:
    """Whether `int(text)` and `float(text)` work: 1 to 30 ASCII digits.

    `str.isdigit` also accepts "²", which int() refuses, and int() refuses more than 4,300 digits.
    """
    return 0 < len(text) <= 30 and text.isascii() and text.isdigit()
