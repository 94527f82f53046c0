"""What one gets without a diagnosis tool: three simple readers of a log, scored like `tools/eval.py` scores lifesign.

    python bench/baselines.py corpus/public [corpus/lab ...] [--json]

- `keyword-tree`: the seven classical questions in their usual order (memory? illegal access? NCCL? graph? loading? shape?
  time-out?); the first whose words stand anywhere in the file wins, with the first line that holds them.
- `last-traceback`: the last exception line of the file, put into a class by the same words. What people paste.
- `first-error`: the first line with ERROR, likewise. What a hurried reader takes.

They share one table of words, so that only the way of choosing the line differs. Each may say "no crash" when it finds
nothing. Labels: corpus/public/README.md. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

SILENT = ("not-a-crash", "insufficient-log")
NEAR = 2
LINE_CAP = 4000
EXCEPTION = re.compile(r"(?:^|[\]\s|])([A-Za-z_][\w.]{0,80}(?:Error|Exception|Interrupt))(?::|$)")

# In the order of the decision tree that practitioners publish; lower case.
WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "device-oom",
        (
            "out of memory",
            "outofmemoryerror",
            "free memory on device",
            "no available memory for the cache blocks",
            "kv cache is needed",
        ),
    ),
    ("illegal-memory-access", ("illegal memory access", "illegaladdress", "memory access fault", "misaligned address")),
    ("device-assert", ("device-side assert", "index out of bounds")),
    (
        "collective-comm",
        ("nccl error", "ncclunhandled", "ncclsystemerror", "distbackenderror", "custom_all_reduce", "hccl", "gloo"),
    ),
    ("graph-capture", ("stream is capturing", "during capture", "workspace is locked", "capture_model")),
    (
        "model-load",
        (
            "can't load",
            "localentrynotfounderror",
            "gatedrepoerror",
            "safetensor",
            "are not supported for now",
            "no such file or directory",
            "tokenizer",
        ),
    ),
    ("model-quant-incompat", ("is invalid for input of size", "min_thread_k", "weight_scale", "cutlass_scaled_mm")),
    ("timeout-hang", ("timed out", "timeouterror")),
    ("silent-death", ("died unexpectedly", "segfault", "exited unexpectedly")),
    ("host-resource", ("address already in use", "too many open files", "/dev/shm")),
)


class Answer(NamedTuple):
    """What a reader says: a cause, and the 1-based line that it cites (None: none)."""

    cause: str
    line: int | None


def classify(text: str) -> str | None:
    """The first class whose words stand in `text`."""
    low = text[:LINE_CAP].lower()
    return next((cause for cause, words in WORDS if any(word in low for word in words)), None)


def keyword_tree(lines: list[str]) -> Answer:
    """The first class of the tree with a hit anywhere."""
    low = [line[:LINE_CAP].lower() for line in lines]
    for cause, words in WORDS:
        for number, line in enumerate(low, 1):
            if any(word in line for word in words):
                return Answer(cause, number)
    return Answer("not-a-crash", None)


def last_traceback(lines: list[str]) -> Answer:
    """The last line that looks like the end of a traceback."""
    for number in range(len(lines), 0, -1):
        if EXCEPTION.search(lines[number - 1][:400]):
            return Answer(classify(lines[number - 1]) or "unclassified", number)
    return Answer("not-a-crash", None)


def first_error(lines: list[str]) -> Answer:
    """The first line with ERROR (or a traceback's first exception line, where nothing is logged as ERROR)."""
    for number, line in enumerate(lines, 1):
        if "ERROR" in line[:400] or EXCEPTION.search(line[:400]):
            return Answer(classify(line) or "unclassified", number)
    return Answer("not-a-crash", None)


READERS: dict[str, Callable[[list[str]], Answer]] = {
    "keyword-tree": keyword_tree,
    "last-traceback": last_traceback,
    "first-error": first_error,
}


def labelled(folder: Path) -> Iterator[tuple[dict[str, object], list[str]]]:
    """(label, lines) of each log of a labelled folder."""
    for row in (folder / "labels.jsonl").read_text(encoding="utf-8").splitlines():
        if row.strip():
            label = json.loads(row)
            text = (folder / label["file"]).read_bytes().decode("utf-8", "replace")
            yield label, text.split("\n")


def score(folder: Path, reader: Callable[[list[str]], Answer]) -> dict[str, float]:
    """Shares of right causes (plain and macro), of exact and near decisive lines, and of false claims."""
    right: list[bool] = []
    exact: list[bool] = []
    near: list[bool] = []
    claims: list[bool] = []
    by_cause: dict[str, list[bool]] = defaultdict(list)
    for label, lines in labelled(folder):
        answer = reader(lines)
        good = answer.cause == label["cause"] or answer.cause in _strings(label.get("accept"))
        right.append(good)
        by_cause[str(label["cause"])].append(good)
        wanted = _numbers(label.get("decisive_lines"))
        if wanted:
            exact.append(answer.line in (*wanted, *_numbers(label.get("repeat_lines"))))
            near.append(
                exact[-1] or any(answer.line is not None and abs(answer.line - line) <= NEAR for line in wanted)
            )
        if label["cause"] in SILENT:
            claims.append(answer.cause not in (*SILENT, *_strings(label.get("accept"))))
    macro = [sum(values) / len(values) for values in by_cause.values()]
    return {
        "files": len(right),
        "cause": _share(right),
        "macro": sum(macro) / max(1, len(macro)),
        "line": _share(exact),
        "line_near": _share(near),
        "false_claims": _share(claims),
    }


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _numbers(value: object) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def _share(values: list[bool]) -> float:
    return sum(values) / max(1, len(values))


def main(argv: list[str]) -> int:
    """Print a line a reader and folder."""
    parser = argparse.ArgumentParser(description="Score simple readers of logs against labelled folders.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    missing = [str(folder) for folder in args.folders if not (folder / "labels.jsonl").exists()]
    if missing:
        print(f"no labels.jsonl in {', '.join(missing)}: name a labelled folder such as corpus/public", file=sys.stderr)
        return 2
    rows = [(str(folder), name, score(folder, reader)) for folder in args.folders for name, reader in READERS.items()]
    if args.json:
        print(json.dumps([{"folder": folder, "reader": name, **figures} for folder, name, figures in rows], indent=1))
        return 0
    print(f"{'folder':<24} {'reader':<16} {'files':>5} {'cause':>7} {'macro':>7} {'line':>7} {'near':>7} {'false':>7}")
    for folder, name, f in rows:
        shares = (f["cause"], f["macro"], f["line"], f["line_near"], f["false_claims"])
        print(f"{folder:<24} {name:<16} {f['files']:>5.0f} " + " ".join(f"{100 * share:>6.1f}%" for share in shares))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
