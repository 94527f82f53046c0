#!/usr/bin/env python3
"""Writes the knob catalog: which environment variable, option and JSON key each vLLM release knows.

    python tools/gen_catalog.py build            all releases from scratch (about 8 minutes, 1.5 GB in a temporary folder)
    python tools/gen_catalog.py add 0.34.0       one more release (15 s): append it to RELEASES in catalog_sources.py first
    python tools/gen_catalog.py check            build again and compare with the shipped file, byte for byte
    python tools/gen_catalog.py truth PYTHON     compare the catalog with the parser of the vLLM that PYTHON imports

`--sources DIR` keeps (and reuses) the fetched source trees. The output is src/lifesign/remedies/data/catalog.json: one
name a line, sorted, coded by release intervals, so that a new release is a readable diff and nothing else.

The generator stops, and writes nothing, when it meets a statement that it can't follow, when a release's counts leave
the band of its neighbour, when a sentinel is missing, or when the written file doesn't decode to what was extracted.
None of these would notice a new way of pairing names; `truth` does, so run it for each new release.

Standard library only; developers run it, users never do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from catalog_ast import UNKNOWN
from catalog_extract import Release, extract
from catalog_sources import RELEASES, FetchError, fetch

OUTPUT = Path(__file__).resolve().parent.parent / "src" / "lifesign" / "remedies" / "data" / "catalog.json"
FORMAT = 1
SENTINEL_OPTIONS = ("--max-num-seqs", "--max-model-len", "--gpu-memory-utilization", "--enforce-eager", "--port")
SENTINEL_ENV = ("VLLM_LOGGING_LEVEL", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_USE_DEEP_GEMM")
BAND = 0.15
"""How far a release's counts may lie from those of the release before."""
MAX_DEFAULT_CHARS = 60
TRUTH_TIMEOUT_S = 300

Record = dict[str, Any]


class CatalogError(Exception):
    """The catalog can't be written; the text says why and what to do."""


# -- one release -> record ---------------------------------------------------------------------------------------------


def record(release: Release) -> Record:
    """The part of an extracted release that is kept, in plain JSON values."""
    if release.unhandled:
        listed = "\n  ".join(release.unhandled[:20])
        raise CatalogError(
            f"vllm {release.version}: statements that catalog_extract.py can't follow; teach it these patterns:\n  {listed}"
        )
    options: dict[str, Record] = {}
    pairs = False
    for option in release.options:
        long = [name for name in option.names if name.startswith("--")]
        canonical = long[0] if long else option.names[0]
        entry: Record = {"type": option.type}
        if option.json:
            entry["json"] = option.json
        if option.deprecated:
            entry["deprecated"] = True
        _keep_default(entry, option.default)
        aliases = [name for name in option.names if name != canonical]
        if aliases:
            entry["aliases"] = aliases
        options[canonical] = entry
        pairs = pairs or any(not name.startswith("--no-") for name in option.negative)
    env: dict[str, Record] = {}
    for name, default in release.env.items():
        env[name] = {"unread": True} if name in release.unread else {}
        _keep_default(env[name], default)
    return {
        "env": env,
        "options": options,
        "json": {name: dict(keys) for name, keys in release.json_keys.items()},
        "args": sorted(release.engine_args),
        "pairs": pairs,
    }


def _keep_default(entry: Record, default: Any) -> None:
    if default is UNKNOWN or not isinstance(default, (type(None), bool, int, float, str, list, dict)):
        return
    text = json.dumps(default, default=str)
    if len(text) <= MAX_DEFAULT_CHARS and default == default:
        entry["default"] = json.loads(text)


def verify(version: str, new: Record, previous: Record | None) -> None:
    """Raise CatalogError when a record looks wrong: sentinels missing, counts out of band."""
    missing = [name for name in SENTINEL_OPTIONS if name not in new["options"]]
    missing += [name for name in SENTINEL_ENV if name not in new["env"]]
    if missing:
        raise CatalogError(f"vllm {version}: {', '.join(missing)} not found; the extractor lost its way")
    for part in ("env", "options", "args"):
        before, now = len(previous[part]) if previous else 0, len(new[part])
        if before and abs(now - before) > BAND * before:
            raise CatalogError(
                f"vllm {version}: {now} {part} after {before} in the release before; compare with the real parser "
                f"(gen_catalog.py truth) and widen BAND if it is right"
            )


# -- records <-> intervals ---------------------------------------------------------------------------------------------


def ranges(present: list[bool], releases: list[str]) -> str:
    """Presence by release as text: `*`, `0.9.2-`, `-0.17.1`, `0.9.0-0.12.0,0.16.0-`."""
    parts: list[str] = []
    start: int | None = None
    for index, here in enumerate([*present, False]):
        if here and start is None:
            start = index
        elif not here and start is not None:
            low = "" if start == 0 else releases[start]
            high = "" if index == len(present) else releases[index - 1]
            parts.append("*" if not low and not high else f"{low}-{high}")
            start = None
    return ",".join(parts)


def present(text: str, releases: list[str]) -> list[bool]:
    """The inverse of `ranges`."""
    found = [False] * len(releases)
    for part in text.split(",") if text else []:
        low, _, high = ("", "", "") if part == "*" else part.partition("-")
        first = releases.index(low) if low else 0
        last = releases.index(high) if high else len(releases) - 1
        found[first : last + 1] = [True] * (last + 1 - first)
    return found


_ABSENT = object()


def history(values: list[Any], releases: list[str]) -> Any:
    """A value by release: the value itself when it never changes, else `{"": first, "0.20.0": next}`; `_ABSENT` entries
    (the name or the value doesn't exist there) carry no information unless a value returns, which `null` marks."""
    steps: dict[str, Any] = {}
    last: Any = _ABSENT
    for index, value in enumerate(values):
        if value is _ABSENT or (last is not _ABSENT and value == last and type(value) is type(last)):
            continue
        steps["" if last is _ABSENT else releases[index]] = value
        last = value
    return steps


def fold(records: dict[str, Record]) -> Record:
    """All releases as one structure of intervals."""
    releases = [release for release in RELEASES if release in records]
    columns = [records[release] for release in releases]
    data: Record = {"format": FORMAT, "releases": releases}
    data["pairs"] = ranges([column["pairs"] for column in columns], releases)
    for part in ("env", "options"):
        names = sorted({name for column in columns for name in column[part]})
        data[part] = {name: _fold_entry([column[part].get(name) for column in columns], releases) for name in names}
    data["json"] = _fold_json(columns, releases)
    arguments = sorted({name for column in columns for name in column["args"]})
    data["args"] = {name: ranges([name in column["args"] for column in columns], releases) for name in arguments}
    return data


def _fold_entry(entries: list[Record | None], releases: list[str]) -> Record:
    folded: Record = {"in": ranges([entry is not None for entry in entries], releases)}
    for flag in ("unread", "deprecated"):
        text = ranges([bool(entry and entry.get(flag)) for entry in entries], releases)
        if text:
            folded[flag] = text
    for key in ("type", "json", "aliases"):
        values = [_ABSENT if entry is None else entry.get(key) for entry in entries]
        steps = history(values, releases)
        if any(value is not None for value in steps.values()):
            folded[key] = steps[""] if len(steps) == 1 else steps
    known = ranges([entry is not None and "default" in entry for entry in entries], releases)
    if known:
        values = [entry["default"] if entry is not None and "default" in entry else _ABSENT for entry in entries]
        folded["default"] = history(values, releases)
        if known != folded["in"]:
            folded["default_in"] = known
    return folded


def _fold_json(columns: list[Record], releases: list[str]) -> Record:
    folded: Record = {}
    for name in sorted({name for column in columns for name in column["json"]}):
        classes = [column["json"].get(name) for column in columns]
        keys: Record = {}
        for key in sorted({key for keys_of in classes if keys_of for key in keys_of}):
            spans = {}
            for inner in sorted({keys_of[key] for keys_of in classes if keys_of and key in keys_of}):
                here = [bool(keys_of) and keys_of.get(key) == inner for keys_of in classes]
                spans[inner] = ranges(here, releases)
            keys[key] = spans[""] if list(spans) == [""] else spans
        folded[name] = {"in": ranges([keys_of is not None for keys_of in classes], releases), "keys": keys}
    return folded


def unfold(data: Record) -> dict[str, Record]:
    """The records that a folded catalog stands for: the inverse of `fold`."""
    releases = data["releases"]
    pairs = present(data["pairs"], releases)
    records: dict[str, Record] = {
        release: {"env": {}, "options": {}, "json": {}, "args": [], "pairs": pairs[index]}
        for index, release in enumerate(releases)
    }
    for part in ("env", "options"):
        for name, entry in data[part].items():
            for index, made in enumerate(_unfold_entry(entry, releases)):
                if made is not None:
                    records[releases[index]][part][name] = made
    for name, group in data["json"].items():
        here = present(group["in"], releases)
        for index, release in enumerate(releases):
            if here[index]:
                records[release]["json"][name] = {}
        for key, spans in group["keys"].items():
            for inner, text in ({"": spans} if isinstance(spans, str) else spans).items():
                for index, inside in enumerate(present(text, releases)):
                    if inside:
                        records[releases[index]]["json"][name][key] = inner
    for name, text in data["args"].items():
        for index, inside in enumerate(present(text, releases)):
            if inside:
                records[releases[index]]["args"].append(name)
    return records


def _unfold_entry(entry: Record, releases: list[str]) -> list[Record | None]:
    here = present(entry["in"], releases)
    flags = {flag: present(entry.get(flag, ""), releases) for flag in ("unread", "deprecated")}
    known = present(entry.get("default_in", entry["in"]), releases) if "default" in entry else [False] * len(releases)
    made: list[Record | None] = []
    for index, release in enumerate(releases):
        if not here[index]:
            made.append(None)
            continue
        one: Record = {flag: True for flag, inside in flags.items() if inside[index]}
        for key in ("type", "json", "aliases"):
            value = _at(entry.get(key), release, releases)
            if value is not None:
                one[key] = value
        if known[index]:
            one["default"] = _at(entry["default"], release, releases)
        made.append(one)
    return made


def _at(steps: Any, release: str, releases: list[str]) -> Any:
    if not isinstance(steps, dict):
        return steps
    value = steps.get("")
    for since, later in steps.items():
        if since and releases.index(since) <= releases.index(release):
            value = later
    return value


def render(data: Record) -> str:
    """The catalog as text: valid JSON, one name a line."""
    lines = ["{", f'"format": {data["format"]},', f'"releases": {json.dumps(data["releases"])},']
    lines.append(f'"pairs": {json.dumps(data["pairs"])},')
    for part in ("env", "options", "args"):
        lines.append(f'"{part}": {{')
        lines += _rows(data[part])
        lines.append("},")
    lines.append('"json": {')
    groups = []
    for name, group in data["json"].items():
        head = f'{json.dumps(name)}: {{"in": {json.dumps(group["in"])}, "keys": {{'
        groups.append("\n".join([head, *_rows(group["keys"]), "}}"]))
    lines.append(",\n".join(groups))
    return "\n".join([*lines, "}", "}", ""])


def _rows(entries: Record) -> list[str]:
    rows = [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries.items()]
    return [f"{row}," for row in rows[:-1]] + rows[-1:]


# -- commands ----------------------------------------------------------------------------------------------------------


def read_release(version: str, sources: Path) -> Record:
    """Fetch (unless it is there) and extract one release."""
    began = time.monotonic()
    target = sources / version
    package = target / "vllm" if (target / "vllm" / "envs.py").is_file() else fetch(version, target)
    made = record(extract(version, package))
    counts = f"{len(made['env'])} variables, {len(made['options'])} options, {len(made['json'])} JSON groups"
    print(f"{version}: {counts} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)
    return made


def assemble(records: dict[str, Record]) -> str:
    """Verify all records, fold them, and prove that the file decodes to them again."""
    previous: Record | None = None
    for release in RELEASES:
        if release not in records:
            raise CatalogError(f"vllm {release} is missing: run `gen_catalog.py add {release}`")
        verify(release, records[release], previous)
        previous = records[release]
    text = render(fold(records))
    again = unfold(json.loads(text))
    for release, made in records.items():
        if json.loads(json.dumps(made)) != again[release]:
            parts = [part for part in made if json.loads(json.dumps(made[part])) != again[release][part]]
            raise CatalogError(f"vllm {release}: the written file decodes to something else in {parts}")
    return text


def build(sources: Path) -> str:
    """The whole catalog from the sources of every release."""
    return assemble({release: read_release(release, sources) for release in RELEASES})


def add(version: str, sources: Path) -> str:
    """The shipped catalog plus one release (or the same release read again)."""
    if version not in RELEASES:
        raise CatalogError(f"{version} isn't in RELEASES of tools/catalog_sources.py: append it there first")
    records = unfold(json.loads(OUTPUT.read_text(encoding="utf-8")))
    records[version] = read_release(version, sources)
    return assemble(records)


def truth(python: str, text: str, version: str | None = None) -> list[str]:
    """Differences between the catalog and the vLLM that `python` imports; empty when every set is equal.

    The release is the one that vLLM reports, unless `version` names another (a source tree on PYTHONPATH).
    """
    script = Path(__file__).resolve().parent / "catalog_truth.py"
    done = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=TRUTH_TIMEOUT_S, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise CatalogError(f"{python} can't build vLLM's parser: {done.stderr.strip()[-400:]}")
    real = json.loads(lines[-1])
    release = version or real["version"].partition("+")[0]
    records = unfold(json.loads(text))
    if release not in records:
        raise CatalogError(f"vllm {release} isn't in the catalog: run `gen_catalog.py add {release}`")
    return compare(records[release], real)


def option_strings(made: Record) -> dict[str, bool]:
    """Every option string that a record's parser accepts, and whether it takes a value."""
    found: dict[str, bool] = {}
    for canonical, entry in made["options"].items():
        names = [canonical, *entry.get("aliases", [])]
        for name in names:
            found[name] = entry["type"] not in ("flag", "bool")
            if entry["type"] == "bool" and name.startswith("--"):
                found[f"--no-{name[2:]}"] = False
                for prefix, inverse in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
                    if made["pairs"] and name.startswith(prefix):
                        found[inverse + name.removeprefix(prefix)] = False
    return found


def compare(made: Record, real: Record) -> list[str]:
    """Every difference between a record and the answer of catalog_truth.py, as text."""
    differences: list[str] = []
    mine = option_strings(made)
    pairs = [
        ("option", set(mine), set(real["options"])),
        ("variable", set(made["env"]), set(real["env"])),
        ("argument", set(made["args"]), set(real["engine_args"])),
    ]
    for name, keys in made["json"].items():
        if name in real["configs"]:
            pairs.append((f"key of {name}", set(keys), set(real["configs"][name])))
    for kind, ours, theirs in pairs:
        differences += [f"{kind} {name}: only in the catalog" for name in sorted(ours - theirs)]
        differences += [f"{kind} {name}: missing in the catalog" for name in sorted(theirs - ours)]
    for name, takes_value in mine.items():
        known = real["options"].get(name)
        if known is not None and known["takes_value"] != takes_value:
            differences.append(f"option {name}: takes a value: {known['takes_value']}")
    for name, entry in made["env"].items():
        expected = real["env_defaults"].get(name)
        opaque = isinstance(expected, str) and expected.startswith("<")
        if "default" in entry and not opaque and entry["default"] != expected:
            differences.append(f"variable {name}: default {entry['default']!r}, really {expected!r}")
    return differences


def main() -> int:
    """Run one command; 0 done or equal, 1 different, 2 can't be done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("build", "add", "check", "truth"))
    parser.add_argument("argument", nargs="?", help="the release to add, or the Python interpreter of a vLLM")
    parser.add_argument("--sources", type=Path, help="keep source trees here")
    parser.add_argument("--version", help="truth: the release of the source tree on PYTHONPATH")
    options = parser.parse_args()
    try:
        if options.command == "truth":
            shipped = OUTPUT.read_text(encoding="utf-8")
            differences = truth(options.argument or sys.executable, shipped, options.version)
            print("\n".join(differences) or "equal: options, variables, arguments, JSON keys, defaults")
            return 1 if differences else 0
        with tempfile.TemporaryDirectory(prefix="vllm-sources-") as folder:
            sources = options.sources or Path(folder)
            text = add(options.argument or "", sources) if options.command == "add" else build(sources)
        if options.command == "check":
            same = OUTPUT.read_text(encoding="utf-8") == text
            print("equal, byte for byte" if same else "different: run `gen_catalog.py build` and look at the diff")
            return 0 if same else 1
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(text, encoding="utf-8")
        print(f"{OUTPUT.name}: {len(text.encode()):,} bytes")
    except (CatalogError, FetchError, subprocess.TimeoutExpired) as error:
        print(f"gen_catalog: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
