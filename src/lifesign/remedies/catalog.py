"""The knob catalog: does this vLLM release know this option, variable or JSON key, and does anything read it?

The data (`data/catalog.json`) is generated from the sources of every stable release by tools/gen_catalog.py; what
sources can't say is in `overlay.py`. Loading is lazy and happens once: a run that names no knob never pays for it.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from lifesign.errors import LifesignError
from lifesign.remedies import versions
from lifesign.text import T

_DATA = Path(__file__).parent / "data" / "catalog.json"
Standing = Literal["exact", "development", "newer", "older", "unknown"]


class Basis(msgspec.Struct, frozen=True):
    """Which catalogued release answers for a version of a log.

    standing: `exact` (catalogued), `development` (a build between releases: the nearest lower one answers), `newer` or
    `older` than the catalog (its end answers, unverified), `unknown` (no version: the newest answers, unverified).
    """

    version: str
    release: str
    standing: Standing

    @property
    def verified(self) -> bool:
        """Whether the answer is a statement about this version (not about its neighbour at the catalog's end)."""
        return self.standing in ("exact", "development")


class Knob(msgspec.Struct, frozen=True):
    """One variable or option as a release has it.

    name: canonical. kind: `env` or `option`. type: `flag` (no value), `bool` (with negative form), `int`, `float`,
    `str`, `json`, with `?`, `+` or `*` appended for optional or several values; empty for variables. negative: the
    spelling asked for is the one that switches off.
    """

    name: str
    kind: Literal["env", "option"]
    type: str = ""
    negative: bool = False
    unread: bool = False
    deprecated: bool = False
    json: str = ""
    default: Any = None
    has_default: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether the option needs a value after it."""
        return self.type not in ("flag", "bool")


class Catalog:
    """All releases. Ask by the release that `basis` gives."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.releases: tuple[str, ...] = tuple(data["releases"])
        self._data = data
        self._index = {release: number for number, release in enumerate(self.releases)}

    @property
    def newest(self) -> str:
        """The newest catalogued release."""
        return self.releases[-1]

    def basis(self, version: str) -> Basis:
        """Which release answers for `version` (any text a log or a user gives)."""
        mine = versions.key(version) if version else None
        if mine is None:
            return Basis(version, self.newest, "unknown")
        public = version.strip().lstrip("v").partition("+")[0]
        if public in self._index:
            return Basis(version, public, "exact")
        first, last = versions.key(self.releases[0]), versions.key(self.newest)
        if first is not None and mine < first:
            return Basis(version, self.releases[0], "older")
        lower = versions.nearest_lower(version, self.releases) or self.releases[0]
        if last is not None and mine > last:
            return Basis(version, self.newest, "newer")
        same = versions.key(lower) == mine
        return Basis(version, lower, "exact" if same else "development")

    # -- intervals -----------------------------------------------------------------------------------------------------

    def inside(self, ranges: str, release: str) -> bool:
        """Whether `release` lies in coded ranges (`*`, `0.9.2-`, `-0.17.1`, several with commas)."""
        here = self._index[release]
        for part in ranges.split(",") if ranges else ():
            low, high = self._ends(part)
            if low <= here <= high:
                return True
        return False

    def _ends(self, part: str) -> tuple[int, int]:
        if part == "*":
            return 0, len(self.releases) - 1
        low, _, high = part.partition("-")
        return self._index[low] if low else 0, self._index[high] if high else len(self.releases) - 1

    def span(self, ranges: str) -> tuple[str, str]:
        """First and last release of coded ranges, spelled out; gaps between are ignored."""
        parts = [self._ends(part) for part in ranges.split(",")]
        return self.releases[parts[0][0]], self.releases[parts[-1][1]]

    def spelled(self, ranges: str) -> T:
        """Coded ranges for a reader: `0.9.2 and later`, `up to 0.17.1`, `0.9.0 to 0.12.0`."""
        texts: list[T] = []
        for part in ranges.split(","):
            low, _, high = ("", "", "") if part == "*" else part.partition("-")
            if not low and not high:
                low, high = self.releases[0], self.newest
            if not high:
                texts.append(T(f"{low} and later", f"{low} 起"))
            elif not low:
                texts.append(T(f"up to {high}", f"到 {high} 为止"))
            elif low == high:
                texts.append(T(f"{low} only", f"仅 {low}"))
            else:
                texts.append(T(f"{low} to {high}", f"{low} 到 {high}"))
        return T(", ".join(text.en for text in texts), "、".join(text.zh for text in texts))

    def _at(self, steps: Any, release: str) -> Any:
        if not isinstance(steps, dict):
            return steps
        here, value = self._index[release], steps.get("")
        for since, later in steps.items():
            if since and self._index[since] <= here:
                value = later
        return value

    # -- variables -----------------------------------------------------------------------------------------------------

    def env(self, name: str, release: str) -> Knob | None:
        """The vLLM variable `name` in `release`; None when that release doesn't know it."""
        entry = self._data["env"].get(name)
        if entry is None or not self.inside(entry["in"], release):
            return None
        return self._knob(name, "env", entry, release)

    def env_ranges(self, name: str) -> str:
        """The releases that know the variable, coded; empty when none does."""
        entry = self._data["env"].get(name)
        return str(entry["in"]) if entry is not None else ""

    def env_names(self, release: str) -> list[str]:
        """Every vLLM variable of `release`, sorted."""
        return [name for name, entry in self._data["env"].items() if self.inside(entry["in"], release)]

    # -- options -------------------------------------------------------------------------------------------------------

    def option(self, spelling: str, release: str) -> Knob | None:
        """The option that the parser of `release` has under exactly this spelling (aliases and negative forms included).

        As vLLM's parser does, underscores in a long name count as dashes; a dotted JSON key is cut off first.
        """
        name = normal(spelling)
        direct = self._option_entry(name, release)
        if direct is not None:
            return self._knob(name, "option", direct, release)
        for canonical in self._aliases.get(name, ()):
            entry = self._option_entry(canonical, release)
            if entry is not None and name in (self._at(entry.get("aliases"), release) or ()):
                return self._knob(canonical, "option", entry, release)
        for positive in self._positives(name, release):
            knob = self.option(positive, release)
            if knob is not None and knob.type == "bool" and not knob.negative:
                return Knob(
                    knob.name, "option", "bool", True, knob.unread, knob.deprecated, "", knob.default, knob.has_default
                )
        return None

    def _positives(self, name: str, release: str) -> list[str]:
        """Names whose negative form `name` could be: `--no-x` of `--x`; from 0.33.0 `--disable-x` of `--enable-x`."""
        found = ["--" + name[5:]] if name.startswith("--no-") else []
        if self.inside(self._data["pairs"], release):
            for prefix, inverse in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
                candidate = inverse + name[len(prefix) :]
                if name.startswith(prefix) and self._option_entry(candidate, release) is not None:
                    found.append(candidate)
        return found

    def _option_entry(self, name: str, release: str) -> dict[str, Any] | None:
        entry: dict[str, Any] | None = self._data["options"].get(name)
        return entry if entry is not None and self.inside(entry["in"], release) else None

    @cached_property
    def _aliases(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for canonical, entry in self._data["options"].items():
            aliases = entry.get("aliases")
            lists = aliases.values() if isinstance(aliases, dict) else [aliases]
            for name in {name for names in lists if names for name in names}:
                found.setdefault(name, []).append(canonical)
        return found

    def alias_elsewhere(self, name: str, release: str) -> str | None:
        """The option of `release` that other releases also call `name` (a short form, say); None when there is none."""
        for canonical in self._aliases.get(name, ()):
            if self._option_entry(canonical, release) is not None:
                return canonical
        return None

    def options_beginning(self, name: str) -> list[str]:
        """Options of any release of which `name` is the beginning, sorted."""
        return sorted(option for option in self._data["options"] if option.startswith(name)) if len(name) > 3 else []

    def option_ranges(self, spelling: str) -> str:
        """The releases whose parser has this canonical option, coded; empty when none does."""
        entry = self._data["options"].get(normal(spelling))
        return str(entry["in"]) if entry is not None else ""

    def option_names(self, release: str, negatives: bool = True) -> list[str]:
        """Every option string that the parser of `release` accepts; with `negatives` the forms that switch off, too."""
        found: list[str] = []
        pairs = self.inside(self._data["pairs"], release)
        for canonical, entry in self._data["options"].items():
            if not self.inside(entry["in"], release):
                continue
            boolean = self._at(entry.get("type"), release) == "bool"
            for name in (canonical, *(self._at(entry.get("aliases"), release) or ())):
                found.append(name)
                if not (negatives and boolean and name.startswith("--")):
                    continue
                found.append("--no-" + name[2:])
                for prefix, inverse in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
                    if pairs and name.startswith(prefix):
                        found.append(inverse + name[len(prefix) :])
        return found

    def abbreviations(self, spelling: str, release: str) -> list[str]:
        """Options of `release` that argparse would take `spelling` for, being a prefix of them."""
        name = normal(spelling)
        if not name.startswith("--") or len(name) < 4:
            return []
        return sorted(option for option in self.option_names(release) if option.startswith(name) and option != name)

    # -- JSON keys and arguments ---------------------------------------------------------------------------------------

    def json_keys(self, group: str, release: str) -> dict[str, str] | None:
        """The keys of a config class as JSON, each with the class inside it (empty for plain values); None if unknown."""
        entry = self._data["json"].get(group)
        if entry is None or not self.inside(entry["in"], release):
            return None
        found: dict[str, str] = {}
        for key, spans in entry["keys"].items():
            for inner, ranges in ({"": spans} if isinstance(spans, str) else spans).items():
                if self.inside(ranges, release):
                    found[key] = inner
        return found

    def json_ranges(self, group: str, key: str) -> str:
        """The releases in which a JSON key exists, coded (of its newest shape); empty when none."""
        spans = self._data["json"].get(group, {}).get("keys", {}).get(key, "")
        return spans if isinstance(spans, str) else list(spans.values())[-1]

    def argument(self, name: str, release: str) -> bool:
        """Whether `LLM(name=...)` / `AsyncEngineArgs(name=...)` is accepted in `release`."""
        return self.inside(self._data["args"].get(name, ""), release)

    def argument_names(self, release: str) -> list[str]:
        """Every engine argument of `release`, sorted."""
        return [name for name, ranges in self._data["args"].items() if self.inside(ranges, release)]

    def _knob(self, name: str, kind: Literal["env", "option"], entry: dict[str, Any], release: str) -> Knob:
        known = "default" in entry and self.inside(entry.get("default_in", entry["in"]), release)
        return Knob(
            name=name,
            kind=kind,
            type=self._at(entry.get("type"), release) or "",
            unread=self.inside(entry.get("unread", ""), release),
            deprecated=self.inside(entry.get("deprecated", ""), release),
            json=self._at(entry.get("json"), release) or "",
            default=self._at(entry["default"], release) if known else None,
            has_default=known,
        )


def normal(spelling: str) -> str:
    """An option as vLLM's parser compares it: without `=value` and dotted JSON key, underscores as dashes."""
    name = spelling.partition("=")[0]
    if name.startswith("-"):
        name = name.partition(".")[0]
    return name.replace("_", "-") if name.startswith("--") else name


@lru_cache(maxsize=1)
def load() -> Catalog:
    """The shipped catalog, read once. Raises LifesignError when the installation lacks it."""
    import msgspec

    try:
        return Catalog(msgspec.json.decode(_DATA.read_bytes()))
    except (OSError, msgspec.DecodeError) as error:
        raise LifesignError(f"the knob catalog can't be read ({error}): reinstall lifesign") from None
