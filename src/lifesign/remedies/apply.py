"""From an intent to advice: the form that is valid in the reader's release, its value, and the command to type.

A knob is only named when the catalog (or, for foreign variables, the overlay) says that it exists in that release and
that something reads it. Where no form exists yet, the advice says so and names the release that brings one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lifesign.remedies import catalog as catalogs
from lifesign.remedies import overlay, versions
from lifesign.remedies.catalog import Basis, Catalog
from lifesign.remedies.model import Form, Kind, Remedy
from lifesign.remedies.platforms import for_platform
from lifesign.text import T

if TYPE_CHECKING:
    from lifesign.facts.model import Life


class RenderedRemedy(msgspec.Struct, frozen=True):
    """One remedy for one life, ready to be shown.

    knob, value: the setting, empty when there is none to name. also: settings that go with it, as (knob, value or None).
    direction: as in `Computed`. command: what to type, ready to paste. how: how the value was computed; lines: the log lines it rests on.
    valid_in_version: true when the catalog knows the release and the form is good there (always true for advice that
    names no knob); None when the release is unknown or outside the catalog, and `note` says what was assumed.
    """

    slug: str
    kind: Kind
    title: T
    why: T
    cost: T | None = None
    knob: str = ""
    value: str = ""
    also: tuple[tuple[str, str | None], ...] = ()
    command: str = ""
    how: T | None = None
    lines: tuple[int, ...] = ()
    direction: int = 0
    valid_in_version: bool | None = True
    note: T | None = None
    source: str = ""

    @property
    def setting(self) -> str:
        """Knob and value as one types them: `--max-num-seqs 64`, `NCCL_P2P_DISABLE=1`."""
        return spelled(self.knob, self.value or None)


def render(
    remedy: Remedy, life: Life, values: Mapping[str, str] | None = None, catalog: Catalog | None = None
) -> RenderedRemedy | None:
    """`remedy` for `life`; None when it can't help there: excluded, set already, or no better value known.

    values: fills `{name}` fields of the texts (a finding's values). catalog: the shipped one unless given.
    """
    if remedy.unless is not None and remedy.unless(life):
        return None
    fields = dict(values or {})
    known = catalog or catalogs.load()
    title, why = remedy.title.fill(**fields), remedy.why.fill(**fields)
    if not remedy.forms:
        from lifesign.remedies.sketch import filled  # it needs this module's types

        return RenderedRemedy(
            slug=remedy.slug,
            kind=remedy.kind,
            title=title,
            why=why,
            cost=remedy.cost,
            command=for_platform(filled(remedy.command or "", life, known), life),
            source=remedy.source,
        )
    basis = known.basis(life.version)
    form = choose(remedy, basis, known)
    if form is None:
        return _not_yet(remedy, basis, known, title, why, life)
    computed = remedy.value(life) if remedy.value is not None else None
    if remedy.value is not None and computed is None:
        return None
    value = _filled_value(form, computed.value if computed else fields.get("value"))
    if (value is not None and "{value}" in value) or _is_set(form.knob, value, life):
        return None
    if computed is not None and _is_worse(form.knob, value, computed.direction, life):
        return None
    explained = [
        part for part in (computed, remedy.detail(life) if remedy.detail is not None else None) if part is not None
    ]
    rendered = RenderedRemedy(
        slug=remedy.slug,
        kind="env" if is_env(form.knob) else "flag",
        title=title,
        why=why,
        cost=remedy.cost,
        knob=form.knob,
        value=value or "",
        also=form.also,
        how=_joined([part.how for part in explained]),
        lines=tuple(line for part in explained for line in part.lines),
        direction=computed.direction if computed is not None else 0,
        valid_in_version=True if basis.verified else None,
        note=_note(form, basis, known),
        source=remedy.source,
    )
    return _with_command(rendered, life, known)


def _joined(texts: list[T]) -> T | None:
    if not texts:
        return None
    return T("; ".join(text.en for text in texts), "；".join(text.zh for text in texts))


def _filled_value(form: Form, value: str | None) -> str | None:
    return form.value.replace("{value}", value) if form.value is not None and value is not None else form.value


def choose(remedy: Remedy, basis: Basis, catalog: Catalog) -> Form | None:
    """The first form of `remedy` that is good in the basis's release; None when there is none.

    Before the catalog begins, a form that says it is of those releases comes first.
    """
    if basis.standing == "older":
        for form in remedy.forms:
            if versions.within(basis.version, form.since, form.until) and settings_exist(form, basis.release, catalog):
                return form
    for form in remedy.forms:
        if form_is_valid(form, basis.release, catalog):
            return form
    return None


def form_is_valid(form: Form, release: str, catalog: Catalog) -> bool:
    """Whether a form exists in `release`, is read there, and has the meaning that the form claims."""
    if versions.within(release, form.since, form.until) is False:
        return False
    return settings_exist(form, release, catalog)


def settings_exist(form: Form, release: str, catalog: Catalog) -> bool:
    """Whether the settings of a form exist and act in `release`, whatever releases the form is meant for."""
    settings = ((form.knob, form.value), *form.also)
    return all(knob_is_valid(knob, value, release, catalog) for knob, value in settings)


def knob_is_valid(knob: str, value: str | None, release: str, catalog: Catalog) -> bool:
    """Whether one setting exists and acts in `release`: catalogued and read, or a known foreign variable."""
    if is_env(knob):
        if any(versions.within(release, entry.since, entry.until) for entry in overlay.wrong(knob, "env")):
            return False
        external = overlay.EXTERNAL.get(knob)
        if external is not None:
            return external.since is None or bool(versions.at_least(release, external.since))
        variable = catalog.env(knob, release)
        return variable is not None and not variable.unread
    option = catalog.option(knob, release)
    if option is None or option.negative != (catalogs.normal(knob) != option.name and option.type == "bool"):
        return False
    if value is not None and value.startswith("{") and value != "{value}" and option.json:
        return _json_is_known(value, option.json, release, catalog)
    return True


def _json_is_known(value: str, group: str, release: str, catalog: Catalog) -> bool:
    try:
        parsed = json.loads(value)
    except ValueError:
        return False
    pending = [(parsed, group)]
    while pending:
        mapping, name = pending.pop()
        keys = catalog.json_keys(name, release)
        if keys is None or not isinstance(mapping, dict):
            continue
        for key, inner in mapping.items():
            if key not in keys:
                return False
            if keys[key]:
                pending.append((inner, keys[key]))
    return True


def is_env(knob: str) -> bool:
    """Whether a knob is an environment variable (not an option)."""
    return bool(knob) and not knob.startswith("-")


def spelled(knob: str, value: str | None) -> str:
    """A setting as one types it, shell-quoted."""
    if is_env(knob):
        return f"{knob}={shlex.quote(value or '')}"
    if value is None or value == "":
        return knob
    return f"{knob} {_quoted(knob, value)}"


def _quoted(knob: str, value: str) -> str:
    """`1 2 4` stays three words for options that take several; everything else is one word."""
    several = knob in ("--cudagraph-capture-sizes", "--cuda-graph-sizes")
    return " ".join(shlex.quote(part) for part in value.split()) if several else shlex.quote(value)


def _note(form: Form, basis: Basis, catalog: Catalog) -> T | None:
    span = _span(form, catalog)
    if basis.standing == "newer":
        return T(
            f"not verified for {basis.version}: newer than the catalog, which ends at {catalog.newest}",
            f"未对 {basis.version} 核实：目录只到 {catalog.newest}",
        )
    if basis.standing == "older":
        first = catalog.releases[0]
        return T(
            f"not verified for {basis.version}: older than the catalog, which begins at {first}",
            f"未对 {basis.version} 核实：目录从 {first} 开始",
        )
    if basis.standing == "unknown":
        return T(
            f"not verified: the log doesn't say which vLLM this is; the form is that of {span}",
            f"未核实：日志里没有 vLLM 版本；此写法适用于 {span}",
        )
    if basis.standing == "development":
        return T(
            f"{basis.version} is a build between releases; checked against {basis.release}",
            f"{basis.version} 是开发版；按 {basis.release} 核对",
        )
    return None


def _span(form: Form, catalog: Catalog) -> str:
    """The releases of a form, for a reader."""
    ranges = catalog.env_ranges(form.knob) if is_env(form.knob) else catalog.option_ranges(form.knob)
    low, high = catalog.span(ranges) if ranges else (catalog.releases[0], catalog.newest)
    if form.since and (versions.key(form.since) or ()) > (versions.key(low) or ()):
        low = form.since
    if form.until and (versions.key(form.until) or ()) < (versions.key(high) or ()):
        high = form.until
    return f"{low}+" if high == catalog.newest else f"{low} - {high}"


def _not_yet(remedy: Remedy, basis: Basis, catalog: Catalog, title: T, why: T, life: Life) -> RenderedRemedy | None:
    """What to say where no form exists: the release that brings one; None when the knob has gone for good."""
    here = catalog.releases.index(basis.release)
    for release in catalog.releases[here + 1 :]:
        later = choose(remedy, Basis(release, release, "exact"), catalog)
        if later is None:
            continue
        name = later.knob if later.value is None or later.value == "{value}" else spelled(later.knob, later.value)
        return RenderedRemedy(
            slug=remedy.slug,
            kind="upgrade",
            title=title,
            why=why,
            cost=remedy.cost,
            command=for_platform(f"pip install -U {shlex.quote(f'vllm>={release}')}", life),
            note=T(
                f"vLLM {basis.version or basis.release} has no setting for this; {name} exists from {release}",
                f"vLLM {basis.version or basis.release} 没有相应的设置；{release} 起可用 {name}",
            ),
            source=remedy.source,
        )
    return None


def _is_set(knob: str, value: str | None, life: Life) -> bool:
    """Whether the life has exactly this setting already."""
    if is_env(knob):
        return value is not None and life.env.get(knob) == value
    name = knob.lstrip("-").replace("-", "_")
    current = life.config.get(name)
    if value is None or value == "":
        return str(current).lower() in ("true", "1")
    if current is None:
        return False
    if value.startswith("{"):
        try:
            wanted = json.loads(value)
            held = json.loads(current) if isinstance(current, str) else current
        except ValueError:
            return False
        return isinstance(held, dict) and isinstance(wanted, dict) and all(held.get(k) == v for k, v in wanted.items())
    return str(current) == value or _same_number(current, value)


def _is_worse(knob: str, value: str | None, direction: int, life: Life) -> bool:
    """Whether the value lies on the wrong side of what the life has, seen from where the remedy wants to go."""
    current = life.env.get(knob) if is_env(knob) else life.config.get(knob.lstrip("-").replace("-", "_"))
    try:
        now = float(str(current))
        return direction != 0 and now > 0 and (float(str(value)) - now) * direction < 0
    except ValueError:
        return False


def _same_number(current: object, value: str) -> bool:
    try:
        return float(str(current)) == float(value)
    except ValueError:
        return False


def _with_command(rendered: RenderedRemedy, life: Life, catalog: Catalog) -> RenderedRemedy:
    from lifesign.remedies.command import corrected_command

    return replace(rendered, command=corrected_command(life, [rendered], catalog).text)
