"""Scores diagnoses against a labelled folder (`labels.jsonl`; format: corpus/public/README.md).

    python tools/eval.py corpus/public [corpus/lab ...] [--misses]

Prints the five figures of the scoring section and, with --misses, one line per miss. Exits 1 when a figure is below the
target given by --require (e.g. `--require cause=0.97,line=0.95,false=0`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from msgspec.structs import replace

from lifesign.facts.lives import build
from lifesign.logs.reader import read
from lifesign.remedies.command import corrected_command
from lifesign.report.diagnose import diagnose_paths
from lifesign.report.model import Report

SILENT = ("not-a-crash", "insufficient-log")


def score(folder: Path) -> tuple[dict[str, float], list[str]]:
    """Figures (shares from 0 to 1, counts for `false`) and one line per miss."""
    misses: list[str] = []
    counts: dict[str, list[bool]] = defaultdict(list)
    per_cause: dict[str, list[bool]] = defaultdict(list)
    for line in (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines():
        label = json.loads(line)
        path = str(folder / label["file"])
        _score_one(label, diagnose_paths([path]), own_lines(path), counts, per_cause, misses)
    figures = {name: sum(values) / len(values) for name, values in counts.items() if values}
    figures["macro"] = sum(sum(v) / len(v) for v in per_cause.values()) / max(1, len(per_cause))
    figures["false"] = float(sum(counts["false"]))
    figures["false_of"] = float(len(counts["false"]))
    figures["wrong_established"] = float(sum(counts["wrong_established"]))
    return figures, misses


def own_lines(path: str) -> list[list[str]]:
    """The reader's own commands as the log shows them, in words: what a remedy repeats of them is no advice."""
    reading = read([path])
    lines = []
    for life in build(reading.statements, complete=reading.complete):
        made = corrected_command(replace(life, config=life.user_args), [])
        if made.basis in ("command", "config"):
            lines.append(made.text.split())
    return lines


def added(command: str, lines: list[list[str]]) -> str:
    """`command` without the words that stand in the reader's own line, where it shows that line; an option with another
    value is an addition. What is left out leaves a mark, so that no phrase arises across it."""
    words = command.split()
    for own in lines:
        start = " ".join(_start(own))
        if not start or start not in command:
            continue
        pairs = set(zip(own, [_value(own, index) for index in range(len(own))], strict=True))
        words = [
            "|" if (word, _value(words, index)) in pairs or (word in own and not word.startswith("-")) else word
            for index, word in enumerate(words)
        ]
    return " ".join(words)


def _start(words: list[str]) -> list[str]:
    """The words that begin a line: program and model, without variables."""
    program = next((index for index, word in enumerate(words) if "=" not in word), len(words))
    rest = words[program:]
    first = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:first]


def _value(words: list[str], index: int) -> str:
    """The value of the option at `index`; empty when none follows, and for words that are no options."""
    following = words[index + 1] if index + 1 < len(words) else ""
    return following if words[index].startswith("-") and following[:1] not in ("-", "#", "|") else ""


def _score_one(  # type: ignore[type-arg]
    label: dict, report: Report, own: list[list[str]], counts: dict, per_cause: dict, misses: list[str]
) -> None:
    verdict = report.verdict
    name = label["file"]
    broken = [note for note in report.coverage.notes if "could not be judged" in note]
    counts["broken"].append(bool(broken))
    misses.extend(f"BROKEN  {name}: {note}" for note in broken)
    good = verdict.cause == label["cause"] or verdict.cause in label.get("accept", [])
    counts["cause"].append(good)
    per_cause[label["cause"]].append(good)
    got = f"{verdict.cause}/{verdict.subtype} ({verdict.certainty})"
    root = next((line for line in verdict.evidence if line.role == "root"), None)
    if not good:
        misses.append(
            f"CAUSE   {name}: expected {label['cause']}/{label['subtype']}, got {got} line {root.line if root else '-'} want {label['decisive_lines'][:4]}"
        )
    counts["wrong_established"].append(not good and verdict.certainty == "established" and verdict.cause not in SILENT)
    accept_subtypes = label.get("accept_subtype", [])
    if isinstance(accept_subtypes, dict):
        accept_subtypes = list(accept_subtypes.values())
    sub = good and (
        verdict.subtype == label["subtype"]
        or verdict.subtype in accept_subtypes
        or (verdict.cause != label["cause"] and not accept_subtypes)
    )
    counts["subtype_all"].append(sub)
    if good:
        counts["subtype"].append(sub)
        if not sub:
            misses.append(f"SUBTYPE {name}: expected {label['subtype']} {accept_subtypes or ''}, got {got}")
    wanted = label["decisive_lines"]
    if label["cause"] in SILENT:
        false = verdict.cause not in (*SILENT, *label.get("accept", [])) or (
            root is not None and root.line not in label.get("accept_lines", [])
        )
        if verdict.cause in SILENT and verdict.cause != label["cause"] and verdict.cause not in label.get("accept", []):
            false = True
        counts["false"].append(false)
        if false and good:
            misses.append(f"FALSE   {name}: cites line {root.line if root else '-'} as root")
    else:
        lines = set(wanted) | set(label.get("repeat_lines", []))
        hit = root is not None and root.line in lines
        counts["line"].append(hit)
        counts["line_near"].append(root is not None and any(abs(root.line - line) <= 2 for line in lines))
        if not hit and good:
            misses.append(
                f"LINE    {name}: cites {root.line if root else '-'}, decisive {sorted(lines)[:8]}: {root.text[:80] if root else ''}"
            )
    _score_remedies(label, report, own, counts, misses)


def _score_remedies(  # type: ignore[type-arg]
    label: dict, report: Report, own: list[list[str]], counts: dict, misses: list[str]
) -> None:
    verdict = report.verdict
    words = [
        *(f"{a.title} {a.knob} {a.value} {added(a.command, own)} {a.why} {a.cost} {a.note}" for a in verdict.remedies),
    ]
    text = " ".join(words).lower()
    must = label["fix_must_mention"]
    if must:
        ok = any(word in text for word in must)
        counts["must"].append(ok)
        if not ok:
            misses.append(f"MUST    {label['file']}: none of {must[:6]}")
    # A whole word: "rma" is no part of "normal".
    bad = [
        word
        for word in label["fix_must_not_mention"]
        if re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text)
    ]
    counts["must_not"].append(not bad)
    if bad:
        misses.append(f"MUSTNOT {label['file']}: {bad}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--require", default="")
    args = parser.parse_args()
    bad = False
    for folder in args.folders:
        figures, misses = score(folder)
        print(f"== {folder}")
        for name in ("cause", "macro", "subtype", "subtype_all", "line", "line_near", "must", "must_not"):
            if name in figures:
                print(f"{name:12s} {figures[name]:7.1%}")
        print(
            f"false claims {figures['false']:.0f} of {figures['false_of']:.0f}   wrong 'established' {figures['wrong_established']:.0f}"
        )
        if args.misses:
            print("\n".join(sorted(misses)))
        for want in filter(None, args.require.split(",")):
            name, _, value = want.partition("=")
            low = name not in ("false", "wrong_established")
            if (figures[name] < float(value)) if low else (figures[name] > float(value)):
                print(f"below target: {name} is {figures[name]:.3f}, required {value}")
                bad = True
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
