"""The shape of a remedy: an intent (`fewer sequences at once`) and the forms that achieve it in each vLLM release.

A remedy is data. The report picks the first form that is valid in the reader's release, computes its value from the
facts of the log, and shows it with its reason and its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from lifesign.text import T

if TYPE_CHECKING:
    from lifesign.facts.model import Life

LESS, MORE = -1, 1
"""Where a value goes from what is set."""
Kind = Literal["flag", "env", "upgrade", "command", "check", "collect"]


class Form(msgspec.Struct, frozen=True):
    """One way to reach an intent.

    knob: a flag of `vllm serve` (`--max-num-seqs`) or an environment variable (`NCCL_P2P_DISABLE`).
    value: the value to set; `{value}` stands for the computed one; None for a bare flag.
    since, until: first and last vLLM release (inclusive) in which this form exists, is read and has this meaning;
        None leaves that side to the knob catalog alone.
    also: further knobs that only work together with this one, as (knob, value).
    """

    knob: str
    value: str | None = None
    since: str | None = None
    until: str | None = None
    also: tuple[tuple[str, str | None], ...] = ()


class Computed(msgspec.Struct, frozen=True):
    """A value that was computed from the log: the value, how (`256 x 151,936 x 4 bytes = ...`), and the lines it rests on.

    direction: -1 when it is meant to be less than what is set, 1 when more, 0 when neither.
    """

    value: str
    how: T
    lines: tuple[int, ...] = ()
    direction: int = 0


class Remedy(msgspec.Struct, frozen=True):
    """One piece of advice.

    slug: stable id of the intent.
    title: what the reader does, in a few words. why: one or two sentences. cost: what it costs, if anything.
    forms: for kinds `flag` and `env`; the first valid one is shown. Empty for the other kinds.
    command: for kinds `command`, `check` and `collect`: what to type, ready to paste.
    value: computes the form's `{value}` from the life; None result = say nothing about this remedy (never recommend a
        value equal to or worse than the current one).
    detail: explains in figures what the remedy gains here; chooses no value. None result = no explanation.
    unless: true when the remedy can't help or would harm in this life (e.g. eager mode is on already).
    source: where the fact comes from (issue, PR, doc).
    """

    slug: str
    kind: Kind
    title: T
    why: T
    forms: tuple[Form, ...] = ()
    command: str | None = None
    cost: T | None = None
    value: Callable[[Life], Computed | None] | None = None
    detail: Callable[[Life], Computed | None] | None = None
    unless: Callable[[Life], bool] | None = None
    source: str = ""
