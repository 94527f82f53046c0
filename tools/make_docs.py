"""Regenerates everything in the project that is derived from code: docs/, the report schema. `--check` fails when stale.

python tools/make_docs.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

from lifesign.report.model import SCHEMA, Report

ROOT = Path(__file__).resolve().parent.parent


def report_schema() -> str:
    """The JSON schema of `lifesign.report/1`, from the structs."""
    schema = msgspec.json.schema(Report)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = SCHEMA
    schema["title"] = "lifesign report"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def outputs() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    return {ROOT / "src" / "lifesign" / "report" / "schema.json": report_schema()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = [path for path, text in outputs().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if args.check:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)} (run `make docs`)")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outputs()[path], encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
