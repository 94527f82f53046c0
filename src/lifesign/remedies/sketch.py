"""Sketches of a start (`vllm serve MODEL ... --x   # yours, without --y`) with the reader's whole line in their place.

Where the log shows no line, or one that can't be put behind another program (a container, a script), the sketch stays one.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lifesign.remedies.command import Setting, own_line

if TYPE_CHECKING:
    from lifesign.facts.model import Life
    from lifesign.remedies.catalog import Catalog

_SKETCH = re.compile(r"vllm serve MODEL \.\.\.(?P<more>[^#|;&]*)(?P<comment> # .*)?$", re.DOTALL)
_WITHOUT = re.compile(r" # yours, without (--[\w\-]+)(?: and (--[\w\-]+))?$")
# The placeholder as a word of its own: not in VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, MODEL_DIR or ORG/MODEL-FP8.
_PLACEHOLDER = re.compile(r"(?<![\w/])MODEL(?![\w-])")
_REPOSITORY = re.compile(r"(?<![\w/])ORG/MODEL(?![\w-])")
_HUB_NAME = re.compile(r"\w[\w.\-]{0,95}/\w[\w.\-]{0,95}")
"""What can only be a repository's name: neither an absolute path nor one that begins with a dot or a tilde."""


def filled(command: str, life: Life, catalog: Catalog | None = None) -> str:
    """`command` with what the log knows of the reader's own: the whole line in place of a sketch, else the model's name."""
    whole = _whole(command, life, catalog)
    if whole is not None:
        return whole
    if not life.model:
        return command
    model = shlex.quote(life.model)
    if _HUB_NAME.fullmatch(life.model):
        command = _REPOSITORY.sub(lambda match: model, command)
    return _PLACEHOLDER.sub(lambda match: model, command)


def _whole(command: str, life: Life, catalog: Catalog | None) -> str | None:
    match = _SKETCH.search(command)
    if match is None:
        return None
    comment = match["comment"] or ""
    without = _WITHOUT.fullmatch(comment)
    dropped = tuple(name for name in without.groups() if name) if without else ()
    # Only what the user set: the engine's own config line would add every default.
    line = own_line(replace(life, config=life.user_args), _settings(match["more"]), dropped, catalog)
    if line is None:
        return None
    variables, rest = line
    before = command[: match.start()]
    return f"{variables}{before}{rest}{'  ' + comment if comment else ''}"


def _settings(text: str) -> list[Setting]:
    """`--x --y value` as settings."""
    found: list[Setting] = []
    for word in shlex.split(text):
        if word.startswith("-"):
            found.append((word, None))
        elif found:
            found[-1] = (found[-1][0], word)
    return found
